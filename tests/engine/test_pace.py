"""The limit on prompts beside decoding, on machines whose steps take known times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.pace import Pace


def flood(pace: Pace, steps: int, seconds: Callable[[int], float]) -> list[float]:
    """What those steps take that run prompts, of which there are always more; planned one ahead, as by the
    step loop."""
    planned = [pace.prompt_tokens]
    for _ in range(steps):
        planned.append(pace.prompt_tokens)
        pace.ran(prompt_tokens=planned[-2], seconds=seconds(planned[-2]))
    assert planned.count(0) <= steps / 30
    return [seconds(tokens) for tokens in planned if tokens]


def decode(pace: Pace, seconds: float) -> None:
    for _ in range(100):
        pace.ran(prompt_tokens=0, seconds=seconds)


def test_steps_soon_take_what_they_should() -> None:
    pace = Pace(0.05, 512)
    decode(pace, 0.01)
    steps = flood(pace, 100, lambda tokens: 0.01 + tokens * 0.0004)
    assert steps[0] == pytest.approx(0.2148)
    assert max(steps[2:]) <= 0.05
    # At 100 tokens a step takes 50 ms.
    assert min(steps[2:]) >= 0.05 / 1.3


def test_a_growing_context_makes_the_chunks_smaller() -> None:
    """Attention to 8,000 tokens makes each three times as dear: no step is much too long for that."""
    pace = Pace(0.05, 512)
    decode(pace, 0.01)
    done, times = 0, []
    flood(pace, 20, lambda tokens: 0.01 + tokens * 0.0004)
    while done < 8000:
        tokens = pace.prompt_tokens
        times.append(0.01 + tokens * 0.0004 * (1 + 2 * done / 8000))
        pace.ran(prompt_tokens=tokens, seconds=times[-1])
        done += tokens
    assert max(times) < 1.1 * 0.05
    assert sum(times) / len(times) > 0.8 * 0.05


def test_a_fast_machine_is_not_held_back() -> None:
    pace = Pace(0.05, 512)
    decode(pace, 0.005)
    assert set(flood(pace, 50, lambda tokens: 0.005 + tokens * 1e-5)) == {0.005 + 512 * 1e-5}


def test_where_decoding_is_slow_prompts_may_add_as_much() -> None:
    pace = Pace(0.05, 512)
    decode(pace, 0.2)
    steps = flood(pace, 100, lambda tokens: 0.2 + tokens * 0.0003)
    assert max(steps[2:]) <= 0.4
    assert min(steps[2:]) >= 0.35


def test_prompts_go_on_whatever_steps_take() -> None:
    """More rows than there were make decoding slower than was known; that is learned in time."""
    pace = Pace(0.05, 512)
    decode(pace, 0.01)
    steps = flood(pace, 2000, lambda tokens: 0.1 + tokens * 0.0004)
    assert steps[50] == 0.1 + 16 * 0.0004
    assert 0.2 / 1.3 < steps[-1] <= 0.2


def test_a_slow_moment_is_forgotten() -> None:
    pace = Pace(0.05, 512)
    decode(pace, 0.005)
    pace.ran(prompt_tokens=512, seconds=3.0)
    assert pace.prompt_tokens == 16
    flood(pace, 40, lambda tokens: 0.005 + tokens * 1e-5)
    assert pace.prompt_tokens == 512


def test_small_prompts_say_nothing_about_large_ones() -> None:
    pace = Pace(0.05, 512)
    pace.ran(prompt_tokens=512, seconds=0.1)
    limit = pace.prompt_tokens
    for _ in range(20):
        pace.ran(prompt_tokens=100, seconds=0.02)
    assert pace.prompt_tokens == limit


def test_no_aim_is_no_limit() -> None:
    pace = Pace(0.0, 512)
    flood(pace, 10, lambda tokens: 9.0)
    assert pace.prompt_tokens == 512
