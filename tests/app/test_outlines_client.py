"""Outlines' own models for vLLM and SGLang servers: what they send is enforced here."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import openai
import outlines
import pydantic
import pytest
from outlines.types import JsonSchema, Regex

from tests.app.harness import Served


class City(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=5)]
    size: Literal["small", "large"]


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served.openai() as client:
        yield client


@pytest.mark.parametrize("connect", [outlines.from_vllm, outlines.from_sglang])
@pytest.mark.parametrize(
    ("output_type", "check"),
    [
        (City, City.model_validate_json),
        (JsonSchema({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}), json.loads),
        (Regex("[0-9]{3}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text)[0]),  # type: ignore[index]
        (Literal["yes", "no"], ["yes", "no"].index),
    ],
)
async def test_what_comes_out_is_of_its_type(
    client: openai.AsyncOpenAI, connect: Any, output_type: Any, check: Any
) -> None:
    """The fake model says letters; only a constraint that arrived makes this of them."""
    model = connect(client, "fake")
    check(await model("hi", output_type, max_tokens=200))
    check("".join([piece async for piece in model.stream("hi", output_type, max_tokens=200)]))
