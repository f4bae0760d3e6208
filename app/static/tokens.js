// An answer whose tokens show their probabilities: by pointer, or by arrow keys once the answer is focused.

import { $, el } from "./dom.js";

const details = new WeakMap();

/** Append one chunk of an answer to `parent`, token by token where the chunk's tokens spell its text. */
export function appendTokens(parent, text, entries) {
  if (!entries.length) {
    parent.append(text);
  } else if (entries.map((entry) => entry.token).join("") === text) {
    for (const entry of entries) parent.append(token(entry.token, [entry]));
  } else {
    parent.append(token(text, entries)); // a character of several tokens, or a stop string held back
  }
}

function token(text, entries) {
  const span = el("span", { className: "token" }, text);
  const least = Math.min(...entries.map((entry) => Math.exp(entry.logprob)));
  span.style.setProperty("--doubt", ((1 - least) ** 2).toFixed(3));
  details.set(span, entries);
  return span;
}

/** Make the tokens within `container` tell about themselves. */
export function explainTokens(container) {
  container.addEventListener("pointerover", (event) => {
    if (details.has(event.target)) show(event.target);
  });
  container.addEventListener("pointerout", hide);
  container.addEventListener("focusout", (event) => {
    event.target.querySelector?.(".current")?.classList.remove("current");
    hide();
  });
  container.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const message = event.target;
    if (!step || !message.classList.contains("assistant")) return;
    const tokens = [...message.querySelectorAll(".token")];
    if (!tokens.length) return;
    event.preventDefault();
    const at = tokens.findIndex((item) => item.classList.contains("current"));
    const next = tokens[Math.min(Math.max(at + step, 0), tokens.length - 1)];
    tokens[at]?.classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest" });
    show(next);
    message.setAttribute("aria-description", spoken(next));
  });
}

function show(span) {
  const tooltip = $("tooltip");
  tooltip.replaceChildren(...details.get(span).map(table));
  tooltip.hidden = false;
  const at = span.getBoundingClientRect();
  const { width, height } = tooltip.getBoundingClientRect();
  const below = at.bottom + 6 + height < innerHeight;
  tooltip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  tooltip.style.top = `${below ? at.bottom + 6 : at.top - height - 6}px`;
}

export const hide = () => { $("tooltip").hidden = true; };

const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;
const visible = (text) => (text === "" ? "(nothing)" : text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

function table(entry) {
  const likeliest = entry.top_logprobs.some((other) => other.token === entry.token)
    ? entry.top_logprobs
    : [entry, ...entry.top_logprobs];
  return el("table", { className: "alternatives" }, ...likeliest.map((other) => el(
    "tr",
    { className: other.token === entry.token ? "chosen" : "" },
    el("td", {}, visible(other.token)),
    el("td", {}, el("meter", { value: Math.exp(other.logprob), "aria-hidden": "true" })),
    el("td", {}, percent(other.logprob)),
  )));
}

const spoken = (span) => details.get(span).map((entry) => `${entry.token}: ${percent(entry.logprob)}`).join(", ");
