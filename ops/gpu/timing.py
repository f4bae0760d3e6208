"""How long a launch takes on a GPU, and what this GPU could do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

import torch

_REPEATS: Final = 50
_FLUSH_BYTES: Final = 512 << 20
"""More than any L2 cache."""


def median_us(launch: Callable[[], object]) -> float:
    """Median microseconds of replays of one CUDA graph of the launch, each with a cold L2 cache."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return statistics.median(_timed(graph.replay, flush) for _ in range(_REPEATS))


def eager_us(launch: Callable[[], object], repeats: int = 20) -> float:
    """Median microseconds of launches as they are, the host's part included where it is the longer one."""
    for _ in range(3):
        launch()
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return statistics.median(_timed(launch, flush) for _ in range(repeats))


def _timed(run: Callable[[], object], flush: torch.Tensor) -> float:
    flush.zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def copy_bandwidth() -> float:
    """Bytes a second read and written by a device copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (median_us(lambda: target.copy_(source)) * 1e-6)


def matmul_rate() -> float:
    """Floating-point operations a second of a bfloat16 product of 8192 by 8192 matrices."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    return 2 * 8192**3 / (median_us(lambda: a @ b) * 1e-6)
