// One row a request: when it was queued, prefilled, decoded, and when it stood still.

import { $, duration, el, legend, plural, requestColour, shortName, svg } from "./dom.js";

const MOST_ROWS = 14;
const REMEMBERED = 64;
const TOGETHER_S = 60;
const WIDTH = 1000;

export class Waterfall {
  #ended = [];

  constructor() {
    legend($("waterfall-legend"), [
      { name: "queued", colour: "queued" },
      { name: "prefill, a block a chunk", colour: "prefill" },
      { name: "first token", colour: "text", shape: "mark" },
      { name: "decode", colour: "decode" },
      { name: "computed again", colour: "recompute" },
      { name: "stalled", colour: "stalled", shape: "striped" },
    ]);
    $("waterfall").after(stripes());
  }

  /** A new connection tells all that is remembered again. */
  reset() {
    this.#ended = [];
  }

  draw({ picture, news }) {
    this.#ended = [...this.#ended, ...news.ended].slice(-REMEMBERED);
    const rows = [...this.#ended, ...picture.sequences].sort((one, other) => one.arrived - other.arrived);
    const newest = rows.at(-1)?.arrived ?? 0;
    const shown = rows.filter((row) => row.arrived > newest - TOGETHER_S || !row.finished).slice(-MOST_ROWS);
    const start = Math.min(...shown.map((row) => row.arrived));
    const end = Math.max(...shown.map((row) => row.finished || picture.now));
    const scale = WIDTH / Math.max(end - start, 0.001);
    $("waterfall").replaceChildren(...shown.map((row) => draw(row, start, scale, picture.now)));
    $("waterfall-note").textContent = shown.length ? `${duration(end - start)} from left to right` : "none yet";
  }
}

function draw(row, start, scale, now) {
  const x = (time) => (time - start) * scale;
  const spans = whole(row, now);
  const bars = spans.map(({ kind, start: from, end: to, tokens, steps, slowest }) => {
    const title = `${kind}: ${duration(to - from)}${tokens ? `, ${plural(tokens, "token")} in ${plural(steps, "step")}, the slowest ${duration(slowest)}` : ""}`;
    return svg("rect", { class: kind, x: x(from), y: 3, width: Math.max(x(to) - x(from), 1), height: 12 }, svg("title", {}, title));
  });
  if (row.first_token) bars.push(svg("rect", { class: "first-token", x: x(row.first_token) - 1, y: 1, width: 2, height: 16 }));
  const dot = el("span", { className: "dot" });
  dot.style.background = requestColour(row.request);
  const sum = (kind) => spans.filter((span) => span.kind === kind).reduce((total, span) => total + span.end - span.start, 0);
  const label = `${row.request}, ${row.state}: ${["queued", "prefill", "decode", "recompute", "stalled"]
    .filter((kind) => sum(kind) > 0).map((kind) => `${kind} ${duration(sum(kind))}`).join(", ")}`;
  return el("li", { "data-request": row.request, "data-state": row.state },
    el("span", { className: "who", title: row.request }, dot, el("span", {}, `${shortName(row.request)}${row.index ? `.${row.index}` : ""}`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} 18`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars),
    el("span", { className: "what" },
      `${row.prompt_tokens} in${row.cached_tokens ? `, ${row.cached_tokens} cached` : ""} · ${row.output_tokens} out · ${STATES[row.state]}`));
}

const STATES = { waiting: "waiting", running: "running", stop: "done", length: "at limit", abort: "stopped", error: "failed" };

/** A row's spans up to now or to its end. */
function whole({ spans, arrived, finished, state }, now) {
  const end = finished || now;
  const reached = spans.length ? spans.at(-1).end : arrived;
  if (state === "running" || (finished && spans.length) || end <= reached) return spans;
  return [...spans, { kind: spans.length ? "stalled" : "queued", start: reached, end, tokens: 0, steps: 0, slowest: 0 }];
}

/** The pattern that stalls are filled with. */
function stripes() {
  const picture = svg("svg", { width: 0, height: 0, "aria-hidden": "true" },
    svg("defs", {}, svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("path", { d: "M0 0V6", "stroke-width": 4 }))));
  picture.style.position = "absolute";
  return picture;
}
