// Figures of the last 15 minutes, from /metrics and from the engine's events.

import { request } from "../api.js";
import { colours, fit, whenResized } from "../canvas.js";

const PERIOD_MS = 2000;
const QUANTILES_OVER = 15; // polls, so that a quantile has something to count
const KEPT = (15 * 60 * 1000) / PERIOD_MS;

// The samples of Prometheus's text format, summed over labels but "le", under their names without
// the prefix (vllm:, jaxserve:). Histogram buckets are maps from upper bounds to counts.
export function parseMetrics(text) {
  const samples = {};
  const buckets = {};
  for (const line of text.split("\n")) {
    const found = /^(\w+:)?(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const [, , name, labels, value] = found;
    const bound = /(?:^|,)le="([^"]+)"/.exec(labels || "");
    if (bound) {
      const family = (buckets[name.replace(/_bucket$/, "")] ??= new Map());
      const upper = bound[1] === "+Inf" ? Infinity : Number(bound[1]);
      family.set(upper, (family.get(upper) || 0) + Number(value));
    } else {
      samples[name] = (samples[name] || 0) + Number(value);
    }
  }
  return { samples, buckets };
}

// The quantile of what a histogram has counted since `before`; null if that is nothing.
export function quantile(after, before, share) {
  if (!after) return null;
  const bounds = [...after.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => after.get(bound) - (before?.get(bound) || 0));
  const total = counts[counts.length - 1];
  if (!total) return null;
  let [lower, below] = [0, 0];
  for (let i = 0; i < bounds.length; i++) {
    if (counts[i] >= share * total) {
      if (bounds[i] === Infinity) return lower;
      return lower + ((share * total - below) / (counts[i] - below)) * (bounds[i] - lower);
    }
    [lower, below] = [bounds[i], counts[i]];
  }
  return lower;
}

const SPECS = [
  ["Output tokens a second", (v) => v.toFixed(v < 100 ? 1 : 0), (now, last, s) => (now.samples.generation_tokens_total - last.samples.generation_tokens_total) / s],
  ["Prompt tokens a second", (v) => v.toFixed(v < 100 ? 1 : 0), (now, last, s) => (now.samples.prompt_tokens_total - last.samples.prompt_tokens_total) / s],
  ["Time to first token, median", ms, (now, last) => quantile(now.buckets.time_to_first_token_seconds, last.buckets.time_to_first_token_seconds, 0.5)],
  ["Time to first token, 95 %", ms, (now, last) => quantile(now.buckets.time_to_first_token_seconds, last.buckets.time_to_first_token_seconds, 0.95)],
  ["Between tokens, median", ms, (now, last) => quantile(now.buckets.inter_token_latency_seconds, last.buckets.inter_token_latency_seconds, 0.5)],
  ["Between tokens, 95 %", ms, (now, last) => quantile(now.buckets.inter_token_latency_seconds, last.buckets.inter_token_latency_seconds, 0.95)],
  ["Running", whole, (now) => now.samples.num_requests_running],
  ["Waiting", whole, (now) => now.samples.num_requests_waiting],
  ["KV cache held", percent, (now) => now.samples.kv_cache_usage_perc],
  ["Prompt tokens found in the cache", percent, (now, last) => share(now, last, "prefix_cache_hits_total", "prefix_cache_queries_total")],
  ["Waste: empty places in blocks, a sequence", (v) => v.toFixed(1), (now, last, s, state) => waste(state)],
  ["Padding of the last steps", percent, (now, last, s, state) => padding(state)],
  ["Preemptions", whole, (now) => now.samples.num_preemptions_total],
  ["Blocks copied before a write", whole, (now) => now.samples.block_copies_total],
  ["Cached blocks evicted", whole, (now) => now.samples.prefix_cache_evictions_total],
  ["Compilations after start", whole, (now) => now.samples.compiles_after_ready_total],
];

function whole(value) {
  return Math.round(value).toLocaleString("en");
}

function percent(value) {
  return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
}

function ms(seconds) {
  return seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`;
}

function share(now, last, part, all) {
  const total = now.samples[all] - last.samples[all];
  return total > 0 ? (now.samples[part] - last.samples[part]) / total : null;
}

// Tokens that fit into a sequence's blocks beyond those that are there, in the mean.
function waste(state) {
  let [empty, sequences] = [0, 0];
  for (const sequence of state.sequences.values()) {
    const table = sequence.tables.get(0);
    // A prompt has blocks for all its tokens before they are computed.
    if (!table || sequence.computed < sequence.prompt) continue;
    empty += Math.max(0, table.length * state.about.block_size - sequence.computed);
    sequences++;
  }
  return sequences ? empty / sequences : null;
}

function padding(state) {
  let [padded, computed] = [0, 0];
  for (const [, decodes, all, , , prompts] of state.steps) {
    padded += all;
    computed += decodes + prompts.reduce((sum, tokens, i) => sum + (i % 2 ? tokens : 0), 0);
  }
  return padded ? 1 - computed / padded : null;
}

export class FiguresView {
  constructor(state) {
    this.state = state;
    this.figures = SPECS.map(([title, format, read]) => new Figure(title, format, read));
    document.getElementById("figures").append(...this.figures.map((figure) => figure.element));
    this.read = []; // the last scrapes, the newest last
    this.poll();
  }

  async poll() {
    if (!document.hidden) {
      try {
        const response = await request("metrics", { headers: { Accept: "text/plain" } });
        const now = { ...parseMetrics(await response.text()), at: performance.now() };
        const last = this.read.at(-1);
        if (last) {
          const before = { samples: last.samples, buckets: this.read[0].buckets };
          const seconds = (now.at - last.at) / 1000;
          for (const figure of this.figures) figure.add(figure.read(now, before, seconds, this.state));
        }
        this.read = [...this.read, now].slice(-QUANTILES_OVER);
      } catch {
        // The connection's state is shown elsewhere.
      }
    }
    setTimeout(() => this.poll(), PERIOD_MS);
  }
}

class Figure {
  constructor(title, format, read) {
    [this.format, this.read, this.values] = [format, read, []];
    this.element = document.createElement("div");
    this.element.className = "figure";
    const heading = document.createElement("h3");
    heading.textContent = title;
    this.value = document.createElement("p");
    this.value.textContent = "–";
    this.range = document.createElement("small");
    this.range.textContent = "\u00a0";
    this.box = document.createElement("div");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.box.append(this.canvas);
    this.element.append(heading, this.value, this.box, this.range);
    whenResized(this.canvas, () => this.draw());
  }

  add(value) {
    this.values.push(Number.isFinite(value) ? value : null);
    if (this.values.length > KEPT) this.values.shift();
    const known = this.values.filter((each) => each !== null);
    this.value.textContent = Number.isFinite(value) ? this.format(value) : "–";
    if (known.length) this.range.textContent = `${this.format(known.reduce((a, b) => Math.min(a, b)))} to ${this.format(known.reduce((a, b) => Math.max(a, b)))}`;
    this.draw();
  }

  draw() {
    const { context, width, height } = fit(this.canvas, 34);
    const palette = colours("accent", "line");
    context.clearRect(0, 0, width, height);
    context.fillStyle = palette.line;
    context.fillRect(0, height - 1, width, 1);
    const most = this.values.reduce((a, b) => Math.max(a, b ?? 0), 0) || 1;
    // A little history fills the width; all of it is 15 minutes.
    const shown = Math.max(30, this.values.length);
    context.strokeStyle = context.fillStyle = palette.accent;
    context.lineWidth = 1.5;
    context.beginPath();
    let drawing = false;
    this.values.forEach((value, i) => {
      if (value === null) {
        drawing = false;
        return;
      }
      const x = ((shown - this.values.length + i + 0.5) / shown) * width;
      const y = height - 2 - (value / most) * (height - 4);
      if (drawing) context.lineTo(x, y);
      else context.moveTo(x - 1, y), context.lineTo(x, y);
      drawing = true;
    });
    context.stroke();
  }
}
