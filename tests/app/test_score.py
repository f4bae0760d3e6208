"""POST /v1/score on a fake model whose log-probabilities are hashes of what is before a token."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.app.harness import Served, error_of
from tests.fakes import VOCAB_SIZE, hashed_state

QUERY = "is it so, after all that was said about it? "


def logprob(before: bytes) -> float:
    return -(hashed_state(before) % 1000) / 64


async def score(served: Served, **fields: Any) -> Any:
    response = await served.post("score", fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_sglangs_form(served: Served) -> None:
    answer = await score(
        served, query=QUERY, items=["yes", "no"], label_token_ids=[65, 66], item_first=False, model="fake"
    )
    assert (answer["object"], answer["model"]) == ("scoring", "fake")
    for item, scores in zip(("yes", "no"), answer["scores"], strict=True):
        assert scores == pytest.approx([math.exp(logprob((QUERY + item).encode()))] * 2)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2 * len(QUERY) + 5, 0)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 44  # the second item shares eleven pages


async def test_softmax_and_order(served: Served) -> None:
    answer = await score(
        served, query="q", items="item", labels=["a", "bc"], apply_softmax=True, item_first=True
    )
    a, b = logprob(b"itemq"), logprob(b"itemq") + logprob(b"itemqb")
    assert answer["scores"][0] == pytest.approx([1 / (1 + math.exp(b - a)), 1 / (1 + math.exp(a - b))])


async def test_labels_of_several_tokens(served: Served) -> None:
    labels: list[str | list[int]] = ["yes", "yet", "n", [121, 101, 115], "yes, it is so"]
    answer = await score(served, query=QUERY, items=[""], labels=labels)
    (scores,), (told,) = answer["scores"], answer["logprobs"]
    for label, value, detail in zip(labels, scores, told, strict=True):
        ids = label.encode() if isinstance(label, str) else bytes(label)
        expected = [logprob(QUERY.encode() + ids[:at]) for at in range(len(ids))]
        assert detail["token_ids"] == list(ids)
        assert detail["token_logprobs"] == pytest.approx(expected)
        assert detail["logprob"] == pytest.approx(sum(expected))
        assert value == pytest.approx(math.exp(sum(expected)))
    # Three prompts, as some differ in their last token only; the query's own last token is run for each.
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * 40


async def test_token_ids(served: Served) -> None:
    answer = await score(served, query=[1, 2], items=[[3], [4, 5]], label_token_ids=[7])
    expected = [[math.exp(logprob(bytes(ids)))] for ids in ([1, 2, 3], [1, 2, 4, 5])]
    assert answer["scores"] == [pytest.approx(value) for value in expected]


async def test_a_label_that_is_given_twice(served: Served) -> None:
    answer = await score(served, query="q", items=["i"], label_token_ids=[9, 8, 9])
    assert answer["scores"][0] == pytest.approx([math.exp(logprob(b"qi"))] * 3)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"items": []}, 400, "items"),
        ({"items": [[1]]}, 400, "items"),
        ({"query": "", "items": [""]}, 400, "items"),
        ({"query": [], "items": [[]]}, 400, "items"),
        ({"query": [VOCAB_SIZE], "items": [[1]]}, 400, "items"),
        ({"query": "x" * 5000}, 400, "items"),
        ({"label_token_ids": [VOCAB_SIZE]}, 400, "label_token_ids"),
        ({"label_token_ids": []}, 400, "label_token_ids"),
        ({"label_token_ids": None}, 400, "label_token_ids"),
        ({"labels": ["a"]}, 400, "label_token_ids"),
        ({"label_token_ids": None, "labels": [""]}, 400, "labels"),
        ({"label_token_ids": None, "labels": [[VOCAB_SIZE]]}, 400, "labels"),
        ({"items": ["i"] * 2000}, 400, "items"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_what_is_refused(served: Served, fields: dict[str, Any], status: int, param: str) -> None:
    body = {"query": "q", "items": ["i"], "label_token_ids": [1], **fields}
    response = await served.post("score", body)
    assert (response.status_code, error_of(response)["param"]) == (status, param)
