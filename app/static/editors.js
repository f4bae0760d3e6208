// The schema and tools editors: a light that says whether the server would take what is written there.

import { $, plural } from "./dom.js";
import { jsonIn } from "./body.js";
import { postJson } from "./events.js";

const PAUSE_MS = 250;

const SCHEMA = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 20 },
    colour: { enum: ["red", "white", "black", "purple"] },
    weeks_to_harvest: { type: "integer", minimum: 3, maximum: 12 },
  },
  required: ["name", "colour", "weeks_to_harvest"],
  additionalProperties: false,
};

const TOOLS = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather at a place",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 30 }, unit: { enum: ["celsius", "fahrenheit"] } },
      required: ["city", "unit"],
      additionalProperties: false,
    },
  },
}];

export function startEditors() {
  $("schema").value = JSON.stringify(SCHEMA, null, 2);
  const schema = editor("schema", checkSchema);
  const tools = editor("tools", checkTools);
  const formats = { text: "free text", json_object: "any JSON object", json_schema: "a schema" };
  const showFormat = () => {
    $("schema-editor").hidden = $("format").value !== "json_schema";
    $("structured-note").textContent = formats[$("format").value];
    if (!$("schema-editor").hidden) schema();
  };
  $("format").addEventListener("change", showFormat);
  $("tools-example").addEventListener("click", () => {
    $("tools").value = JSON.stringify(TOOLS, null, 2);
    $("tools").dispatchEvent(new Event("input", { bubbles: true }));
  });
  showFormat();
  tools();
}

/** Checks a text area some time after the last change to it; only the newest verdict is shown. */
function editor(id, check) {
  let newest = 0;
  let timer;
  const run = async () => {
    const mine = ++newest;
    show(id, { state: "off", text: "Checking…" });
    const verdict = await check().catch((error) => ({ state: "bad", text: error.message }));
    if (mine === newest) show(id, verdict);
  };
  $(id).addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(run, PAUSE_MS);
  });
  return run;
}

function show(id, { state, text }) {
  $(`${id}-light`).dataset.state = state;
  $(`${id}-verdict`).textContent = text;
}

async function checkSchema() {
  return (await refusal(jsonIn("schema"))) ?? { state: "good", text: "Valid; answers will fit it." };
}

async function checkTools() {
  if (!$("tools").value.trim()) {
    $("tools-note").textContent = "none";
    return { state: "off", text: "No tools." };
  }
  $("tools-note").textContent = "not usable";
  const tools = jsonIn("tools");
  if (!Array.isArray(tools) || !tools.length) return { state: "bad", text: "It has to be an array of tools." };
  $("tools-note").textContent = plural(tools.length, "tool");
  for (const [index, tool] of tools.entries()) {
    const name = tool?.function?.name;
    if (tool?.type !== "function" || !name) {
      return { state: "bad", text: `Tool ${index + 1} needs type "function" and a function with a name.` };
    }
    const refused = await refusal(tool.function.parameters ?? {});
    if (refused) return { ...refused, text: `${name}: ${refused.text}` };
  }
  return { state: "good", text: `Valid; calls of ${tools.map((tool) => tool.function.name).join(", ")} will fit.` };
}

/** What the server has against a schema; undefined if it can enforce it. */
async function refusal(schema) {
  const verdict = await (await postJson("/page/schema", { schema })).json();
  return verdict.refusal === null ? undefined : { state: "bad", text: verdict.refusal };
}
