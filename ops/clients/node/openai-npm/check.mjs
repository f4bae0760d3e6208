// OpenAI's own client for JavaScript.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { DESCRIBE, QUESTION, TOKENS, joined, prove } from "../served.mjs";

const City = z.strictObject({
  name: z.string().max(16),
  size: z.enum(["small", "large"]),
  people: z.int().min(0).max(10_000_000),
});

const connect = (server) => new OpenAI({ baseURL: server.openaiUrl, apiKey: "none", maxRetries: 0 });

const greedy = (server, question, fields = {}) => ({
  model: server.model,
  messages: [{ role: "user", content: question }],
  temperature: 0,
  max_tokens: TOKENS,
  ...fields,
});

async function chat(server) {
  const answer = await connect(server).chat.completions.create(greedy(server, QUESTION));
  const plain = await server.chat();
  assert.equal(answer.choices[0].message.content, plain.choices[0].message.content);
  assert.equal(answer.choices[0].finish_reason, "stop");
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  assert.equal(total_tokens, plain.usage.total_tokens);
}

async function stream(server) {
  const whole = await server.said();
  const chunks = await connect(server).chat.completions.create(greedy(server, QUESTION, { stream: true }));
  await joined(
    (async function* () {
      for await (const chunk of chunks) yield chunk.choices[0]?.delta.content;
    })(),
    whole,
  );
  const runner = connect(server).chat.completions.stream(greedy(server, QUESTION));
  assert.equal(await runner.finalContent(), whole);
}

async function parse(server) {
  const format = zodResponseFormat(City, "City");
  const answer = await connect(server).chat.completions.parse(
    greedy(server, DESCRIBE, { response_format: format }),
  );
  const plain = await server.said(DESCRIBE, { response_format: format });
  assert.deepEqual(answer.choices[0].message.parsed, City.parse(JSON.parse(plain)));
}

async function tools(server) {
  const fields = { tools: [zodFunction({ name: "City", parameters: City })], tool_choice: "required" };
  const asked = greedy(server, DESCRIBE, { ...fields, parallel_tool_calls: false });
  const plain = await server.chat(DESCRIBE, { ...fields, parallel_tool_calls: false });
  const wanted = City.parse(JSON.parse(plain.choices[0].message.tool_calls[0].function.arguments));
  const answer = await connect(server).chat.completions.parse(asked);
  assert.deepEqual(answer.choices[0].message.tool_calls[0].function.parsed_arguments, wanted);
  const final = await connect(server).chat.completions.stream(asked).finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.deepEqual(City.parse(JSON.parse(call.function.arguments)), wanted);
  assert.equal(final.choices[0].finish_reason, "tool_calls");
}

async function responses(server) {
  const asked = { model: server.model, input: QUESTION, temperature: 0, max_output_tokens: TOKENS };
  const whole = await server.said();
  const answer = await connect(server).responses.create(asked);
  assert.equal(answer.output_text, whole);
  const events = await connect(server).responses.create({ ...asked, stream: true });
  await joined(
    (async function* () {
      for await (const event of events) if (event.type === "response.output_text.delta") yield event.delta;
    })(),
    whole,
  );
}

async function errors(server) {
  await assert.rejects(
    connect(server).chat.completions.create(greedy(server, QUESTION, { top_p: 7 })),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "top_p",
  );
  await assert.rejects(
    connect(server).chat.completions.create({ ...greedy(server, QUESTION), model: "other" }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
}

await prove(new URL(import.meta.url), ["openai"], { chat, stream, parse, tools, responses, errors });
