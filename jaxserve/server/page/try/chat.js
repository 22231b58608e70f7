// A conversation with the served model. All that it says is shown as text, never as HTML.

import { eventsOf, hasKey, request } from "../api.js";
import { codeOf } from "./code.js";
import { Message } from "./message.js";

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
      if (this.running) {
        this.running.forgotten = true;
        this.running.abort();
      }
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
    if (tools) Object.assign(body, { tools, tool_choice: field("tool_choice").value });
    if (field("show-logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 3 });
    return { ...body, stream_options: { include_usage: true } };
  }

  showCode() {
    if (!field("code").open) return;
    // What is being written, or else the last request again.
    const typed = field("question").value;
    const last = this.messages.findLastIndex((message) => message.role !== "assistant");
    const messages = typed ? [...this.messages, { role: "user", content: typed }] : this.messages.slice(0, last + 1);
    if (!messages.length) messages.push({ role: "user", content: "Hello" });
    try {
      field("code-text").textContent = codeOf(this.language, new URL(".", location.href).href, this.body(messages), hasKey());
    } catch (error) {
      field("code-text").textContent = error.message;
    }
  }

  async send(text) {
    if (!text.trim() || this.running) return;
    await this.ask([{ role: "user", content: text }], () => {
      field("question").value = "";
      field("examples").hidden = true;
      new Message("user", "You").add(text);
    });
  }

  // Sends what tools have returned.
  async sendResults(calls, results) {
    if (this.running) return;
    const messages = calls.map(({ id }, i) => ({ role: "tool", tool_call_id: id, content: results[i] }));
    await this.ask(messages, () => {
      calls.forEach((call, i) => new Message("user", `What ${call.function.name} returned`).add(results[i]));
    });
  }

  // Args: more: messages to go on with; onSent: called once it is known that they can be sent.
  async ask(more, onSent) {
    if (!this.model) await this.start();
    let body;
    try {
      body = this.body([...this.messages, ...more]);
    } catch (error) {
      new Message("error", "This request can't be sent").add(error.message);
      return;
    }
    onSent();
    const answer = new Message("assistant", this.model);
    const running = (this.running = new AbortController());
    field("send").disabled = true;
    field("stop").disabled = false;
    try {
      const said = await this.read(body, answer);
      this.messages.push(...more, said);
      if (said.tool_calls) answer.askForResults(said.tool_calls, (results) => this.sendResults(said.tool_calls, results));
    } catch (error) {
      if (running.signal.aborted) {
        answer.figures("stopped");
        if (!running.forgotten) this.messages.push(...more, { role: "assistant", content: answer.content });
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

