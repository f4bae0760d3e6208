// Small helpers around the document.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with properties (`data-*` and `aria-*` ones as attributes) and children. */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children, (node, key, value) => { node[key] = value; });
}

/** An SVG element with attributes and children. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children, (node, key, value) => node.setAttribute(key, value));
}

function fill(node, properties, children, set) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (key.includes("-") || key === "role") node.setAttribute(key, value);
    else set(node, key, value);
  }
  node.append(...children);
  return node;
}

/** The value of one of the page's colours, as the theme in use has it. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A canvas's drawing context in CSS pixels, cleared. */
export function canvasContext(canvas, height = canvas.clientHeight) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Fill a list with the meaning of each colour and a number: `[{name, colour, value, shape}]`. */
export function legend(list, entries) {
  list.replaceChildren(...entries.map(({ name, colour: of, value, shape = "", id }) => {
    const swatch = el("span", { className: `swatch ${shape}` });
    swatch.style.setProperty("--colour", `var(--${of})`);
    return el("li", {}, swatch, name, ...(value === undefined ? [] : [el("b", id ? { id } : {}, String(value))]));
  }));
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** Seconds, for people. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

const MOST_HUES = 512;
const hues = new Map();
let coloured = 0;

/** A colour for a request, the same wherever it is drawn. */
export function requestColour(id) {
  if (!hues.has(id)) {
    hues.set(id, Math.round(coloured++ * 137.508) % 360); // the golden angle keeps neighbours apart
    if (hues.size > MOST_HUES) hues.delete(hues.keys().next().value);
  }
  return `hsl(${hues.get(id)} 65% 55%)`;
}

export const shortName = (id) => id.replace(/^(chatcmpl|cmpl)-/, "").replace(/^(.{6}).*?((-\d+)?)$/, "$1");
