// Server-sent events over fetch: EventSource can neither POST nor send headers.

import { $ } from "./dom.js";

/** An answer that is not a success; `message` is the server's own. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const KEY = "api-key";

/** The key that was entered in this tab; null before. */
export const currentKey = () => sessionStorage.getItem(KEY);

/** A header takes bytes, so a key goes as its UTF-8. */
function withKey(options, key) {
  if (!key) return options;
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  return { ...options, headers: { ...options.headers, Authorization: `Bearer ${bytes}` } };
}

let asking;

/** Ask the person for a key, once for all requests that wait for it; it is forgotten with the tab. */
function newKey() {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    const refused = currentKey() !== null;
    $("key-refused").textContent = refused ? "The server does not know that key." : "";
    $("key").setAttribute("aria-invalid", String(refused));
    dialog.addEventListener("close", () => {
      const key = $("key").value.trim();
      if (key) sessionStorage.setItem(KEY, key); // else it was closed: the next answer asks again
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
  let key = currentKey();
  let response = await fetch(path, withKey(options, key));
  while (response.status === 401) {
    if (key === currentKey()) await newKey(); // else another one was entered meanwhile
    key = currentKey();
    response = await fetch(path, withKey(options, key));
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
