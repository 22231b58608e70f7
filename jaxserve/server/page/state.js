// EngineState: puts the events of v1/engine/events together. docs/api.md describes them.

export class EngineState {
  constructor() {
    this.restart({});
  }

  restart(about) {
    this.about = about;
    const size = about.num_blocks || 0;
    this.blocks = new Int32Array(size); // the number of tables that hold each; -1: cached
    this.sequences = new Map(); // by key
    this.owners = new Map(); // block -> keys of the sequences whose tables hold it
    this.waiting = [];
    this.steps = [];
    this.stats = {};
    this.changed = new Set(); // blocks to draw anew
    this.happened = []; // texts for people
  }

  take(event) {
    if (event.first) this.restart(event);
    for (const [key, preempted] of event.ended || []) this.end(key, preempted);
    for (const [key, name, index, prompt, cached] of event.started || []) {
      this.sequences.set(key, { key, name, index, prompt, cached, computed: 0, known: prompt, tables: new Map(), released: 0 });
    }
    for (const table of event.tables || []) this.changeTable(table);
    for (const states of event.blocks || []) this.changeBlocks(states);
    const tokens = event.tokens || [];
    for (let i = 0; i < tokens.length; i += 3) {
      const sequence = this.sequences.get(tokens[i]);
      if (sequence) [sequence.computed, sequence.known] = [tokens[i + 1], tokens[i + 2]];
    }
    if (event.waiting) this.waiting = event.waiting;
    if (event.steps) this.steps = [...this.steps, ...event.steps].slice(-200);
    if (event.stats) this.changeStats(event.stats);
  }

  end(key, preempted) {
    const sequence = this.sequences.get(key);
    if (!sequence) return;
    for (const table of sequence.tables.values()) for (const block of table) this.disown(block, key);
    this.sequences.delete(key);
    if (preempted) this.happened.push(`${labelOf(sequence)} was preempted: its blocks were needed, and it waits to start again`);
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
        table.push(block);
        this.own(block, key);
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
        this.blocks[block] = state;
        this.changed.add(block);
      }
    }
  }

  changeStats(stats) {
    const before = this.stats;
    this.stats = stats;
    if (before.copies === undefined) return;
    const grew = (name) => stats[name] - before[name];
    if (grew("evictions") > 0) this.happened.push(`${count(grew("evictions"), "cached block")} evicted to make room`);
    if (grew("copies") > 0) this.happened.push(`${count(grew("copies"), "shared block")} copied before a write (copy-on-write)`);
    if (grew("compiles") > 0) this.happened.push(`${count(grew("compiles"), "program")} compiled after the start, which should not happen`);
  }

  own(block, key) {
    const keys = this.owners.get(block);
    if (keys) keys.add(key);
    else this.owners.set(block, new Set([key]));
    this.changed.add(block);
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
}

export function labelOf(sequence) {
  return sequence.index ? `${sequence.name} #${sequence.index}` : sequence.name;
}

export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// A colour for a sequence: neighbours differ much, and all have the same lightness.
export function hueOf(key) {
  return Math.round((key * 137.508 + 210) % 360);
}

export function colourOf(key) {
  return `hsl(${hueOf(key)} 62% 42%)`;
}
