// Vercel's AI SDK, with its provider for OpenAI and with the one for servers that are like it.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { DESCRIBE, QUESTION, TOKENS, joined, prove } from "../served.mjs";

const City = z.strictObject({
  name: z.string().max(16),
  size: z.enum(["small", "large"]),
  people: z.int().min(0).max(10_000_000),
});

globalThis.AI_SDK_LOG_WARNINGS = false; // that generateObject is deprecated: it is asked with all the same

const GREEDY = { temperature: 0, maxOutputTokens: TOKENS, maxRetries: 0 };

function providers(server) {
  return {
    openai: createOpenAI({ baseURL: server.openaiUrl, apiKey: "none" }),
    compatible: createOpenAICompatible({
      name: "served",
      baseURL: server.openaiUrl,
      includeUsage: true,
      supportsStructuredOutputs: true,
    }),
  };
}

/** A model of each provider: chat and responses of OpenAI's, chat of the compatible one's. */
function models(server) {
  const { openai, compatible } = providers(server);
  return [openai.chat(server.model), openai.responses(server.model), compatible(server.model)];
}

function embeddingModels(server) {
  const { openai, compatible } = providers(server);
  return [openai.embeddingModel(server.model), compatible.embeddingModel(server.model)];
}

async function text(server) {
  const plain = await server.chat();
  for (const model of models(server)) {
    const answer = await generateText({ model, prompt: QUESTION, ...GREEDY });
    assert.equal(answer.text, plain.choices[0].message.content);
    assert.equal(answer.finishReason, "stop");
    assert.equal(answer.usage.totalTokens, plain.usage.total_tokens);
    assert.equal(answer.usage.totalTokens, answer.usage.inputTokens + answer.usage.outputTokens);
  }
}

async function stream(server) {
  const plain = await server.chat();
  for (const model of models(server)) {
    const answer = streamText({ model, prompt: QUESTION, ...GREEDY });
    await joined(answer.textStream, plain.choices[0].message.content);
    assert.equal((await answer.usage).totalTokens, plain.usage.total_tokens);
  }
}

async function object(server) {
  for (const model of models(server)) {
    const { object: city } = await generateObject({ model, prompt: DESCRIBE, schema: City, ...GREEDY });
    assert.deepEqual(City.parse(city), city);
    const streamed = streamObject({ model, prompt: DESCRIBE, schema: City, ...GREEDY });
    for await (const _ of streamed.partialObjectStream);
    assert.deepEqual(await streamed.object, city);
    const output = Output.object({ schema: City });
    assert.deepEqual((await generateText({ model, prompt: DESCRIBE, output, ...GREEDY })).output, city);
  }
}

async function tools(server) {
  const look_up = tool({ description: "A city.", inputSchema: City });
  for (const model of models(server)) {
    for (const toolChoice of ["required", { type: "tool", toolName: "look_up" }]) {
      const asked = { model, prompt: DESCRIBE, tools: { look_up }, toolChoice, ...GREEDY };
      const [call] = (await generateText(asked)).toolCalls;
      assert.equal(call.toolName, "look_up");
      assert.deepEqual(City.parse(call.input), call.input);
      const [streamed] = await streamText(asked).toolCalls;
      assert.deepEqual(streamed.input, call.input);
    }
  }
}

async function embeddings(server) {
  const values = ["Radishes are red.", QUESTION];
  const plain = await server.post("/v1/embeddings", { input: values, temperature: undefined, max_tokens: undefined });
  for (const model of embeddingModels(server)) {
    const answer = await embedMany({ model, values, maxRetries: 0 });
    answer.embeddings.forEach((vector, i) => {
      const wanted = plain.data[i].embedding;
      assert.equal(vector.length, wanted.length);
      assert.ok(vector.every((value, at) => Math.abs(value - wanted[at]) < 1e-6));
    });
  }
}

async function errors(server) {
  for (const model of models(server)) {
    await assert.rejects(
      generateText({ model, prompt: QUESTION, ...GREEDY, topP: 7 }),
      (error) => APICallError.isInstance(error) && error.statusCode === 400 && /top_p/.test(error.message),
    );
  }
}

await prove(
  new URL(import.meta.url),
  ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible"],
  { text, stream, object, tools, embeddings, errors },
);
