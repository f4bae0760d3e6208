"""instructor: every mode that OpenAI's servers have, and partial values."""

from __future__ import annotations

import json
from typing import Any

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, ConfigDict

from ops.clients.city import City
from ops.clients.served import DESCRIBE, TOKENS, Server, prove, refused, same

MESSAGES: list[Any] = [{"role": "user", "content": DESCRIBE}]


class Anything(BaseModel):
    """An object: the mode `JSON` puts the schema into the prompt, where no server can see it."""

    model_config = ConfigDict(extra="allow")


def connect(server: Server, mode: instructor.Mode) -> Any:
    return instructor.from_openai(
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0), mode=mode
    )


def ask(
    server: Server, mode: instructor.Mode, response_model: Any, method: str = "create", **fields: Any
) -> Any:
    """What instructor makes of the answer, which is checked against the same request by plain HTTP."""
    client = connect(server, mode)
    sent: dict[str, Any] = {}
    client.on("completion:kwargs", lambda *args, **kwargs: sent.update(kwargs))
    got = getattr(client.chat.completions, method)(
        model=server.model,
        messages=MESSAGES,
        response_model=response_model,
        temperature=0,
        max_tokens=TOKENS,
        max_retries=0,
        **fields,
    )
    got = got if isinstance(got, BaseModel) else list(got)
    sent.pop("stream", None)
    (choice,) = server.post("/v1/chat/completions", **sent)["choices"]
    message = choice["message"]
    calls = message.get("tool_calls") or [{"function": {"arguments": message["content"]}}]
    values = [json.loads(call["function"]["arguments"]) for call in calls]
    return got, values


def check_mode(server: Server, mode: instructor.Mode) -> None:
    city, (value,) = ask(server, mode, City)
    assert isinstance(city, City), city
    same(city.model_dump(), value)


def tools(server: Server) -> None:
    check_mode(server, instructor.Mode.TOOLS)
    check_mode(server, instructor.Mode.TOOLS_STRICT)


def json_mode(server: Server) -> None:
    anything, (value,) = ask(server, instructor.Mode.JSON, Anything, frequency_penalty=1)
    same(anything.model_dump(), value)


def json_schema(server: Server) -> None:
    check_mode(server, instructor.Mode.JSON_SCHEMA)


def partial(server: Server) -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        cities, (value,) = ask(server, mode, City, "create_partial")
        same(cities[-1].model_dump(), value)
        assert any(city.model_dump() != value for city in cities), cities


def errors(server: Server) -> None:
    error = refused(InstructorRetryException, lambda: ask(server, instructor.Mode.TOOLS, City, top_p=7))
    assert "top_p" in str(error)


if __name__ == "__main__":
    prove("instructor", tools, json_mode, json_schema, partial, errors)
