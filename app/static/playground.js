// Chat with the model: streaming, stopping, and the request behind it.

import { $, duration, el, plural } from "./dom.js";
import { asCurl, asPython, requestBody } from "./body.js";
import { startEditors } from "./editors.js";
import { eventData, postJson } from "./events.js";
import { appendTokens, explainTokens, hide } from "./tokens.js";

const EXAMPLES = [
  "Tell me a joke about radishes.",
  "Why do radishes taste sharp?",
  "Write a haiku about a garden in spring.",
];

export function startPlayground() {
  const chat = new Chat();
  startEditors();
  explainTokens($("conversation"));
  for (const text of EXAMPLES) {
    $("examples").append(el("button", { type: "button", onclick: () => chat.ask(text) }, text));
  }
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    chat.ask($("prompt").value.trim());
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") chat.stop();
  });
  $("stop").addEventListener("click", () => chat.stop());
  $("clear").addEventListener("click", () => chat.clear());
  startSnippet(chat);
}

class Chat {
  constructor() {
    this.messages = [];
    this.welcome = $("conversation").firstElementChild;
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    $("conversation").replaceChildren(this.welcome);
    $("usage").textContent = "";
  }

  async ask(text) {
    if (!text || this.running) return;
    $("prompt").value = "";
    this.welcome.remove();
    const { messages } = this; // clear() begins another conversation, even while this answer comes
    const question = { role: "user", content: text };
    messages.push(question);
    $("conversation").append(el("div", { className: "message user" }, text));
    const answer = new Answer();
    $("conversation").scrollTop = $("conversation").scrollHeight;
    this.running = new AbortController();
    this.#showRunning(true);
    try {
      await answer.read(await postJson("/v1/chat/completions", requestBody(messages), this.running.signal));
    } catch (error) {
      if (error.name === "AbortError") answer.end("stopped");
      else answer.end(error.message, true);
    }
    this.running = undefined;
    const waits = [$("stop"), document.body].includes(document.activeElement);
    this.#showRunning(false);
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
    else messages.splice(messages.indexOf(question), 1);
    if (waits) $("prompt").focus(); // whoever went elsewhere meanwhile is left there
  }

  #showRunning(on) {
    const sent = document.activeElement === $("send");
    $("send").hidden = on;
    $("stop").hidden = !on;
    if (on && sent) $("stop").focus();
  }
}

/** The message that an answer is written into while it arrives. */
class Answer {
  constructor() {
    this.text = "";
    this.calls = [];
    this.started = performance.now();
    this.content = el("span");
    this.node = el("div", { className: "message assistant", tabIndex: 0, "aria-busy": "true" }, this.content);
    $("conversation").append(this.node);
  }

  async read(response) {
    let reason = "";
    for await (const data of eventData(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) this.#usage(chunk.usage);
      for (const choice of chunk.choices) {
        this.#add(choice);
        reason = choice.finish_reason ?? reason;
      }
    }
    this.end(reason === "stop" ? "" : { length: "ended at the most tokens" }[reason] ?? "");
  }

  end(note, failed = false) {
    this.node.setAttribute("aria-busy", "false");
    if (note) this.node.append(el("span", { className: failed ? "end note failed" : "end note" }, note));
    this.#scroll();
    hide();
  }

  #add({ delta, logprobs }) {
    if (delta.reasoning_content) {
      this.thought ??= this.node.insertBefore(el("span", { className: "thought" }), this.content);
      this.thought.append(delta.reasoning_content);
    }
    if (delta.content) {
      this.text += delta.content;
      appendTokens(this.content, delta.content, logprobs?.content ?? []);
    }
    for (const part of delta.tool_calls ?? []) this.#call(part);
    this.#scroll();
  }

  #call({ index, function: called }) {
    const call = (this.calls[index] ??= { name: "", node: this.node.appendChild(el("code", { className: "call" })) });
    if (called.name) call.node.append(`${called.name} `);
    call.node.append(called.arguments ?? "");
  }

  #usage(usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const seconds = (performance.now() - this.started) / 1000;
    $("usage").textContent = `${plural(usage.prompt_tokens, "prompt token")}, ${cached} of them cached · `
      + `${plural(usage.completion_tokens, "token")} in ${duration(seconds)}`;
  }

  #scroll() {
    const list = $("conversation");
    if (list.scrollHeight - list.scrollTop - list.clientHeight < 160) list.scrollTop = list.scrollHeight;
  }
}

/** The request as code, kept up to date while it is open. */
function startSnippet(chat) {
  let write = asCurl;
  const show = () => {
    if (!$("request").open) return;
    const asked = $("prompt").value.trim() || "Tell me a joke about radishes.";
    try {
      $("snippet").textContent = write(requestBody([...chat.messages, { role: "user", content: asked }]));
    } catch (error) {
      $("snippet").textContent = error.message;
    }
  };
  const choose = (writer) => {
    write = writer;
    $("as-curl").setAttribute("aria-pressed", String(writer === asCurl));
    $("as-python").setAttribute("aria-pressed", String(writer === asPython));
    show();
  };
  $("as-curl").addEventListener("click", () => choose(asCurl));
  $("as-python").addEventListener("click", () => choose(asPython));
  $("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText($("snippet").textContent);
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  });
  $("request").addEventListener("toggle", show);
  $("playground").addEventListener("input", show);
  $("playground").addEventListener("change", show);
}
