// A running server asked over plain HTTP: what its clients must get, without a client between.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

export const QUESTION = "What is the capital of France?";
export const DESCRIBE = "Bern is a city with 130000 people. Describe it.";
export const TOKENS = 120;

/** The reference; `openaiUrl` is what OpenAI's clients call the base URL. */
export class Server {
  constructor(url) {
    this.url = url.replace(/\/+$/, "");
    this.openaiUrl = `${this.url}/v1`;
  }

  static async at(url) {
    const server = new Server(url);
    const models = await (await fetch(`${server.openaiUrl}/models`)).json();
    server.model = models.data[0].id;
    return server;
  }

  async post(path, fields) {
    const response = await fetch(this.url + path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: this.model, temperature: 0, max_tokens: TOKENS, ...fields }),
    });
    assert.equal(response.status, 200, await response.clone().text());
    return response.json();
  }

  /** A greedy chat completion. */
  chat(question = QUESTION, fields = {}) {
    return this.post("/v1/chat/completions", { messages: [{ role: "user", content: question }], ...fields });
  }

  async said(question = QUESTION, fields = {}) {
    return (await this.chat(question, fields)).choices[0].message.content;
  }
}

/** Checks that a stream came in pieces, and that they make up the text that comes without streaming. */
export async function joined(pieces, whole) {
  const parts = [];
  for await (const piece of pieces) if (piece) parts.push(piece);
  assert.equal(parts.join(""), whole);
  assert.ok(parts.length > 1, "it came in one piece");
}

/** Runs each check on the server that the command line names, and tells what they prove. */
export async function prove(folder, packages, checks) {
  const server = await Server.at(process.argv[2]);
  for (const check of Object.values(checks)) await check(server);
  const lock = JSON.parse(await readFile(new URL("package-lock.json", folder)));
  const versions = packages.map((name) => `${name} ${lock.packages[`node_modules/${name}`].version}`);
  console.log(`${versions.join(", ")} (npm): ${Object.keys(checks).join(", ")}`);
}
