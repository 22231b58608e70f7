// What has happened, in words. Small things of a kind that follow each other soon are one line.

const MOST_LINES = 100;
const TOGETHER_MS = 5000;
const MOST_TEXTS = 6; // of a line

const TITLES = {
  copied: (number) => `${number} shared block${number === 1 ? "" : "s"} copied before a write (copy-on-write)`,
  evicted: (number) => `${number} cached block${number === 1 ? "" : "s"} evicted to make room`,
};

export class HappenedView {
  constructor(state) {
    this.state = state;
    this.list = document.getElementById("happened");
    this.open = new Map(); // kind -> the line that takes more of it
  }

  draw() {
    for (const { kind, text, number } of this.state.happened.splice(0)) {
      if (TITLES[kind]) this.tellMore(kind, text, number);
      else this.line(kind).append(text);
    }
  }

  tellMore(kind, text, number) {
    let line = this.open.get(kind);
    if (!line || performance.now() - line.since > TOGETHER_MS) {
      line = { since: performance.now(), number: 0, texts: [], element: document.createElement("span") };
      this.line(kind).append(line.element);
      this.open.set(kind, line);
    }
    line.number += number;
    if (text) line.texts.push(text);
    const some = line.texts.slice(0, MOST_TEXTS).join(", ");
    const more = line.texts.length > MOST_TEXTS ? "…" : "";
    line.element.textContent = `${TITLES[kind](line.number)}${some && `: ${some}${more}`}`;
  }

  line(kind) {
    const item = document.createElement("li");
    item.className = kind;
    const time = document.createElement("time");
    time.textContent = new Date().toLocaleTimeString("en-GB");
    item.append(time);
    this.list.prepend(item);
    while (this.list.children.length > MOST_LINES) this.list.lastChild.remove();
    document.getElementById("nothing-happened").hidden = true;
    return item;
  }
}
