// EngineState: puts the events of v1/engine/events together. docs/api.md describes them.

const MARK_MS = 1600; // how long a change is marked
const UNKNOWN = -2;

export class EngineState {
  constructor() {
    this.restart({});
  }

  restart(about) {
    this.about = about;
    const size = about.num_blocks || 0;
    this.blocks = new Int32Array(size).fill(UNKNOWN); // the number of tables that hold each; -1: cached
    this.unknown = size - 1; // blocks that have not been told: until then, what comes is no news
    this.sequences = new Map(); // by key
    this.owners = new Map(); // block -> key of each sequence whose table holds it -> its place there
    this.waiting = [];
    this.steps = [];
    this.stats = {};
    this.saved = 0; // blocks that sharing saves: each block once less than it is held
    this.shared = 0; // blocks that several tables hold
    this.changed = new Set(); // blocks to draw anew
    this.marks = new Map(); // block -> what has just become of it, and until when it is shown
    this.copies = []; // {from, to, until}
    this.happened = []; // {kind, text, count}, for people
  }

  take(event) {
    if (event.first) this.restart(event);
    this.now = performance.now();
    for (const [key, preempted] of event.ended || []) this.end(key, preempted);
    for (const [key, name, index, prompt, cached] of event.started || []) {
      this.sequences.set(key, { key, name, index, prompt, cached, computed: 0, known: prompt, tables: new Map(), released: 0 });
      if (cached && !this.unknown) this.tell("found", `${labelOf({ name, index })} found the first ${count(cached, "token")} of its prompt in the prefix cache`);
    }
    for (const table of event.tables || []) this.changeTable(table);
    for (const states of event.blocks || []) this.changeBlocks(states);
    const tokens = event.tokens || [];
    for (let i = 0; i < tokens.length; i += 3) this.progress(tokens[i], tokens[i + 1], tokens[i + 2]);
    if (event.waiting) this.waiting = event.waiting;
    if (event.steps) this.steps = [...this.steps, ...event.steps].slice(-200);
    for (const [from, to] of event.copies || []) this.copy(from, to);
    if (event.stats) this.changeStats(event.stats);
  }

  tell(kind, text, number = 1) {
    this.happened.push({ kind, text, number });
  }

  mark(block, kind) {
    this.marks.set(block, { kind, until: this.now + MARK_MS });
    this.changed.add(block);
  }

  // Forgets marks and copies that have been shown long enough; whether any are left.
  forgetMarks(now) {
    for (const [block, { until }] of this.marks) {
      this.changed.add(block); // it fades, or is gone
      if (until <= now) this.marks.delete(block);
    }
    this.copies = this.copies.filter(({ until }) => until > now);
    return this.marks.size > 0 || this.copies.length > 0;
  }

  end(key, preempted) {
    const sequence = this.sequences.get(key);
    if (!sequence) return;
    for (const block of this.blocksOf(key)) {
      this.disown(block, key);
      if (preempted) this.mark(block, "preempted");
    }
    this.sequences.delete(key);
    if (preempted) this.tell("preempted", `${labelOf(sequence)} was preempted: its blocks were needed, and it waits to start again`);
  }

  copy(from, to) {
    this.mark(from, "copied");
    this.mark(to, "copied");
    this.copies.push({ from, to, until: this.now + MARK_MS });
    this.tell("copied", `${from} to ${to}`);
  }

  changeTable([key, group, released, first, ...entries]) {
    const sequence = this.sequences.get(key);
    if (!sequence) return;
    const table = sequence.tables.get(group) || [];
    sequence.tables.set(group, table);
    for (const block of table.splice(first)) this.disown(block, key);
    while (table.length < first) table.push(0);
    for (const entry of entries) {
      for (let i = 0; i < (entry > 0 ? 1 : -entry); i++) {
        const block = entry > 0 ? entry : table[table.length - 1] + 1;
        this.own(block, sequence, table.length);
        table.push(block);
      }
    }
    for (let i = 0; i < released; i++) {
      if (table[i]) this.disown(table[i], key);
      table[i] = 0;
    }
    sequence.released = Math.max(sequence.released, released);
  }

  changeBlocks([state, ...gaps]) {
    let block = 0;
    for (const gap of gaps) {
      for (let i = 0; i < (gap > 0 ? 1 : -gap); i++) {
        block += Math.max(gap, 1);
        const before = this.blocks[block];
        this.unknown -= before === UNKNOWN;
        this.saved += Math.max(state - 1, 0) - Math.max(before - 1, 0);
        this.shared += (state > 1) - (before > 1);
        this.blocks[block] = state;
        this.changed.add(block);
      }
    }
  }

  progress(key, computed, known) {
    const sequence = this.sequences.get(key);
    if (!sequence) return;
    const size = this.about.block_size;
    for (const table of sequence.tables.values()) {
      const from = Math.floor(Math.min(sequence.computed, computed) / size);
      for (let i = from; i * size < computed && i < table.length; i++) this.changed.add(table[i]);
    }
    [sequence.computed, sequence.known] = [computed, known];
  }

  changeStats(stats) {
    const before = this.stats;
    this.stats = stats;
    if (before.evictions === undefined) return;
    const grew = (name) => stats[name] - before[name];
    if (grew("evictions") > 0) this.tell("evicted", "", grew("evictions"));
    if (grew("compiles") > 0) this.tell("compiled", `${count(grew("compiles"), "program")} compiled after the start, which should not happen`);
  }

  // A block is in a sequence's table now; what that means is told by what it was before.
  own(block, sequence, place) {
    const keys = this.owners.get(block);
    if (keys) keys.set(sequence.key, place);
    else this.owners.set(block, new Map([[sequence.key, place]]));
    this.changed.add(block);
    if (this.unknown) return;
    const found = place * this.about.block_size < sequence.cached;
    if (this.blocks[block] === -1) this.mark(block, found ? "found" : "evicted");
    else this.mark(block, keys?.size ? "found" : "taken");
  }

  disown(block, key) {
    const keys = this.owners.get(block);
    if (!keys) return;
    keys.delete(key);
    if (!keys.size) this.owners.delete(block);
    this.changed.add(block);
  }

  // Blocks that a sequence holds.
  blocksOf(key) {
    const held = new Set();
    const sequence = this.sequences.get(key);
    if (sequence) for (const table of sequence.tables.values()) for (const block of table) if (block) held.add(block);
    return held;
  }

  // The key of the sequence whose colour a block has: the one that has held it longest.
  ownerOf(block) {
    return this.owners.get(block)?.keys().next().value;
  }

  // How full a block is, from 0 to 1.
  fillOf(block) {
    let most = 0;
    for (const [key, place] of this.owners.get(block) || []) {
      most = Math.max(most, this.fillAt(this.sequences.get(key), place));
    }
    return most;
  }

  // How full the block at a place of a sequence's table is.
  fillAt(sequence, place) {
    const size = this.about.block_size;
    return Math.max(0, Math.min(1, (sequence.computed - place * size) / size));
  }
}

export function labelOf(sequence) {
  return sequence.index ? `${sequence.name} #${sequence.index}` : sequence.name;
}

export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

const known = new Map(); // canvases ask for colours often

// A colour for a sequence: neighbours differ much, all have the same lightness, and none is the blue
// of decoding.
export function colourOf(key) {
  const hue = (290 + ((key * 179.23) % 290)) % 360;
  let colour = known.get(hue);
  if (!colour) known.set(hue, (colour = `oklch(0.56 0.15 ${hue.toFixed(1)})`));
  if (known.size > 1000) known.clear();
  return colour;
}
