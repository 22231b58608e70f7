// The block pool as a grid. Only blocks that have changed are drawn anew.

import { atNextFrame, colours, fit, prefersStill, whenResized } from "../canvas.js";
import { colourOf, count, labelOf } from "./state.js";

const [MAX_CELL, NARROW, NARROW_CELL] = [26, 500, 19]; // in CSS pixels
const MOST_HEIGHT = 420;
const MARKS_PERIOD_MS = 100; // between pictures of marks that fade
const WITH_MARKS = 5; // pixels of a cell that has room for a mark

export class PoolView {
  constructor(state) {
    this.state = state;
    this.canvas = document.getElementById("pool");
    this.about = document.getElementById("block-about");
    this.summary = document.getElementById("pool-summary");
    this.sharing = document.getElementById("sharing");
    this.litKey = null; // of the sequence whose blocks are shown while the others are dimmed
    this.lit = null; // its blocks
    this.cursor = 0;
    this.pointed = null;
    this.whole = true;
    this.timer = 0;
    this.draw = atNextFrame(() => this.drawNow());
    whenResized(this.canvas, () => this.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    this.canvas.addEventListener("focus", () => this.show(this.cursor));
    this.canvas.addEventListener("blur", () => this.leave());
  }

  redraw() {
    this.whole = true;
    this.draw();
  }

  // Lights the blocks of a sequence; null lights all again.
  light(key) {
    if (key === this.litKey) return;
    this.litKey = key;
    this.redraw();
  }

  leave() {
    this.pointed = this.litKey = null;
    this.redraw();
  }

  say(text) {
    if (this.about.textContent !== text) this.about.textContent = text;
  }

  layout() {
    const size = this.state.blocks.length;
    const width = Math.max(50, this.canvas.parentElement.clientWidth);
    const largest = width < NARROW ? NARROW_CELL : MAX_CELL;
    const cell = Math.max(1, Math.min(largest, Math.floor(Math.sqrt((width * MOST_HEIGHT) / Math.max(1, size)))));
    const columns = Math.max(1, Math.floor(width / cell));
    return { cell, columns, height: Math.max(cell, Math.ceil(size / columns) * cell) };
  }

  drawNow() {
    const { state } = this;
    const { cell, columns, height } = this.layout();
    if (this.cell !== cell || this.columns !== columns) this.whole = true;
    const before = this.canvas.width * this.canvas.height;
    const { context, width } = fit(this.canvas, height);
    if (before !== this.canvas.width * this.canvas.height) this.whole = true;
    [this.cell, this.columns] = [cell, columns];
    const palette = colours("panel", "free", "cached", "null", "text", "found", "evicted", "copied", "preempted", "taken");
    this.lit = this.litKey === null ? null : state.blocksOf(this.litKey);
    if (state.copies.length || this.lit) this.whole = true; // arrows lie over many blocks
    const now = performance.now();
    const goesOn = state.forgetMarks(now);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 ${Math.max(8, Math.min(12, cell - 7))}px system-ui, sans-serif`;
    if (this.whole) {
      context.clearRect(0, 0, width, height);
      if (cell < WITH_MARKS) this.drawRuns(context, palette);
      else for (let block = 0; block < state.blocks.length; block++) this.drawBlock(context, palette, block, now);
    } else {
      for (const block of state.changed) this.drawBlock(context, palette, block, now);
    }
    if (cell > WITH_MARKS) for (const copy of state.copies) this.drawCopy(context, palette, copy, now);
    state.changed.clear();
    this.whole = state.copies.length > 0;
    this.summarise();
    if (goesOn && cell >= WITH_MARKS && !this.timer) {
      this.timer = setTimeout(() => {
        this.timer = 0;
        this.draw();
      }, MARKS_PERIOD_MS);
    }
  }

  colour(palette, block) {
    if (block === 0) return palette.null;
    const owner = this.state.ownerOf(block);
    if (owner !== undefined) return colourOf(owner);
    const state = this.state.blocks[block];
    if (state > 0) return palette.text; // its table has not been told yet
    return state === -1 ? palette.cached : palette.free;
  }

  at(block) {
    return [(block % this.columns) * this.cell, Math.floor(block / this.columns) * this.cell];
  }

  // A large pool: blocks of one colour that lie side by side are one rectangle.
  drawRuns(context, palette) {
    const { cell, columns } = this;
    const size = this.state.blocks.length;
    const gap = cell >= 3 ? 1 : 0;
    const dim = (block) => this.lit !== null && !this.lit.has(block);
    for (let first = 0; first < size; ) {
      const [x, y] = this.at(first);
      const [colour, dimmed] = [this.colour(palette, first), dim(first)];
      const end = Math.min(size, first - (first % columns) + columns);
      let next = first + 1;
      while (next < end && dim(next) === dimmed && this.colour(palette, next) === colour) next++;
      context.globalAlpha = dimmed ? 0.22 : 1;
      context.fillStyle = colour;
      context.fillRect(x, y, (next - first) * cell - gap, cell - gap);
      first = next;
    }
    context.globalAlpha = 1;
  }

  drawBlock(context, palette, block, now) {
    const { cell, state } = this;
    const [x, y] = this.at(block);
    const gap = cell >= 12 ? 2 : cell >= 3 ? 1 : 0;
    const wide = cell - gap;
    const owned = state.owners.has(block);
    const dimmed = this.lit !== null && !this.lit.has(block);
    context.globalAlpha = 1;
    context.fillStyle = palette.panel;
    context.fillRect(x, y, cell, cell);
    context.fillStyle = this.colour(palette, block);
    const alpha = dimmed ? 0.18 : 1;
    const fill = owned && cell >= 8 ? state.fillOf(block) : 1;
    context.globalAlpha = fill < 1 ? alpha * 0.3 : alpha; // what has no tokens yet
    box(context, x, y, wide, wide, cell);
    if (fill < 1 && fill > 0) {
      context.globalAlpha = alpha;
      context.fillRect(x, y + wide * (1 - fill), wide, wide * fill);
    }
    const holders = Math.max(state.blocks[block], state.owners.get(block)?.size || 0);
    context.globalAlpha = alpha;
    if (holders > 1) {
      context.fillStyle = "#fff";
      if (cell >= 12) context.fillText(holders > 99 ? "+" : holders, x + wide / 2, y + wide / 2 + 0.5);
      else if (cell >= 3) context.fillRect(x + cell / 3, y + cell / 3, cell / 3, cell / 3);
    }
    const mark = state.marks.get(block);
    if (mark && cell >= WITH_MARKS) {
      context.globalAlpha = prefersStill() ? 1 : Math.max(0, Math.min(1, (mark.until - now) / 1000));
      this.ring(context, palette[mark.kind], x, y, wide, cell >= 12 ? 2.5 : 1.5);
    }
    context.globalAlpha = 1;
    if (this.pointed === block) this.ring(context, palette.text, x, y, wide, 2);
  }

  ring(context, colour, x, y, wide, thick) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(x + thick / 2, y + thick / 2, wide - thick, wide - thick);
  }

  // An arrow from a shared block to its copy.
  drawCopy(context, palette, { from, to, until }, now) {
    const [[fromX, fromY], [toX, toY]] = [from, to].map((block) => this.at(block).map((side) => side + this.cell / 2 - 1));
    const angle = Math.atan2(toY - fromY, toX - fromX);
    context.globalAlpha = prefersStill() ? 1 : Math.max(0, Math.min(1, (until - now) / 600));
    context.strokeStyle = context.fillStyle = palette.copied;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.stroke();
    context.beginPath();
    context.moveTo(toX, toY);
    for (const side of [-0.45, 0.45]) context.lineTo(toX - 9 * Math.cos(angle + side), toY - 9 * Math.sin(angle + side));
    context.fill();
    context.globalAlpha = 1;
  }

  summarise() {
    const { stats, about, saved, shared } = this.state;
    if (stats.blocks_total === undefined) return;
    const percent = Math.round((100 * stats.blocks_used) / stats.blocks_total);
    this.summary.textContent =
      `${count(stats.blocks_total, "block")} of ${about.block_size} tokens. ` +
      `${percent} % are held: ${count(stats.blocks_used, "block")} by ${count(stats.running, "running sequence")}.`;
    this.sharing.textContent = shared ? `${count(shared, "block")} ${shared === 1 ? "is" : "are"} shared, which saves ${count(saved, "block")}.` : "";
  }

  point(event) {
    if (!this.cell) return;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const block = Math.floor((event.clientY - box.top) / this.cell) * this.columns + column;
    if (block >= 0 && column < this.columns && block < this.state.blocks.length) this.show(block);
  }

  move(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key === "Escape") return this.leave();
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = this.cursor + steps[event.key];
    if (next >= 0 && next < this.state.blocks.length) this.show(next);
  }

  // Says who holds a block, and lights all blocks of its first holder.
  show(block) {
    if (this.pointed === block || block >= this.state.blocks.length) return;
    this.cursor = this.pointed = block;
    this.say(this.describe(block));
    this.litKey = this.state.ownerOf(block) ?? null;
    this.redraw();
  }

  describe(block) {
    if (block === 0) return "Block 0 is the null block: padding is written there, and no request owns it.";
    const owners = this.state.owners.get(block);
    if (!owners) {
      return this.state.blocks[block] === -1
        ? `Block ${block} is free, but its content is still there: a request that begins with the same tokens takes it as it is.`
        : `Block ${block} is free.`;
    }
    const places = [...owners].slice(0, 4).map(([key, place]) => {
      const sequence = this.state.sequences.get(key);
      const table = [...sequence.tables.values()].find((entries) => entries[place] === block);
      return `${labelOf(sequence)} (entry ${place + 1} of ${table.length} in its table)`;
    });
    const more = owners.size > 4 ? ` and ${owners.size - 4} others` : "";
    const full = Math.round(this.state.fillOf(block) * this.state.about.block_size);
    return `Block ${block} has ${count(full, "token")} and is ${owners.size > 1 ? "shared" : "held"} by ${places.join(", ")}${more}.`;
  }
}

function box(context, x, y, wide, tall, cell) {
  if (cell < 12) return context.fillRect(x, y, wide, tall);
  context.beginPath();
  context.roundRect(x, y, wide, tall, 3);
  context.fill();
}
