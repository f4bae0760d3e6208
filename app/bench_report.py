"""What the benchmark measured: figures of one level of concurrency, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.bench_client import Answer
from app.bench_workload import Job


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one level of concurrency."""

    concurrency: int
    requests: int
    failed: int
    wall_s: float
    output_tokens: int
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    inter_token_p50_ms: float
    inter_token_p99_ms: float
    cached_share: float
    """Cached prompt tokens / prompt tokens."""
    valid_json_share: float | None
    """Answers that follow their schema / answers; None without schemas."""


def summarise(concurrency: int, done: Sequence[tuple[Job, Answer]], failed: int, wall_s: float) -> Level:
    """The figures of one level, from its answers."""
    answers = [answer for _, answer in done]
    first = [answer.arrivals[0] - answer.sent for answer in answers if answer.arrivals]
    gaps = [later - earlier for answer in answers for earlier, later in pairwise(answer.arrivals)]
    tokens = sum(answer.output_tokens for answer in answers)
    constrained = [(job.schema, answer.text) for job, answer in done if job.schema is not None]
    valid = sum(_is_valid(schema, text) for schema, text in constrained)
    return Level(
        concurrency=concurrency,
        requests=len(answers),
        failed=failed,
        wall_s=round(wall_s, 3),
        output_tokens=tokens,
        tokens_per_s=round(tokens / wall_s, 1),
        ttft_p50_ms=_percentile_ms(first, 0.50),
        ttft_p99_ms=_percentile_ms(first, 0.99),
        inter_token_p50_ms=_percentile_ms(gaps, 0.50),
        inter_token_p99_ms=_percentile_ms(gaps, 0.99),
        cached_share=_share(sum(a.cached_tokens for a in answers), sum(a.prompt_tokens for a in answers)),
        valid_json_share=_share(valid, len(constrained)) if constrained else None,
    )


def _percentile_ms(seconds: Sequence[float], quantile: float) -> float:
    """A quantile of `seconds` in ms, interpolated between neighbours; 0 of nothing."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    place = quantile * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return round(1e3 * (ordered[below] + (place - below) * (ordered[above] - ordered[below])), 2)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        Draft202012Validator(schema).validate(msgspec.json.decode(text))
    except (msgspec.DecodeError, ValidationError):
        return False
    return True


def table(levels: Sequence[Level]) -> Table:
    """The levels, for people; it fits into 80 columns."""
    schema = levels[0].valid_json_share is not None
    rows = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption="TTFT: time to first token; ITL: inter-token latency; both in ms",
        caption_justify="left",
    )
    headers = ("clients", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "cached")
    for header in (*headers, "valid") if schema else headers:
        rows.add_column(header, justify="right", no_wrap=True)
    for level in levels:
        cells = [
            f"{level.concurrency}",
            f"{level.tokens_per_s:.1f}",
            f"{level.ttft_p50_ms:.0f}",
            f"{level.ttft_p99_ms:.0f}",
            f"{level.inter_token_p50_ms:.1f}",
            f"{level.inter_token_p99_ms:.1f}",
            f"{level.cached_share:.0%}",
        ]
        if level.valid_json_share is not None:
            cells.append(f"{level.valid_json_share:.0%}")
        rows.add_row(*cells)
    return rows
