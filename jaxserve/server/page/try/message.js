// Messages of the conversation. All that a model says is shown as text, never as HTML.

const MOST_SHOWN = 200_000; // characters of a message; more is counted, not shown

const field = (name) => document.getElementById(name);

export class Message {
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

  // Tokens, the less likely the stronger coloured. Pointing at one, or moving to it with the arrow
  // keys, tells its probability and what else there could have been.
  addTokens(tokens) {
    if (!this.about) this.watchTokens();
    for (const { token, logprob, top_logprobs } of tokens) {
      if (this.shown > MOST_SHOWN) return;
      this.shown += token.length;
      const span = make("span", "token");
      const probability = Math.exp(logprob);
      span.style.setProperty("--unlikely", `${Math.round(100 * (1 - probability))}%`);
      span.textContent = token;
      const others = (top_logprobs || []).filter((other) => other.token !== token);
      const named = ({ token, logprob }) => `${JSON.stringify(token)} ${percent(Math.exp(logprob))}`;
      span.title = `${named({ token, logprob })}${others.length ? `; instead: ${others.map(named).join(", ")}` : ""}`;
      this.text.append(span);
    }
    this.follow();
  }

  watchTokens() {
    this.about = this.element.appendChild(make("p", "token-about"));
    this.about.setAttribute("aria-live", "polite");
    this.about.textContent = "Coloured tokens were unlikely. Point at one, or move with the arrow keys.";
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "application");
    this.text.setAttribute("aria-label", "Tokens of the answer");
    this.text.addEventListener("pointerover", (event) => this.tellToken(event.target.closest(".token")));
    this.text.addEventListener("keydown", (event) => {
      const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
      if (!next) return;
      event.preventDefault();
      this.tellToken(this.told?.[next] || this.told || this.text.querySelector(".token"));
    });
  }

  tellToken(span) {
    if (!span) return;
    this.told?.classList.remove("told");
    this.told = span;
    span.classList.add("told");
    this.about.textContent = span.title;
  }

  // The token that ends an answer has a probability, but is no part of the text.
  dropEnd() {
    const last = this.text.lastElementChild;
    if (last && !this.content.endsWith(last.textContent)) last.remove();
  }

  showCalls(calls) {
    if (!this.calls) {
      this.element.appendChild(make("h5")).textContent = "Calls a tool";
      this.calls = this.element.appendChild(make("pre", "calls"));
      this.calls.tabIndex = 0;
      this.calls.setAttribute("role", "region");
      this.calls.setAttribute("aria-label", "Tool calls");
    }
    this.calls.textContent = calls.map(({ function: { name, arguments: given } }) => `${name}(${given})`).join("\n").slice(0, MOST_SHOWN);
    this.follow();
  }

  // A field for what each call's tool returns. Args: onResults: gets what was typed, in order.
  askForResults(calls, onResults) {
    const form = this.element.appendChild(make("form", "results"));
    const fields = calls.map(({ function: { name } }) => {
      const label = form.appendChild(make("label"));
      label.append(`What ${name} returns `);
      return label.appendChild(make("input"));
    });
    form.appendChild(make("button")).textContent = "Send the results";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      onResults(fields.map((each) => each.value));
    });
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
