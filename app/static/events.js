// Server-sent events over fetch: EventSource can neither POST nor send headers.

/** An answer that is not a success; `message` is the server's own. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** fetch that throws a ServerError for every status but success. */
export async function request(path, options = {}) {
  const response = await fetch(path, options);
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
