"""One part of the check, in a process of its own: prints its lines of the report.

usage: PYTHONPATH=. python ops/gpu/parts.py agreement small|large DTYPE KIND
                                            steps small|large KIND
                                            engine small|large
                                            kernels FAMILY
                                            tiles HEAD_SIZE PAGE_TYPE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final

import torch
from device import prepare


def agreement(shape: str, dtype: str, kind: str) -> Iterator[str]:
    """A whole decoder against transformers."""
    from models import SHAPES, agreement, kind_named  # noqa: PLC0415  # needs msgspec and transformers

    found = agreement(SHAPES[shape], getattr(torch, dtype), kind_named(kind))
    yield (
        f"{found.model}, {found.dtype}, beside `transformers` on the same random weights: logits differ by"
        f" {found.largest_difference:.2g} of their deviation at most; {found.equal_texts} of {found.texts}"
        " greedy texts are equal."
    )
    if kind == "none" and found.largest_difference > (0.01 if dtype == "float32" else 0.3):
        yield "FAILED: that is more than rounding does"
    if dtype == "float32" and found.equal_texts < found.texts:
        yield "FAILED: in float32 all texts have to be equal"


def steps(shape: str, kind: str) -> Iterator[str]:
    """Decode steps of a whole model."""
    from models import SHAPES, kind_named, step_times  # noqa: PLC0415  # as above

    yield f"A decode step of the {SHAPES[shape].name} model ({kind}) at 1024 tokens of context:"
    yield ""
    yield "| batch | ms as a graph | tokens/s | ms kernel by kernel |"
    yield "|---|---|---|---|"
    for size, us, launched_us in step_times(SHAPES[shape], kind_named(kind)):
        yield f"| {size} | {us / 1e3:.2f} | {size / us * 1e6:.0f} | {launched_us / 1e3:.2f} |"


def engine(shape: str) -> Iterator[str]:
    """The whole engine against transformers."""
    from whole_engine import compare  # noqa: PLC0415  # needs what the server needs

    equal, total, differing = compare(shape)
    yield (
        f"Engine, {shape} model in bfloat16, CUDA graphs, {total} greedy requests at once, beside"
        f" `transformers` on the same weights: {equal} texts equal; {differing} differ where"
        " `transformers` had two tokens within rounding of each other."
    )
    if equal + differing != total:
        yield f"FAILED: {total - equal - differing} texts are wrong"


def kernels(family: str) -> Iterator[str]:
    """Times against what the GPU can do."""
    from kernel_times import times  # noqa: PLC0415  # makes no sense before a GPU is known to be there
    from timing import peaks  # noqa: PLC0415

    limits = peaks()
    yield (
        f"{family}; copying reaches {limits.copy / 1e12:.2f} TB/s, bfloat16 products"
        f" {limits.product / 1e12:.0f} TFLOP/s. Medians of graph replays with a cold L2 cache."
    )
    yield ""
    yield "| kernel | shape | µs | rate | share of the measured peak | goal, µs | beside |"
    yield "|---|---|---|---|---|---|---|"
    for row in times(family, limits):
        rates, share = "", ""
        if row.bytes:
            achieved = row.bytes / (row.us * 1e-6)
            rates, share = f"{achieved / 1e12:.2f} TB/s", f"{achieved / limits.copy:.0%}"
        elif row.flops:
            achieved = row.flops / (row.us * 1e-6)
            rates, share = f"{achieved / 1e12:.0f} TFLOP/s", f"{achieved / limits.product:.0%}"
        goal = f"{row.goal_us:.1f} {'met' if row.us <= row.goal_us else 'missed'}" if row.goal_us else ""
        yield f"| {row.kernel} | {row.shape} | {row.us:.1f} | {rates} | {share} | {goal} | {row.beside} |"


def tiles(head_dim: str, page_type: str) -> Iterator[str]:
    """The fastest tiles, kept where `serve` finds them."""
    from kernels.gpu.tile_table import table_path, write  # noqa: PLC0415  # as above
    from kernels.gpu.tuning import tune  # noqa: PLC0415

    best = tune(int(head_dim), page_type, lambda _done: None)
    write(table_path(), best)
    for name, found in best.items():
        yield f"- {name}: {', '.join(map(str, found))}"


PARTS: Final[dict[str, Callable[..., Iterator[str]]]] = {
    "agreement": agreement,
    "steps": steps,
    "engine": engine,
    "kernels": kernels,
    "tiles": tiles,
}


def main(name: str, *arguments: str) -> None:
    """Print as it goes, so that what was found before a failure is seen."""
    prepare()
    failed = False
    for line in PARTS[name](*arguments):
        print(line, flush=True)
        failed |= line.startswith("FAILED")
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
