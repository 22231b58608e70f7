// A conversation with the served model. All that it says is shown as text, never as HTML.

import { eventsOf, hasKey, request } from "./api.js";
import { codeOf } from "./code.js";

const MOST_SHOWN = 200_000; // characters of a message; more is counted, not shown
const EXAMPLES = ["What is the capital of France?", "Explain what a hash table is.", "Write a short poem about the sea."];
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

const field = (name) => document.getElementById(name);

export class ChatView {
  // Args: onName: gets the id of each request.
  constructor(onName) {
    this.onName = onName;
    this.model = "";
    this.messages = []; // as the server gets them
    this.language = "curl";
    this.running = null;
    this.sent = 0;
    field("chat").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(field("question").value);
    });
    field("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send(field("question").value);
      }
    });
    field("stop").addEventListener("click", () => this.running?.abort());
    field("forget").addEventListener("click", () => {
      this.running?.abort();
      this.messages = [];
      field("messages").replaceChildren();
      field("examples").hidden = false;
      field("question").focus();
    });
    field("chat").addEventListener("input", () => this.showCode());
    field("code").addEventListener("toggle", () => this.showCode());
    for (const button of document.querySelectorAll("[data-language]")) {
      button.addEventListener("click", () => {
        this.language = button.dataset.language;
        for (const other of document.querySelectorAll("[data-language]")) other.setAttribute("aria-pressed", String(other === button));
        this.showCode();
      });
    }
    field("copy").addEventListener("click", async () => {
      await navigator.clipboard.writeText(field("code-text").textContent);
      field("copy").textContent = "Copied";
      setTimeout(() => (field("copy").textContent = "Copy"), 1500);
    });
    for (const text of EXAMPLES) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => this.send(text));
      field("examples").append(button);
    }
  }

  // Asks for the model's name, as soon as the server lets us.
  async start() {
    try {
      const models = await (await request("v1/models")).json();
      this.model = models.data[0].id;
      field("model").textContent = this.model;
      document.title = `jaxserve: ${this.model}`;
      this.showCode();
    } catch {
      // The connection's state is shown elsewhere; the first question asks again.
    }
  }

  // The request's body. Throws an Error for people when a field can't be read.
  body(messages) {
    const body = { model: this.model, messages, stream: true };
    for (const name of NUMBERS) if (field(name).value !== "") body[name] = Number(field(name).value);
    const system = field("system").value.trim();
    if (system) body.messages = [{ role: "system", content: system }, ...messages];
    const schema = readJson("schema", "The JSON schema");
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = readJson("tools", "Tools");
    if (tools) body.tools = tools;
    if (field("show-logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 3 });
    return { ...body, stream_options: { include_usage: true } };
  }

  showCode() {
    if (!field("code").open) return;
    const question = field("question").value || this.messages.findLast((message) => message.role === "user")?.content || "Hello";
    try {
      field("code-text").textContent = codeOf(this.language, new URL(".", location.href).href, this.body([{ role: "user", content: question }]), hasKey());
    } catch (error) {
      field("code-text").textContent = error.message;
    }
  }

  async send(text) {
    if (!text.trim() || this.running) return;
    if (!this.model) await this.start();
    const question = { role: "user", content: text };
    let body;
    try {
      body = this.body([...this.messages, question]);
    } catch (error) {
      new Message("error", "This request can't be sent").add(error.message);
      return;
    }
    field("question").value = "";
    field("examples").hidden = true;
    new Message("user", "You").add(text);
    const answer = new Message("assistant", this.model);
    this.running = new AbortController();
    field("send").disabled = true;
    field("stop").disabled = false;
    try {
      const said = await this.read(body, answer);
      this.messages.push(question, said);
    } catch (error) {
      if (this.running?.signal.aborted) {
        answer.figures("stopped");
        this.messages.push(question, { role: "assistant", content: answer.content });
      } else {
        new Message("error", "The request failed").add(error.message);
      }
    }
    this.running = null;
    field("send").disabled = false;
    field("stop").disabled = true;
    this.showCode();
  }

  // Streams an answer into a message; what the model said, as a message of the conversation.
  async read(body, answer) {
    const began = performance.now();
    let [first, usage, reason] = [0, null, ""];
    const calls = [];
    const id = `chat-${++this.sent}`;
    this.onName(id);
    const response = await request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Request-Id": id },
      body: JSON.stringify(body),
      signal: this.running.signal,
    });
    for await (const chunk of eventsOf(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage || usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      first ||= performance.now();
      reason = choice.finish_reason || reason;
      const { content, reasoning, tool_calls } = choice.delta;
      if (reasoning) answer.addReasoning(reasoning);
      if (content) answer.content += content;
      const tokens = choice.logprobs?.content;
      if (tokens?.length) answer.addTokens(tokens);
      else if (content && !body.logprobs) answer.add(content);
      if (choice.finish_reason === "stop") answer.dropEnd();
      for (const call of tool_calls || []) {
        const known = (calls[call.index] ??= { id: call.id, type: "function", function: { name: "", arguments: "" } });
        known.function.name += call.function?.name || "";
        known.function.arguments += call.function?.arguments || "";
        answer.showCalls(calls);
      }
    }
    const seconds = (performance.now() - first) / 1000;
    const tokens = usage?.completion_tokens ?? 0;
    answer.figures(
      `${tokens} tokens, ${seconds > 0 && tokens > 1 ? `${((tokens - 1) / seconds).toFixed(1)} a second, ` : ""}` +
        `first after ${((first - began) / 1000).toFixed(2)} s, prompt ${usage?.prompt_tokens ?? "?"} ` +
        `(${usage?.prompt_tokens_details?.cached_tokens ?? 0} cached), ended by ${reason || "?"}`,
    );
    const said = { role: "assistant", content: answer.content };
    if (calls.length) said.tool_calls = calls;
    return said;
  }
}

function readJson(name, title) {
  const text = field(name).value.trim();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${title}: ${error.message}`);
  }
}

class Message {
  constructor(kind, title) {
    this.content = "";
    this.shown = 0;
    this.element = make("div", `message ${kind}`);
    const heading = make("h4");
    heading.textContent = title;
    this.text = make("div", "text");
    this.text.dir = "auto";
    this.element.append(heading, this.text);
    field("messages").append(this.element);
    this.follow();
  }

  // Appends to the last text node, so that a long answer isn't laid out node by node.
  add(text) {
    const room = MOST_SHOWN - this.shown;
    if (room <= 0) return;
    const part = text.slice(0, room);
    this.shown += part.length;
    const last = this.text.lastChild;
    if (last?.nodeType === Node.TEXT_NODE) last.appendData(part);
    else this.text.append(part);
    if (text.length >= room) this.figures(`only the first ${MOST_SHOWN.toLocaleString("en")} characters are shown`);
    this.follow();
  }

  addReasoning(text) {
    if (!this.reasoning) {
      const details = make("details");
      details.open = true;
      const summary = make("summary");
      summary.textContent = "Reasoning";
      this.reasoning = make("div", "reasoning");
      this.reasoning.dir = "auto";
      details.append(summary, this.reasoning);
      this.element.insertBefore(details, this.text);
    }
    if (this.reasoning.textContent.length < MOST_SHOWN) this.reasoning.append(text);
    this.follow();
  }

  // Tokens, the likelier the greener; their alternatives are in the tooltip.
  addTokens(tokens) {
    for (const { token, logprob, top_logprobs } of tokens) {
      if (this.shown > MOST_SHOWN) return;
      this.shown += token.length;
      const span = make("span", "token");
      const probability = Math.exp(logprob);
      span.style.background = `hsl(${Math.round(120 * probability)} 75% 78%)`;
      span.textContent = token;
      span.title = [`${percent(probability)}`, ...(top_logprobs || []).map((other) => `${JSON.stringify(other.token)} ${percent(Math.exp(other.logprob))}`)].join("\n");
      this.text.append(span);
    }
    this.follow();
  }

  // The token that ends an answer has a probability, but is no part of the text.
  dropEnd() {
    const last = this.text.lastElementChild;
    if (last && !this.content.endsWith(last.textContent)) last.remove();
  }

  showCalls(calls) {
    this.calls ??= this.element.appendChild(make("pre"));
    this.calls.textContent = calls.map(({ function: { name, arguments: given } }) => `${name}(${given})`).join("\n").slice(0, MOST_SHOWN);
    this.follow();
  }

  figures(text) {
    this.note ??= this.element.appendChild(make("p", "figures"));
    this.note.textContent = text;
    this.follow();
  }

  // Keeps the end in sight unless the reader has scrolled up.
  follow() {
    const box = field("messages");
    if (box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
  }
}

function percent(probability) {
  return `${(100 * probability).toFixed(1)} %`;
}

function make(tag, kind = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  return element;
}
