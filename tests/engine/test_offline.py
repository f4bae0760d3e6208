"""The engine in a script: `from engine import LLM`."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest
from outlines.types import CFG, Choice, JsonSchema, Regex

from engine import LLM, SamplingParams
from engine.errors import InvalidRequestError
from grammars.base import GrammarError
from tests.fakes import assert_quiet, fake_engine, hashed_embedding, hashed_state, hashed_tokens, say


class City(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=8)]
    kind: Literal["small", "large"]


@pytest.fixture
def llm() -> Iterator[LLM]:
    engine, _ = fake_engine(num_pages=256)
    with LLM.of(engine) as llm:
        yield llm
        assert_quiet(engine)


def expected(prompt: str, count: int) -> str:
    return bytes(hashed_tokens(prompt.encode(), count)).decode()


def test_prompts_are_completed_in_order(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(20)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=5, prompt_logprobs=0))
    assert [output.text for output in outputs] == [expected(prompt, 5) for prompt in prompts]
    assert [len(output.prompt_logprobs) for output in outputs] == [len(prompt) - 1 for prompt in prompts]
    (one,) = llm.generate("prompt 3")
    assert (one.text, one.finish_reason) == (expected("prompt 3", 16), "length")
    assert llm.generate(list(b"prompt 3"))[0].text == one.text
    assert [
        len(o.token_ids) for o in llm.generate(["a", "b"], [SamplingParams(max_tokens=n) for n in (2, 3)])
    ] == [2, 3]


def test_more_prompts_than_may_wait() -> None:
    engine, _ = fake_engine(num_pages=256, max_waiting=4, max_running=2)
    with LLM.of(engine) as llm:
        outputs = llm.generate([str(n) for n in range(30)], choices=2)
        assert [output.text for output in outputs] == [expected(str(n // 2), 16) for n in range(60)]


def test_embeddings_have_length_one(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(9)]
    states = [hashed_embedding(hashed_state(prompt.encode())) for prompt in prompts]
    for dimensions in (None, 3):
        vectors = llm.embed(prompts, dimensions=dimensions)
        for vector, state in zip(vectors, states, strict=True):
            kept = state[:dimensions].astype(np.float64)
            np.testing.assert_allclose(vector, kept / np.linalg.norm(kept), atol=1e-6)
    (one,) = llm.embed(list(b"prompt 3"))
    np.testing.assert_array_equal(one, llm.embed(prompts)[3])
    with pytest.raises(InvalidRequestError):
        llm.embed(["fine", ""])


def test_failures_are_raised_and_leave_nothing(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["fine", ""])
    unknown = JsonSchema('{"type": "object", "unevaluatedProperties": {"$ref": "#/x"}}')
    for prompts in ("x", ["x"] * 5):
        with pytest.raises(GrammarError, match="points to nothing") as refused:
            llm.generate(prompts, output_type=unknown)
        assert refused.value.pointer == "/unevaluatedProperties/$ref"
    with pytest.raises(ValueError, match="1 params"):
        llm.generate(["a", "b"], [SamplingParams(max_tokens=1)])


async def test_streaming_from_another_loop(llm: LLM) -> None:
    async def text(prompt: str) -> str:
        return "".join([update.text async for update in llm.stream(prompt, SamplingParams(max_tokens=30))])

    prompts = [f"stream {n}" for n in range(5)]
    assert await asyncio.gather(*map(text, prompts)) == [expected(prompt, 30) for prompt in prompts]
    stream = llm.stream("left early", SamplingParams(max_tokens=900))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


@pytest.mark.parametrize(
    ("output_type", "check"),
    [
        (City, City.model_validate_json),
        (dict, json.loads),
        (int, int),
        (bool, lambda text: {"True": True, "False": False}[text]),
        (Literal["yes", "no"], ["yes", "no"].index),
        (Choice(["red", "green"]), ["red", "green"].index),
        (Regex("[0-9]{3}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text)[0]),  # type: ignore[index]
        (JsonSchema({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}), json.loads),
        (CFG('start: "a" | "b" start'), lambda text: re.fullmatch("b*a", text)[0]),  # type: ignore[index]
        (list[bool], lambda text: json.loads(text.lower())),
    ],
)
def test_what_comes_out_is_of_its_type(llm: LLM, output_type: Any, check: Any) -> None:
    """Each fake token is replaced by an allowed one; whatever ends by itself is of the type."""
    prompts = [f"{n}" for n in range(6)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=200), output_type=output_type)
    whole = [output.text for output in outputs if output.finish_reason == "stop"]
    assert whole
    for text in whole:
        check(text)


def test_an_error_of_the_model_is_raised() -> None:
    engine, runner = fake_engine(script=say("x"))
    runner.fails = lambda batch: True
    with LLM.of(engine) as llm, pytest.raises(RuntimeError, match="the generation failed"):
        llm.generate("x")


def test_torch_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, engine; assert 'torch' not in sys.modules; engine.LLM; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shipped_model() -> None:
    with LLM(dtype="float32", kv_memory=64, max_context=256) as llm:
        greedy = SamplingParams(max_tokens=8, temperature=0.0)
        capitals = llm.generate(["The capital of France is", "The capital of Italy is"], greedy)
        assert "Paris" in capitals[0].text
        assert "Rome" in capitals[1].text
        (yes,) = llm.generate("Is water wet? Answer:", greedy, output_type=Literal["yes", "no"])
        assert yes.text in ("yes", "no")
    llm.close()
