"""What grammars dictate beside free text: as many tokens a step as nobody notices."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from engine.row_price import RowPrice
from tests.engine.test_constrained import PERSON, compiled, submit
from tests.engine.test_engine import running
from tests.fakes import collect, hashed_tokens


def learned(base_s: float, row_s: float, *, noise: float = 0.0, steps: int = 400) -> RowPrice:
    price, rng = RowPrice(), random.Random(0)
    for _ in range(steps):
        tokens = rng.randint(8, 16)
        price.learn(tokens, (base_s + row_s * tokens) * (1 + noise * rng.uniform(-1, 1)))
    return price


@pytest.mark.parametrize(
    ("base_s", "row_s", "tokens", "unnoticed"),
    [
        (0.0, 0.001, 8, 0),
        (0.0, 0.001, 210, 2),
        (0.010, 0.00005, 10, 2),
        (0.010, 0.000005, 10, 20),
        (0.010, 0.0, 10, 512),
        (0.010, -0.00001, 10, 512),
    ],
)
def test_as_many_as_make_a_hundredth_of_the_step(
    base_s: float, row_s: float, tokens: int, unnoticed: int
) -> None:
    assert learned(base_s, row_s).unnoticed(tokens, 512) == pytest.approx(
        unnoticed, abs=0 if row_s <= 0 else 1
    )


def test_noise_hardly_matters() -> None:
    assert learned(0.005, 0.0002, noise=0.3).unnoticed(8, 512) <= 1
    assert learned(0.010, 0.00001, noise=0.02).unnoticed(8, 512) >= 5


def test_all_is_free_until_the_price_is_known() -> None:
    price = RowPrice()
    assert price.unnoticed(8, 512) == 512
    for _ in range(9):
        price.learn(8, 0.01)
    assert price.unnoticed(8, 512) == 512, "steps of one size show no price"
    price.learn(16, 0.02)
    assert price.unnoticed(8, 512) == 0, "one other does"


def test_a_machine_that_changes_is_learned_anew() -> None:
    price = learned(0.0, 0.001)
    assert price.unnoticed(8, 512) == 0
    for step in range(2000):
        price.learn(8 + step % 3, 0.01)
    assert price.unnoticed(8, 512) > 5


@pytest.mark.parametrize(
    ("row_s", "free", "more"),
    [(0.001, 4, 0), (0.00004, 4, 2), (0.0, 4, None), (0.001, 0, None)],
    ids=["rows are dear", "rows are cheap", "rows are free", "nobody else is there"],
)
async def test_tokens_of_a_step(row_s: float, free: int, more: int | None) -> None:
    """`more`: than one for each sequence; None: whatever is dictated, of all three."""
    async with running(num_pages=800, max_running=16, max_context=400) as (engine, runner):
        grammar = await compiled(engine, PERSON)
        runner.seconds = lambda batch: 0.01 + row_s * len(batch.token_ids)
        for tokens in (1, 9) * 40:
            engine._scheduler.row_price.learn(tokens, 0.01 + row_s * tokens)
        runner.pause()
        others = [submit(engine, None, f"{n}", max_tokens=300, ignore_eos=True) for n in range(free)]
        requests = [submit(engine, grammar, text) for text in "xyz"]
        runner.resume()
        outputs = [(await collect(request))[0] for request in requests]
        for number, other in enumerate(others):
            assert (await collect(other))[0].token_ids == hashed_tokens(f"{number}".encode(), 300)
        steps = [np.diff(batch.query_starts).tolist() for batch in runner.batches]
    assert all(list(json.loads(output.text)) == PERSON["required"] for output in outputs)
    most = max(sum(rows) - len(rows) for rows in steps)
    key = len('","first_language":"')
    assert most == more if more is not None else most >= 3 * (key - 1)
    if free:
        # As fast as free text: a token a step. The last one needs none, and the first step reads the prompt.
        longest = max(len(output.token_ids) for output in outputs)
        assert sum(len(rows) > free for rows in steps) <= longest
