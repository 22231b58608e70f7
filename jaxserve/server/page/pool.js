// The block pool as a grid. Only blocks that have changed are drawn anew.

import { colours, fit, whenResized, atNextFrame } from "./canvas.js";
import { colourOf, labelOf, count } from "./state.js";

const MAX_CELL = 18;
const MOST_HEIGHT = 420;

export class PoolView {
  constructor(state) {
    this.state = state;
    this.canvas = document.getElementById("pool");
    this.about = document.getElementById("block-about");
    this.summary = document.getElementById("pool-summary");
    this.lit = null; // blocks that are shown while the others are dimmed
    this.cursor = 0;
    this.whole = true;
    this.draw = atNextFrame(() => this.drawNow());
    whenResized(this.canvas, () => this.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.light(null));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    this.canvas.addEventListener("blur", () => this.light(null));
    this.onPoint = () => {};
  }

  redraw() {
    this.whole = true;
    this.draw();
  }

  // Lights the blocks of a sequence; null lights all again.
  light(key) {
    const lit = key === null ? null : this.state.blocksOf(key);
    if (lit === null && this.lit === null) return;
    this.lit = lit;
    this.redraw();
  }

  layout() {
    const size = this.state.blocks.length;
    const width = Math.max(50, this.canvas.parentElement.clientWidth);
    let cell = Math.max(1, Math.min(MAX_CELL, Math.floor(Math.sqrt((width * MOST_HEIGHT) / Math.max(1, size)))));
    const columns = Math.max(1, Math.floor(width / cell));
    return { cell, columns, height: Math.max(cell, Math.ceil(size / columns) * cell) };
  }

  drawNow() {
    const { blocks, changed } = this.state;
    const { cell, columns, height } = this.layout();
    if (this.cell !== cell || this.columns !== columns) this.whole = true;
    const before = this.canvas.width * this.canvas.height;
    const { context, width } = fit(this.canvas, height);
    if (before !== this.canvas.width * this.canvas.height) this.whole = true;
    [this.cell, this.columns] = [cell, columns];
    const palette = colours();
    const paint = { free: palette.free, cached: palette.cached, null: palette.null, panel: palette.panel, text: palette.text };
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${Math.max(8, cell - 7)}px system-ui, sans-serif`;
    if (this.whole) {
      context.clearRect(0, 0, width, height);
      for (let block = 0; block < blocks.length; block++) this.drawBlock(context, paint, block);
    } else {
      for (const block of changed) this.drawBlock(context, paint, block);
    }
    changed.clear();
    this.whole = false;
    this.summarise();
  }

  drawBlock(context, paint, block) {
    const { cell, columns } = this;
    const x = (block % columns) * cell;
    const y = Math.floor(block / columns) * cell;
    const gap = cell >= 4 ? 1 : 0;
    const state = this.state.blocks[block];
    const owners = this.state.owners.get(block);
    context.globalAlpha = 1;
    context.fillStyle = paint.panel;
    context.fillRect(x, y, cell, cell);
    if (this.lit && !this.lit.has(block)) context.globalAlpha = 0.22;
    if (block === 0) context.fillStyle = paint.null;
    else if (owners) context.fillStyle = colourOf(owners.values().next().value);
    else if (state > 0) context.fillStyle = paint.text;
    else context.fillStyle = state === -1 ? paint.cached : paint.free;
    context.fillRect(x, y, cell - gap, cell - gap);
    const holders = Math.max(state, owners ? owners.size : 0);
    if (holders > 1) {
      if (cell >= 12) {
        context.fillStyle = "#fff";
        context.fillText(holders > 99 ? "+" : holders, x + (cell - gap) / 2, y + (cell - gap) / 2 + 0.5);
      } else if (cell >= 3) {
        context.fillStyle = "#fff";
        context.fillRect(x + cell / 3, y + cell / 3, cell / 3, cell / 3);
      }
    }
    if (this.pointed === block) {
      context.globalAlpha = 1;
      context.strokeStyle = paint.text;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, cell - gap - 2, cell - gap - 2);
    }
  }

  summarise() {
    const { stats, about } = this.state;
    if (stats.blocks_total === undefined) return;
    const percent = Math.round((100 * stats.blocks_used) / stats.blocks_total);
    this.summary.textContent =
      `The KV cache is one pool of ${count(stats.blocks_total, "block")} of ${about.block_size} tokens. ` +
      `${percent} % are held: ${count(stats.blocks_used, "block")} by ${count(stats.running, "running sequence")}.`;
  }

  point(event) {
    if (!this.cell) return;
    const box = this.canvas.getBoundingClientRect();
    const block = Math.floor((event.clientY - box.top) / this.cell) * this.columns + Math.floor((event.clientX - box.left) / this.cell);
    if (block < this.state.blocks.length) this.show(block);
  }

  move(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key === "Escape") return this.light(null);
    const next = this.cursor + steps[event.key];
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (next >= 0 && next < this.state.blocks.length) this.show(next);
  }

  // Says who holds a block, and lights all blocks of its first holder.
  show(block) {
    if (this.pointed === block && this.cursor === block && this.lit) return;
    this.cursor = this.pointed = block;
    this.about.textContent = this.describe(block);
    const owners = this.state.owners.get(block);
    this.lit = owners ? this.state.blocksOf(owners.values().next().value) : null;
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
    const places = [...owners].slice(0, 4).map((key) => {
      const sequence = this.state.sequences.get(key);
      const tables = [...sequence.tables.values()];
      const table = tables.find((entries) => entries.includes(block));
      return `${labelOf(sequence)} (entry ${table.indexOf(block) + 1} of ${table.length} in its table)`;
    });
    const more = owners.size > 4 ? ` and ${owners.size - 4} others` : "";
    return `Block ${block} is held by ${places.join(", ")}${more}.`;
  }
}
