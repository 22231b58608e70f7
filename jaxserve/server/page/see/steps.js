// The last steps as bars: their tokens under the token budget, and the time they took.

import { atNextFrame, colours, fit, whenResized } from "../canvas.js";
import { colourOf, count } from "./state.js";

const SHOWN = 200;
const LEFT = 46; // pixels for the scale
const [TOKENS_TALL, UP, DOWN] = [130, 60, 26];
const PERIOD_MS = 1000; // between changes of the text, so that it can be read

export class StepsView {
  constructor(state) {
    this.state = state;
    this.tokens = document.getElementById("steps");
    this.times = document.getElementById("times");
    this.about = document.getElementById("step-about");
    this.chosen = null; // number of the step that is told
    this.toldAt = -PERIOD_MS;
    this.draw = atNextFrame(() => this.drawNow());
    whenResized(this.tokens, this.draw);
    for (const canvas of [this.tokens, this.times]) {
      canvas.addEventListener("pointermove", (event) => this.point(event));
      canvas.addEventListener("pointerdown", (event) => this.point(event));
      canvas.addEventListener("pointerleave", () => this.choose(null));
    }
    this.tokens.addEventListener("keydown", (event) => this.move(event));
    this.tokens.addEventListener("blur", () => this.choose(null));
  }

  drawNow() {
    const { steps, about } = this.state;
    const palette = colours("decode", "padding", "device", "host", "soft", "line", "text");
    // Most steps are far below the budget: the scale is that of the largest step shown.
    const most = steps.reduce((most, step) => Math.max(most, step[2]), 16);
    this.drawTokens(steps, palette, most, about.token_budget);
    this.drawTimes(steps, palette);
    this.tell();
  }

  drawTokens(steps, palette, most, budget) {
    const { context, width } = fit(this.tokens, TOKENS_TALL);
    context.clearRect(0, 0, width, TOKENS_TALL);
    const scale = (TOKENS_TALL - 16) / most;
    for (const tokens of [most, most / 2, 0]) this.rule(context, palette, width, TOKENS_TALL, TOKENS_TALL - tokens * scale, tokens === 0 ? "0" : `${Math.round(tokens)}`);
    context.fillStyle = palette.soft;
    context.fillText(most === budget ? "the token budget" : `tokens; the budget is ${budget ?? "–"}`, LEFT + 4, 5);
    this.bars(steps, width, (x, wide, step) => {
      const [, decodes, padded, , , prompts] = step;
      let y = TOKENS_TALL;
      const part = (tokens, colour) => {
        y -= tokens * scale;
        context.fillStyle = colour;
        context.fillRect(x, y, wide, tokens * scale);
      };
      context.globalAlpha = this.chosen === null || this.chosen === step[0] ? 1 : 0.35;
      part(decodes, palette.decode);
      for (let i = 0; i < prompts.length; i += 2) part(prompts[i + 1], prompts[i] < 0 ? palette.soft : colourOf(prompts[i]));
      part(padded - decodes - promptsOf(step), palette.padding);
      context.globalAlpha = 1;
    });
  }

  // The device's time goes up, the host's down: they pass side by side, not one after the other.
  drawTimes(steps, palette) {
    const { context, width } = fit(this.times, UP + DOWN);
    context.clearRect(0, 0, width, UP + DOWN);
    const slowest = steps.reduce((most, step) => Math.max(most, step[3]), 1);
    const host = steps.reduce((most, step) => Math.max(most, step[4]), 0);
    const scale = Math.min((UP - 16) / slowest, host ? (DOWN - 2) / host : Infinity);
    this.rule(context, palette, width, UP + DOWN, UP - slowest * scale, duration(slowest));
    this.rule(context, palette, width, UP + DOWN, UP, "0");
    this.bars(steps, width, (x, wide, step) => {
      context.globalAlpha = this.chosen === null || this.chosen === step[0] ? 1 : 0.35;
      context.fillStyle = palette.device;
      context.fillRect(x, UP - step[3] * scale, wide, step[3] * scale);
      context.fillStyle = palette.host;
      context.fillRect(x, UP + 1, wide, Math.min(DOWN, step[4] * scale));
      context.globalAlpha = 1;
    });
  }

  rule(context, palette, width, height, y, text) {
    context.fillStyle = palette.line;
    context.fillRect(LEFT, Math.min(Math.round(y), height - 1), width - LEFT, 1);
    context.fillStyle = palette.soft;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(text, LEFT - 6, Math.max(6, Math.min(y, height - 6)));
    context.textAlign = "left";
  }

  bars(steps, width, bar) {
    const each = (width - LEFT) / SHOWN;
    steps.forEach((step, i) => bar(LEFT + Math.floor((SHOWN - steps.length + i) * each), Math.max(1, Math.floor(each) - (each > 3 ? 1 : 0)), step));
  }

  point(event) {
    const { left, width } = this.tokens.getBoundingClientRect();
    const place = Math.floor(((event.clientX - left - LEFT) / (width - LEFT)) * SHOWN);
    const { steps } = this.state;
    this.choose(steps[place - SHOWN + steps.length]?.[0] ?? null);
  }

  move(event) {
    const { steps } = this.state;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!by || !steps.length) return;
    event.preventDefault();
    const at = steps.findIndex((step) => step[0] === this.chosen);
    const next = at < 0 ? steps.length - 1 : Math.max(0, Math.min(steps.length - 1, at + by));
    this.choose(steps[next][0]);
  }

  choose(step) {
    if (this.chosen === step) return;
    this.chosen = step;
    this.toldAt = -PERIOD_MS;
    this.draw();
  }

  tell() {
    const { steps } = this.state;
    const now = performance.now();
    if (!steps.length || now - this.toldAt < PERIOD_MS) return;
    this.toldAt = now;
    const step = steps.find((step) => step[0] === this.chosen);
    this.about.textContent = step ? this.one(step) : this.all(steps);
    this.about.setAttribute("aria-live", step ? "polite" : "off");
  }

  one(step) {
    const [number, decodes, padded, device, host] = step;
    const names = [];
    for (let i = 0; i < step[5].length; i += 2) {
      const sequence = this.state.sequences.get(step[5][i]);
      names.push(`${step[5][i + 1]} of ${sequence ? sequence.name : "others"}`);
    }
    const prompts = promptsOf(step);
    return (
      `Step ${number}: ${count(decodes, "token")} decoded, ${prompts} of prompts${names.length ? ` (${names.join(", ")})` : ""}, ` +
      `${padded - decodes - prompts} of padding. ${device} ms on the device, ${host} ms on the host.`
    );
  }

  all(steps) {
    const mean = (of) => steps.reduce((sum, step) => sum + of(step), 0) / steps.length;
    const figure = (value) => value.toFixed(value < 10 ? 1 : 0);
    const [decodes, prompts, padded] = [mean((step) => step[1]), mean(promptsOf), mean((step) => step[2])];
    return (
      `A bar is a step of the model. In the mean of these ${steps.length}: ${figure(decodes)} tokens decoded, ${figure(prompts)} of prompts, ` +
      `${figure(padded - decodes - prompts)} of padding; ${figure(mean((step) => step[3]))} ms on the device, ${figure(mean((step) => step[4]))} ms on the host beside it.`
    );
  }
}

function duration(ms) {
  return ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function promptsOf(step) {
  return step[5].reduce((sum, tokens, i) => sum + (i % 2 ? tokens : 0), 0);
}
