"""What the benchmark measured: figures of one level of concurrency, and their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.bench_client import Answer
from app.bench_workload import Job, Kind


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one level of concurrency."""

    concurrency: int
    kind: Kind | None = None
    """What was asked for, where kinds are compared."""
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
    of_free: float | None = None
    """Tokens per second / those of free text."""


@dataclass(slots=True)
class Run:
    """Answers, and the time in which they came."""

    done: list[tuple[Job, Answer]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Messages of the requests that failed."""
    wall_s: float = 0.0

    def add(self, later: Run) -> None:
        """Take in another run that followed this one."""
        self.done += later.done
        self.failed += later.failed
        self.wall_s += later.wall_s

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.output_tokens for _, answer in self.done) / self.wall_s

    def level(self, concurrency: int, kind: Kind | None = None, free: Run | None = None) -> Level:
        """The figures; `free`: the run of free text that they are compared with."""
        return _summarise(self, concurrency, kind, free)


def _summarise(run: Run, concurrency: int, kind: Kind | None, free: Run | None) -> Level:
    done = run.done
    answers = [answer for _, answer in done]
    first = [answer.arrivals[0] - answer.sent for answer in answers if answer.arrivals]
    gaps = [later - earlier for answer in answers for earlier, later in pairwise(answer.arrivals)]
    constrained = [(job.schema, answer.text) for job, answer in done if job.schema is not None]
    valid = sum(_is_valid(schema, text) for schema, text in constrained)
    return Level(
        concurrency=concurrency,
        kind=kind,
        requests=len(answers),
        failed=len(run.failed),
        wall_s=round(run.wall_s, 3),
        output_tokens=sum(answer.output_tokens for answer in answers),
        tokens_per_s=round(run.tokens_per_s, 1),
        ttft_p50_ms=_percentile_ms(first, 0.50),
        ttft_p99_ms=_percentile_ms(first, 0.99),
        inter_token_p50_ms=_percentile_ms(gaps, 0.50),
        inter_token_p99_ms=_percentile_ms(gaps, 0.99),
        cached_share=_share(sum(a.cached_tokens for a in answers), sum(a.prompt_tokens for a in answers)),
        valid_json_share=_share(valid, len(constrained)) if constrained else None,
        of_free=round(run.tokens_per_s / free.tokens_per_s, 3) if free and free.done else None,
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
    compared = levels[0].kind is not None
    rows = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption="TTFT: time to first token; ITL: inter-token latency; medians if not p99, in ms",
        caption_justify="left",
    )
    columns = _COMPARED if compared else _ALONE
    for header, _ in columns:
        rows.add_column(header, justify="right", no_wrap=True)
    for level in levels:
        rows.add_row(*(cell(level) for _, cell in columns))
    return rows


_Columns = tuple[tuple[str, Callable[[Level], str]], ...]
_ALONE: _Columns = (
    ("clients", lambda level: f"{level.concurrency}"),
    ("tokens/s", lambda level: f"{level.tokens_per_s:.1f}"),
    ("TTFT p50", lambda level: f"{level.ttft_p50_ms:.0f}"),
    ("p99", lambda level: f"{level.ttft_p99_ms:.0f}"),
    ("ITL p50", lambda level: f"{level.inter_token_p50_ms:.1f}"),
    ("p99", lambda level: f"{level.inter_token_p99_ms:.1f}"),
    ("cached", lambda level: f"{level.cached_share:.0%}"),
)
_COMPARED: _Columns = (
    ("clients", lambda level: f"{level.concurrency}"),
    ("answers", lambda level: level.kind or ""),
    ("tokens", lambda level: f"{level.output_tokens}"),
    ("tokens/s", lambda level: f"{level.tokens_per_s:.1f}"),
    ("of free", lambda level: "" if level.of_free is None else f"{level.of_free:.1%}"),
    ("TTFT", lambda level: f"{level.ttft_p50_ms:.0f}"),
    ("ITL", lambda level: f"{level.inter_token_p50_ms:.1f}"),
    ("p99", lambda level: f"{level.inter_token_p99_ms:.1f}"),
    ("valid", lambda level: "" if level.valid_json_share is None else f"{level.valid_json_share:.0%}"),
)
