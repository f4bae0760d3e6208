// Server-sent events over fetch: EventSource can neither POST nor send headers.

import { $ } from "./dom.js";

/** An answer that is not a success; `message` is the server's own. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const KEY = "key";

function withKey(options) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...options, headers: { ...options.headers, Authorization: `Bearer ${key}` } } : options;
}

let asking;

/** Ask the person for a key, once for all requests that wait for it; it is forgotten with the tab. */
function newKey() {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, $("key").value.trim());
      $("key").value = "";
      asking = undefined;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** fetch that asks for a key where the server wants one, and throws a ServerError for every status but success. */
export async function request(path, options = {}) {
  let response = await fetch(path, withKey(options));
  while (response.status === 401) {
    await newKey();
    response = await fetch(path, withKey(options));
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not our error shape, so something between here and the server answered: the status has to do.
  }
  throw new ServerError(response.status, message);
}

export const postJson = (path, body, signal) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

/** The data of each event of a response, as they arrive. */
export async function* eventData(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += value;
      const events = buffer.split("\n\n");
      buffer = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) yield event.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
