// Running and waiting requests as a table and a list, and what has happened.

import { colourOf, labelOf } from "./state.js";

const MOST_ROWS = 64;
const MOST_HAPPENED = 100;
const PERIOD_MS = 400; // between changes of the table, so that it can be read

export class RequestsView {
  constructor(state, pool) {
    this.state = state;
    this.pool = pool;
    this.body = document.getElementById("running");
    this.waiting = document.getElementById("waiting");
    this.happened = document.getElementById("happened");
    this.rows = new Map(); // by key
    this.own = new Set(); // names of this page's requests
    this.timer = 0;
  }

  draw() {
    if (!this.timer) this.timer = setTimeout(() => this.drawNow(), PERIOD_MS);
  }

  drawNow() {
    this.timer = 0;
    const { sequences, waiting, stats } = this.state;
    const shown = [...sequences.values()].slice(0, MOST_ROWS);
    const keys = new Set(shown.map((sequence) => sequence.key));
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    for (const sequence of shown) this.drawRow(sequence);
    const hidden = sequences.size - shown.length;
    set(document.getElementById("running-count"), hidden ? `${sequences.size}, the first ${MOST_ROWS} shown` : sequences.size);
    set(document.getElementById("waiting-count"), stats.waiting ?? "");
    this.waiting.replaceChildren(
      ...waiting.map(([name, index, tokens, preemptions]) => {
        const item = document.createElement("li");
        item.textContent = `${labelOf({ name, index })}: ${tokens} tokens${preemptions ? ", was preempted" : ""}`;
        return item;
      }),
    );
    for (const text of this.state.happened.splice(0)) this.tell(text);
  }

  drawRow(sequence) {
    let row = this.rows.get(sequence.key);
    if (!row) {
      row = this.newRow(sequence);
      this.rows.set(sequence.key, row);
      this.body.append(row);
    }
    row.classList.toggle("own", this.own.has(sequence.name));
    const held = [...sequence.tables.values()].reduce((sum, table) => sum + table.filter(Boolean).length, 0);
    const computes = sequence.computed < sequence.prompt;
    const cells = [
      null,
      computes ? `prompt ${Math.floor((100 * sequence.computed) / sequence.prompt)} %` : "decodes",
      sequence.prompt,
      sequence.cached,
      Math.max(0, sequence.known - sequence.prompt),
      sequence.released ? `${held}, window freed ${sequence.released}` : held,
    ];
    cells.forEach((text, i) => text === null || set(row.children[i], text));
  }

  newRow(sequence) {
    const row = document.createElement("tr");
    row.tabIndex = 0;
    const name = document.createElement("td"); // a cell that is too narrow has the rest as a title
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colourOf(sequence.key);
    name.append(swatch, labelOf(sequence));
    name.title = labelOf(sequence);
    row.append(name);
    for (let i = 0; i < 5; i++) {
      const cell = document.createElement("td");
      if (i) cell.className = "number";
      row.append(cell);
    }
    for (const name of ["pointerenter", "focus"]) row.addEventListener(name, () => this.pool.light(sequence.key));
    for (const name of ["pointerleave", "blur"]) row.addEventListener(name, () => this.pool.light(null));
    return row;
  }

  tell(text) {
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = new Date().toLocaleTimeString("en-GB");
    item.append(time, text);
    this.happened.prepend(item);
    while (this.happened.children.length > MOST_HAPPENED) this.happened.lastChild.remove();
  }
}

function set(element, value) {
  const text = typeof value === "number" ? value.toLocaleString("en") : String(value);
  if (element.textContent !== text) element.textContent = text;
}
