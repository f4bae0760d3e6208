"""POST /v1/embeddings on a fake model whose hidden states are hashes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.app.harness import Served, chat_body, error_of, raw_client, until
from tests.fakes import HIDDEN_SIZE, VOCAB_SIZE, hashed_embedding, hashed_state


def unit(text: str | list[int], width: int = HIDDEN_SIZE) -> Any:
    ids = text.encode() if isinstance(text, str) else text
    vector = hashed_embedding(hashed_state(ids))[:width].astype(np.float64)
    return vector / np.linalg.norm(vector)


async def embed(served: Served, given: Any, **fields: Any) -> Any:
    response = await served.post("embeddings", {"model": "fake", "input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("given", ["a text", ["a", "few", "texts"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_form_of_input(served: Served, given: Any) -> None:
    answer = await embed(served, given)
    inputs = (
        given
        if isinstance(given[0], list) or (isinstance(given, list) and isinstance(given[0], str))
        else [given]
    )
    assert answer["object"] == "list"
    assert [item["index"] for item in answer["data"]] == list(range(len(inputs)))
    for item, one in zip(answer["data"], inputs, strict=True):
        assert item["object"] == "embedding"
        assert item["embedding"] == pytest.approx(unit(one), abs=1e-6)
    tokens = sum(len(one.encode() if isinstance(one, str) else one) for one in inputs)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (tokens, 0, tokens)


async def test_openais_client(served: Served) -> None:
    """It asks for base64 and decodes it itself."""
    async with served.openai() as client:
        answer = await client.embeddings.create(model="fake", input=["one", "two"])
        shorter = await client.embeddings.create(model="fake", input="one", dimensions=3)
        plain = await client.embeddings.create(model="fake", input="one", encoding_format="float")
    assert [item.embedding for item in answer.data] == [
        pytest.approx(unit(x), abs=1e-6) for x in ("one", "two")
    ]
    assert shorter.data[0].embedding == pytest.approx(unit("one", 3), abs=1e-6)
    assert np.linalg.norm(shorter.data[0].embedding) == pytest.approx(1, abs=1e-6)
    assert plain.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-7)
    assert answer.usage.prompt_tokens == 6


async def test_base64_is_little_endian_float32(served: Served) -> None:
    answer = await embed(served, "x", encoding_format="base64")
    numbers = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert numbers == pytest.approx(unit("x"), abs=1e-6)


async def test_the_prefix_cache_is_used_and_changes_nothing(served: Served) -> None:
    text = "a long beginning that has several pages, then "
    first = await embed(served, text + "this")
    again, other = await embed(served, text + "this"), await embed(served, text + "that")
    assert again["data"] == first["data"]
    assert other["data"][0]["embedding"] == pytest.approx(unit(text + "that"), abs=1e-6)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again, other)]
    assert cached == [0, 48, 48]


async def test_the_end_of_a_long_input_can_be_kept(served: Served) -> None:
    answer = await embed(served, "abcdef", truncate_prompt_tokens=2)
    assert answer["data"][0]["embedding"] == pytest.approx(unit("ef"), abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [VOCAB_SIZE]}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "normalize": False}, "normalize"),
        ({"input": "x", "embed_dtype": "int8"}, "embed_dtype"),
        ({"input": "x", "messages": []}, "messages"),
    ],
)
async def test_what_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    response = await served.post("embeddings", {"model": "fake", **fields})
    assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_a_client_that_hangs_up(served: Served) -> None:
    before = served.engine.stats.finished["abort"]
    served.runner.pause()
    async with raw_client(served) as client:
        client.post("embeddings", {"model": "fake", "input": ["a", "b"]})
        await until(lambda: served.engine.load().running + served.engine.load().waiting == 2)
        await client.hang_up()
        await until(lambda: served.engine.stats.finished["abort"] == before + 2)


async def test_a_failure_is_told(served: Served) -> None:
    served.runner.fails = lambda batch: True
    response = await served.post("embeddings", {"model": "fake", "input": "x"})
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")


async def test_beside_an_answer_that_is_being_written(served: Served) -> None:
    async with served.http.stream(
        "POST", "/v1/chat/completions", json=chat_body(stream=True, ignore_eos=True, max_tokens=200)
    ) as stream:
        await anext(stream.aiter_lines())
        assert (await embed(served, "now"))["data"][0]["embedding"] == pytest.approx(unit("now"), abs=1e-6)
