// The two charts over time: generated tokens per second, and what each step was made of.

import { $, canvasContext, colour, duration, legend } from "./dom.js";

const MINUTE_S = 60;

export class RateChart {
  #points = [];

  draw({ picture }) {
    if (this.#points.at(-1)?.at > picture.now) this.#points = []; // another machine's clock
    if (picture.rates && this.#points.at(-1)?.at !== picture.now) {
      this.#points.push({ at: picture.now, value: picture.rates.generation_tokens });
    }
    while (this.#points.length && this.#points[0].at < picture.now - MINUTE_S) this.#points.shift();
    const { context, width, height } = canvasContext($("rate-chart"));
    const most = Math.max(1, ...this.#points.map((point) => point.value));
    const x = (point) => width - ((picture.now - point.at) / MINUTE_S) * width;
    const y = (point) => height - 3 - (point.value / most) * (height - 8);
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.75;
    context.beginPath();
    for (const point of this.#points) context.lineTo(x(point), y(point));
    context.stroke();
    if (this.#points.length < 2) return;
    context.lineTo(x(this.#points.at(-1)), height);
    context.lineTo(x(this.#points[0]), height);
    context.globalAlpha = 0.14;
    context.fillStyle = colour("accent");
    context.fill();
    context.globalAlpha = 1;
  }
}

const KINDS = ["decode", "prefill", "recompute", "cached"];
const COLOURS = { decode: "decode", prefill: "prefill", recompute: "recompute", cached: "cached" };
const BAR = 7;
const REMEMBERED = 400;

/** One bar a step. What the tree already had is drawn on top: it is work that was not done. */
export class StepsChart {
  #steps = [];

  /** A new connection tells all that is remembered again. */
  reset() {
    this.#steps = [];
  }

  draw({ news }) {
    this.#steps = [...this.#steps, ...news.steps].slice(-REMEMBERED);
    const { context, width, height } = canvasContext($("steps-chart"));
    const shown = this.#steps.slice(-Math.max(1, Math.floor(width / BAR)));
    const total = (step) => KINDS.reduce((sum, kind) => sum + step[kind], 0);
    const most = Math.max(8, ...shown.map(total));
    const left = width - shown.length * BAR;
    shown.forEach((step, index) => {
      let y = height;
      for (const kind of KINDS) {
        const size = step[kind] ? Math.max(1.5, (step[kind] / most) * (height - 14)) : 0;
        y -= size;
        context.fillStyle = colour(COLOURS[kind]);
        context.fillRect(left + index * BAR, y, BAR - 1.5, size);
      }
    });
    context.fillStyle = colour("soft");
    context.font = "11px system-ui, sans-serif";
    context.fillText(`${most} tokens`, 0, 10);
    context.fillRect(0, 13, width, 0.5);
    context.fillRect(0, height - 0.5, width, 0.5);
    this.#describe(shown);
  }

  #describe(shown) {
    const sums = Object.fromEntries(KINDS.map((kind) => [kind, shown.reduce((sum, step) => sum + step[kind], 0)]));
    const names = { decode: "decode", prefill: "prefill", recompute: "computed again", cached: "cached, not computed" };
    legend($("steps-legend"), KINDS.map((kind) => ({ name: names[kind], colour: COLOURS[kind], value: sums[kind] })));
    const seconds = shown.reduce((sum, step) => sum + step.end - step.start, 0) / (shown.length || 1);
    $("steps-note").textContent = shown.length
      ? `the last ${shown.length} of ${shown.at(-1).number.toLocaleString("en")}, ${duration(seconds)} each`
      : "none yet";
    $("steps-chart").setAttribute("aria-label", `Tokens of the last ${shown.length} steps: `
      + KINDS.map((kind) => `${sums[kind]} ${names[kind]}`).join(", "));
  }
}
