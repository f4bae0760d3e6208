"""Anthropic's official client: messages, streams, tools, counted tokens."""

from __future__ import annotations

import anthropic
from anthropic.types import MessageParam, ToolParam

from ops.clients.city import City
from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, joined, prove, refused, same

GREEDY = {"temperature": 0}
"""The parameter, which this client no longer has a name for."""
MESSAGES: list[MessageParam] = [{"role": "user", "content": QUESTION}]
DESCRIBED: list[MessageParam] = [{"role": "user", "content": DESCRIBE}]
TOOL: ToolParam = {"name": "City", "description": "A city.", "input_schema": City.model_json_schema()}


def connect(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def messages(server: Server) -> None:
    message = connect(server).messages.create(
        model=server.model, max_tokens=TOKENS, messages=MESSAGES, extra_body=GREEDY
    )
    (block,) = message.content
    assert block.type == "text"
    same((block.text, message.stop_reason), (server.said(), "end_turn"))
    usage = server.whole_chat(messages=MESSAGES, max_tokens=TOKENS)["usage"]
    same(message.usage.output_tokens, usage["completion_tokens"])
    same(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0), usage["prompt_tokens"])


def stream(server: Server) -> None:
    with connect(server).messages.stream(
        model=server.model, max_tokens=TOKENS, messages=MESSAGES, extra_body=GREEDY
    ) as events:
        joined(events.text_stream, server.said())
        final = events.get_final_message()
    same(final.stop_reason, "end_turn")
    usage = server.whole_chat(messages=MESSAGES, max_tokens=TOKENS)["usage"]
    same(final.usage.output_tokens, usage["completion_tokens"])


def tools(server: Server) -> None:
    client = connect(server)
    function = {"name": "City", "description": "A city.", "parameters": City.model_json_schema()}
    named = {"type": "function", "function": {"name": "City"}}
    plain = server.chat(DESCRIBE, tools=[{"type": "function", "function": function}], tool_choice=named)
    (wanted,) = plain["message"]["tool_calls"]
    city = City.model_validate_json(wanted["function"]["arguments"])
    message = client.messages.create(
        model=server.model,
        max_tokens=TOKENS,
        messages=DESCRIBED,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "City"},
    )
    (call,) = message.content
    assert call.type == "tool_use"
    same((City.model_validate(call.input), message.stop_reason), (city, "tool_use"))
    with client.messages.stream(
        model=server.model,
        max_tokens=TOKENS,
        messages=DESCRIBED,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "City"},
    ) as events:
        joined((event.partial_json for event in events if event.type == "input_json"), city.model_dump_json())
        (streamed,) = events.get_final_message().content
    assert streamed.type == "tool_use"
    same(City.model_validate(streamed.input), city)
    told: list[MessageParam] = [
        *DESCRIBED,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Noted."}]},
    ]
    after = client.messages.create(
        model=server.model, max_tokens=8, messages=told, extra_body=GREEDY, tools=[TOOL]
    )
    assert after.usage.output_tokens == 8 or after.stop_reason == "end_turn"


def count_tokens(server: Server) -> None:
    counted = connect(server).messages.count_tokens(model=server.model, messages=MESSAGES)
    usage = server.whole_chat(messages=MESSAGES, max_tokens=1)["usage"]
    same(counted.input_tokens, usage["prompt_tokens"])


def errors(server: Server) -> None:
    def ask(model: str, **body: float) -> anthropic.types.Message:
        return connect(server).messages.create(
            model=model, max_tokens=TOKENS, messages=MESSAGES, extra_body=body
        )

    bad = refused(anthropic.BadRequestError, lambda: ask(server.model, top_p=7))
    assert bad.status_code == 400
    assert "top_p" in str(bad)
    assert refused(anthropic.NotFoundError, lambda: ask("other")).status_code == 404


if __name__ == "__main__":
    prove("anthropic", messages, stream, tools, count_tokens, errors)
