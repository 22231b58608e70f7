// The last steps as bars: their tokens under the token budget, and the time they took.

import { colours, fit, whenResized, atNextFrame } from "./canvas.js";
import { colourOf } from "./state.js";

const SHOWN = 200;

export class StepsView {
  constructor(state) {
    this.state = state;
    this.tokens = document.getElementById("steps");
    this.times = document.getElementById("times");
    this.about = document.getElementById("step-about");
    this.draw = atNextFrame(() => this.drawNow());
    whenResized(this.tokens, this.draw);
  }

  drawNow() {
    const steps = this.state.steps;
    const palette = colours();
    // Most steps are far below the budget: the scale is that of the largest step shown.
    const most = Math.max(16, ...steps.map((step) => step[2]));
    this.bars(this.tokens, 110, (context, x, width, height, step) => {
      const [, decodes, padded, , , prompts] = step;
      let y = height;
      const part = (tokens, colour) => {
        const tall = (tokens / most) * height;
        y -= tall;
        context.fillStyle = colour;
        context.fillRect(x, y, width, tall);
      };
      part(decodes, palette.decode);
      let computed = decodes;
      for (let i = 0; i < prompts.length; i += 2) {
        part(prompts[i + 1], prompts[i] < 0 ? palette.soft : colourOf(prompts[i]));
        computed += prompts[i + 1];
      }
      part(padded - computed, palette.padding);
    });
    const slowest = Math.max(1, ...steps.map((step) => step[3] + step[4]));
    this.bars(this.times, 60, (context, x, width, height, step) => {
      const device = (step[3] / slowest) * height;
      const host = (step[4] / slowest) * height;
      context.fillStyle = palette.device;
      context.fillRect(x, height - device, width, device);
      context.fillStyle = palette.host;
      context.fillRect(x, height - device - host, width, host);
    });
    const last = steps[steps.length - 1];
    if (!last) return;
    const prompts = last[5].filter((_, i) => i % 2).reduce((sum, tokens) => sum + tokens, 0);
    this.about.textContent =
      `Step ${last[0]}: ${last[1]} tokens decoded, ${prompts} of prompts, ${last[2] - last[1] - prompts} of padding; ` +
      `budget ${this.state.about.token_budget}. Device ${last[3]} ms, host ${last[4]} ms beside it. ` +
      `Scales: ${most} tokens, ${slowest.toFixed(1)} ms.`;
  }

  bars(canvas, tall, bar) {
    const { context, width, height } = fit(canvas, tall);
    context.clearRect(0, 0, width, height);
    const each = width / SHOWN;
    const steps = this.state.steps;
    steps.forEach((step, i) => {
      const x = Math.floor((SHOWN - steps.length + i) * each);
      bar(context, x, Math.max(1, Math.floor(each) - (each > 3 ? 1 : 0)), height, step);
    });
    context.fillStyle = colours().line;
    context.fillRect(0, height - 1, width, 1);
  }
}
