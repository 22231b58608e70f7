// Running requests with their block tables, and the waiting ones.

import { colours, fit, whenResized } from "../canvas.js";
import { colourOf, count, labelOf } from "./state.js";

const MOST_ROWS = 64;
const PERIOD_MS = 400; // between changes of the table, so that it can be read
const HEADINGS = ["Request", "Does", "Prompt", "Cached", "Output", "Blocks", "Block table"];
const [TALL, MAX_CELL, MIN_CELL] = [16, 16, 3];

export class TablesView {
  constructor(state, pool) {
    this.state = state;
    this.pool = pool;
    this.body = document.getElementById("running");
    this.waiting = document.getElementById("waiting");
    this.rows = new Map(); // by key
    this.own = new Set(); // names of this page's requests
    this.timer = 0;
    this.body.addEventListener("keydown", (event) => this.move(event));
    whenResized(this.body.closest("table"), () => this.draw());
  }

  draw() {
    if (!this.timer) this.timer = setTimeout(() => this.drawNow(), PERIOD_MS);
  }

  drawNow() {
    this.timer = 0;
    const { sequences, waiting, stats } = this.state;
    const shown = [...sequences.values()].slice(0, MOST_ROWS);
    const keys = new Set(shown.map((sequence) => sequence.key));
    for (const [key, row] of this.rows) if (!keys.has(key)) this.dropRow(key, row);
    const palette = colours("line", "soft", "text");
    for (const sequence of shown) this.drawRow(sequence, palette);
    // One stop of the Tab key; the arrow keys move on from there.
    if (!this.body.querySelector("[tabindex='0']") && this.body.firstElementChild) this.body.firstElementChild.tabIndex = 0;
    const hidden = sequences.size - shown.length;
    set(document.getElementById("running-count"), hidden ? `${sequences.size}, the first ${MOST_ROWS} shown` : sequences.size);
    set(document.getElementById("waiting-count"), stats.waiting ?? "");
    document.getElementById("nobody-runs").hidden = sequences.size > 0;
    this.body.closest("table").hidden = sequences.size === 0;
    document.getElementById("nobody-waits").hidden = waiting.length > 0;
    this.drawWaiting(waiting);
  }

  drawWaiting(waiting) {
    const texts = waiting.map(([name, index, tokens, preemptions]) => `${labelOf({ name, index })}: ${tokens} tokens${preemptions ? ", was preempted" : ""}`);
    if (textsOf(this.waiting) === texts.join("\n")) return;
    this.waiting.replaceChildren(
      ...texts.map((text, i) => {
        const item = document.createElement("li");
        item.textContent = text;
        if (waiting[i][3]) item.className = "preempted";
        return item;
      }),
    );
  }

  drawRow(sequence, palette) {
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
      computes ? `prefill ${Math.floor((100 * sequence.computed) / sequence.prompt)} %` : "decodes",
      sequence.prompt,
      sequence.cached,
      Math.max(0, sequence.known - sequence.prompt),
      sequence.released ? `${held}, window freed ${sequence.released}` : held,
    ];
    cells.forEach((text, i) => text === null || set(row.children[i], text));
    this.drawTable(row.querySelector("canvas"), sequence, palette);
  }

  // The block table: an entry is a block, in its owner's colour, filled as far as it has tokens.
  drawTable(canvas, sequence, palette) {
    const { context, width } = fit(canvas, TALL);
    context.clearRect(0, 0, width, TALL);
    const tables = [...sequence.tables.values()];
    const entries = tables.reduce((sum, table) => sum + table.length + 1, -1);
    const cell = Math.max(MIN_CELL, Math.min(MAX_CELL, Math.floor(width / Math.max(1, entries))));
    const fits = entries * cell <= width;
    context.font = "600 10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    let x = 0;
    for (const table of tables) {
      // Of a table that is too long, the end is shown: it is what changes.
      const room = Math.floor((width / tables.length) / cell) - 1;
      const first = fits ? 0 : Math.max(0, table.length - Math.max(1, room));
      if (first) {
        context.fillStyle = palette.soft;
        context.fillText("…", x + cell / 2, TALL / 2);
        x += cell;
      }
      for (let place = first; place < table.length; place++, x += cell) this.drawEntry(context, palette, sequence, table[place], place, x, cell);
      x += cell;
    }
  }

  drawEntry(context, palette, sequence, block, place, x, cell) {
    const wide = cell - 1;
    if (!block) {
      context.strokeStyle = palette.line; // the window has left it behind
      context.strokeRect(x + 0.5, 3.5, Math.max(1, wide - 1), TALL - 8);
      return;
    }
    const owner = this.state.ownerOf(block) ?? sequence.key;
    const fill = this.state.fillAt(sequence, place);
    context.fillStyle = colourOf(owner);
    context.globalAlpha = 0.3;
    context.fillRect(x, 0, wide, TALL);
    context.globalAlpha = 1;
    context.fillRect(x, TALL * (1 - fill), wide, TALL * fill);
    const holders = this.state.owners.get(block)?.size || 0;
    if (holders < 2) return;
    context.fillStyle = "#fff";
    if (cell >= 11) context.fillText(holders > 99 ? "+" : holders, x + wide / 2, TALL / 2 + 0.5);
    else context.fillRect(x + wide / 3, TALL / 2 - 1, Math.max(1, wide / 3), 2);
  }

  newRow(sequence) {
    const row = document.createElement("tr");
    row.tabIndex = -1;
    const name = document.createElement("td"); // a cell that is too narrow has the rest as a title
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colourOf(sequence.key);
    name.append(swatch, labelOf(sequence));
    name.title = labelOf(sequence);
    row.append(name);
    for (const heading of HEADINGS.slice(1)) {
      const cell = document.createElement("td");
      cell.dataset.heading = heading;
      if (heading !== "Does") cell.className = "number";
      row.append(cell);
    }
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true"); // the row says in words what it shows
    row.lastElementChild.className = "table";
    row.lastElementChild.append(canvas);
    for (const kind of ["pointerenter", "focus"]) row.addEventListener(kind, () => this.point(sequence));
    for (const kind of ["pointerleave", "blur"]) row.addEventListener(kind, () => this.pool.light(null));
    return row;
  }

  dropRow(key, row) {
    const next = row.contains(document.activeElement) && (row.nextElementSibling || row.previousElementSibling);
    row.remove();
    this.rows.delete(key);
    if (next) this.focus(next);
  }

  focus(row) {
    for (const other of this.body.children) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  move(event) {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = next && document.activeElement.closest("#running tr")?.[next];
    if (!next) return;
    event.preventDefault();
    if (row) this.focus(row);
  }

  // Lights a sequence's blocks, and says what it has.
  point(sequence) {
    this.pool.light(sequence.key);
    const blocks = [...this.state.blocksOf(sequence.key)];
    const shared = blocks.filter((block) => this.state.owners.get(block).size > 1).length;
    const cached = sequence.cached ? ` The prefix cache had the first ${count(sequence.cached, "token")} of its prompt.` : "";
    this.pool.say(`${labelOf(sequence)} has ${count(sequence.computed, "token")} in ${count(blocks.length, "block")}, ${shared || "none"} of them shared with others.${cached}`);
  }
}

function textsOf(list) {
  return [...list.children].map((item) => item.textContent).join("\n");
}

function set(element, value) {
  const text = typeof value === "number" ? value.toLocaleString("en") : String(value);
  if (element.textContent !== text) element.textContent = text;
}
