"""How long a launch takes on a GPU, and what this GPU could do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from device import DEVICE, IS_TRIAL, sized

_REPEATS: Final = 50
_FLUSH_BYTES: Final = 512 << 20
"""More than any L2 cache."""


def median_us(launch: Callable[[], object]) -> float:
    """Median microseconds of replays of one CUDA graph of the launch, each with a cold L2 cache."""
    if IS_TRIAL:
        launch()
        return 1.0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
    return statistics.median(_timed(graph.replay, flush) for _ in range(_REPEATS))


def eager_us(launch: Callable[[], object], repeats: int = 20) -> float:
    """Median microseconds of launches as they are, the host's part included where it is the longer one."""
    if IS_TRIAL:
        launch()
        return 1.0
    for _ in range(3):
        launch()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
    return statistics.median(_timed(launch, flush) for _ in range(repeats))


def _timed(run: Callable[[], object], flush: torch.Tensor) -> float:
    flush.zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this GPU reaches."""

    copy: float
    """Bytes a second read and written by a copy of 1 GiB."""
    product: float
    """Floating-point operations a second of a bfloat16 product of 8192 by 8192 matrices."""


def peaks() -> Peaks:
    """Measure both."""
    source = torch.empty(sized(1 << 30), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / (median_us(lambda: target.copy_(source)) * 1e-6)
    size = sized(8192)
    a, b = torch.randn(2, size, size, dtype=torch.bfloat16, device=DEVICE)
    return Peaks(copied, 2 * size**3 / (median_us(lambda: a @ b) * 1e-6))
