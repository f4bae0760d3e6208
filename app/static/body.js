// The request that the playground's fields describe, as JSON and as code.

import { $ } from "./dom.js";
import { currentKey } from "./events.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed",
  "repetition_penalty", "presence_penalty", "frequency_penalty"];

/** The JSON in a text area; an Error for people where it is none. */
export function jsonIn(id) {
  try {
    return JSON.parse($(id).value);
  } catch (error) {
    throw new Error(`Not JSON: ${error.message}`, { cause: error });
  }
}

/** The body of the chat request that asks `messages` with everything that is set; an Error where an editor holds no JSON. */
export function requestBody(messages) {
  const system = $("system").value.trim();
  const model = $("model").textContent;
  const body = { model, messages: system ? [{ role: "system", content: system }, ...messages] : [...messages], stream: true };
  for (const name of NUMBERS) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  if ($("stop_at").value) body.stop = [$("stop_at").value];
  if ($("tools").value.trim()) {
    body.tools = jsonIn("tools");
    body.tool_choice = $("tool_choice").value;
  }
  if ($("format").value === "json_object") body.response_format = { type: "json_object" };
  if ($("format").value === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: jsonIn("schema") } };
  }
  if ($("probabilities").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  body.stream_options = { include_usage: true };
  return body;
}

export function asCurl(body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  const key = currentKey() ? "  -H 'Authorization: Bearer YOUR_KEY' \\\n" : "";
  return `curl ${location.origin}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n${key}  -d '${quoted}'\n`;
}

// Parameters that the official client does not know; it sends them as they are.
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty"]);

const PRINT_CALLS = [
  "        for call in choice.delta.tool_calls or []:",
  '            print(call.function.name or "", call.function.arguments or "", sep="", end="", flush=True)',
];

export function asPython(body) {
  const known = Object.entries(body).filter(([name]) => !EXTRA.has(name));
  const extra = Object.entries(body).filter(([name]) => EXTRA.has(name));
  const lines = known.map(([name, value]) => `    ${name}=${python(value, 1)},`);
  if (extra.length) lines.push(`    extra_body=${python(Object.fromEntries(extra), 1)},`);
  return [
    "from openai import OpenAI", "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key="${currentKey() ? "YOUR_KEY" : "unused"}")`,
    "stream = client.chat.completions.create(", ...lines, ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    '        print(choice.delta.content or "", end="", flush=True)',
    ...(body.tools ? PRINT_CALLS : []), "",
  ].join("\n");
}

/** A JSON value as a Python literal. */
function python(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonString(value);
  if (typeof value !== "object") return String(value);
  const isList = Array.isArray(value);
  const items = isList
    ? value.map((item) => python(item, depth + 1))
    : Object.entries(value).map(([key, item]) => `${pythonString(key)}: ${python(item, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  const flat = `${open}${items.join(", ")}${close}`;
  if (flat.length + depth * 4 < 90 && !flat.includes("\n")) return flat;
  const indent = "    ".repeat(depth + 1);
  return `${open}\n${items.map((item) => `${indent}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}

/** JSON's escapes are Python's too, but for surrogate pairs, which JSON.stringify leaves as characters. */
const pythonString = (text) => JSON.stringify(text);
