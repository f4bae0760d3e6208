"""langchain-openai: chat completions and responses, every way to structured output, tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from ops.clients.city import City
from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, joined, near, prove, refused, same

NAMED = {"type": "function", "function": {"name": "City"}}


def connect(server: Server, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.openai_url,
        api_key="none",
        model=server.model,
        max_tokens=TOKENS,
        temperature=0,
        max_retries=0,
        **options,
    )


def invoke(server: Server) -> None:
    whole = server.said()
    answer = connect(server).invoke(QUESTION)
    same(answer.content, whole)
    same(answer.response_metadata["finish_reason"], "stop")
    usage = answer.usage_metadata
    same(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
    same(asyncio.run(connect(server).ainvoke(QUESTION)).content, whole)
    same([answer.content for answer in connect(server).batch([QUESTION, QUESTION])], [whole, whole])
    same(connect(server, use_responses_api=True).invoke(QUESTION).text, whole)


def stream(server: Server) -> None:
    whole = server.said()
    for chat in (connect(server, stream_usage=True), connect(server, use_responses_api=True)):
        chunks = list(chat.stream(QUESTION))
        joined((chunk.text for chunk in chunks), whole)
        total = AIMessageChunk(content="")
        for chunk in chunks:
            total += chunk
        same(total.usage_metadata["total_tokens"], chat.invoke(QUESTION).usage_metadata["total_tokens"])


def structured_output(server: Server) -> None:
    chat = connect(server)
    for method in ("json_schema", "function_calling"):
        city = chat.with_structured_output(City, method=method).invoke(DESCRIBE)
        assert isinstance(city, City), city
    tool = convert_to_openai_tool(City)
    (call,) = server.chat(DESCRIBE, tools=[tool], tool_choice=NAMED)["message"]["tool_calls"]
    same(city, City.model_validate_json(call["function"]["arguments"]))
    question = f"{DESCRIBE} In JSON."
    anything = chat.with_structured_output(None, method="json_mode").invoke(question)
    same(anything, json.loads(server.said(question, response_format={"type": "json_object"})))
    responses = connect(server, use_responses_api=True)
    assert isinstance(responses.with_structured_output(City).invoke(DESCRIBE), City)


def tools(server: Server) -> None:
    chat = connect(server).bind_tools([City], tool_choice="City")
    answer = chat.invoke(DESCRIBE)
    (call,) = answer.tool_calls
    city = City.model_validate(call["args"])
    total = AIMessageChunk(content="")
    for chunk in chat.stream(DESCRIBE):
        total += chunk
    (streamed,) = total.tool_calls
    same((streamed["name"], streamed["args"]), ("City", city.model_dump()))
    told = [HumanMessage(DESCRIBE), answer, ToolMessage("Noted.", tool_call_id=call["id"])]
    assert connect(server).invoke(told).content


def completions(server: Server) -> None:
    prompt = "The capital of France is"
    plain = server.post("/v1/completions", prompt=prompt, temperature=0, max_tokens=8)
    text = plain["choices"][0]["text"]
    llm = OpenAI(base_url=server.openai_url, api_key="none", model=server.model, max_tokens=8, temperature=0)
    same(llm.invoke(prompt), text)
    joined(llm.stream(prompt), text)


def embeddings(server: Server) -> None:
    texts = ["Radishes are red.", QUESTION]
    model = OpenAIEmbeddings(
        base_url=server.openai_url,
        api_key="none",
        model=server.model,
        check_embedding_ctx_length=False,  # or it sends the ids of another model's tokenizer
    )
    near(model.embed_documents(texts), server.vectors(texts))
    near([model.embed_query(QUESTION)], server.vectors([QUESTION]))


def errors(server: Server) -> None:
    error = refused(openai.BadRequestError, lambda: connect(server).bind(top_p=7).invoke(QUESTION))
    same(error.param, "top_p")


if __name__ == "__main__":
    prove("langchain-openai", invoke, stream, structured_output, tools, completions, embeddings, errors)
