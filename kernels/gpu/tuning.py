"""Which tile of a kernel is the fastest on this machine's GPU, of those that compile without spills."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from triton.runtime.errors import OutOfResources
from triton.testing import do_bench

from kernels.gpu import attention_decode, attention_prefill
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.tile_table import Tile, Tiles, key
from kernels.gpu.tiles import AttentionTiles, architecture, attention_tiles
from kernels.paged import PagedCache
from kernels.quantize import CODES, quantize_pages

_PAGE: Final = 16
_HEADS, _KV_HEADS = 32, 8
_WORTH: Final = 0.97
"""Share of the time of the tile in the table that another has to stay under: less is noise."""
PARTS: Final = ("narrow", "wide", "prefill")
"""Fields of `AttentionTiles` that are measured."""

Timer = Callable[[Tile], float | None]
"""Milliseconds of a launch with a tile; None if it does not fit the GPU, or spills registers."""


def candidates(part: str) -> Iterator[Tile]:
    """What is tried for a field of `AttentionTiles`."""
    rows = {"narrow": (16,), "wide": (32, 64), "prefill": (64, 128)}[part]
    for sizes in itertools.product(rows, (32, 64, 128), (4, 8), (2, 3, 4)):
        yield Tile(*sizes)


def fastest(known: Tile, tried: Iterable[Tile], time: Timer, tell: Callable[[], None]) -> Tile:
    """The tile to use.

    Args:
        known: the one in use; kept unless another is clearly faster.
        tell: called after each that was tried.
    """
    limit = time(known)
    best, best_time = known, float("inf") if limit is None else limit * _WORTH
    for tile in tried:
        taken = time(tile)
        if taken is not None and taken < best_time:
            best, best_time = tile, taken
        tell()
    return best


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows that keep one of the kernels busy."""

    new_tokens: int
    context: int
    rows: int
    shared: int
    """Leading tokens that all rows have in common."""


WORKLOADS: Final = {
    "narrow": Workload(1, 4096, 32, 0),
    "wide": Workload(1, 4096, 64, 3584),
    "prefill": Workload(2048, 4096, 1, 0),
}


def timer(part: str, head_dim: int, page_type: str, tiles: AttentionTiles) -> Timer:
    """Times bfloat16 queries on the GPU.

    Args:
        part: one of `PARTS`.
        page_type: "bfloat16", or a format of `kernels.quantize.CODES`.
        tiles: what the other fields are.
    """
    device, work = torch.device("cuda"), WORKLOADS[part]
    width = work.context // _PAGE
    table = np.arange(work.rows * width, dtype=np.int32).reshape(work.rows, width)
    table[:, : work.shared // _PAGE] = table[0, : work.shared // _PAGE]
    shape = (2, table.size, _PAGE, _KV_HEADS, head_dim)
    dense = torch.randn(shape, dtype=torch.bfloat16, device=device)
    is_plain = page_type not in CODES
    cache = PagedCache(dense[0], dense[1]) if is_plain else quantize_pages(dense[0], dense[1], page_type)
    tokens = work.rows * work.new_tokens
    query = torch.randn(tokens, _HEADS, head_dim, dtype=torch.bfloat16, device=device)
    output = torch.empty_like(query)
    module: Any = attention_prefill if part == "prefill" else attention_decode
    attend, kernel = (
        (module.prefill_attention, module.prefill_kernel)
        if part == "prefill"
        else (module.decode_attention, module.split_kernel)
    )

    def time(tile: Tile) -> float | None:
        changed: dict[str, Any] = {part: tile}
        plan = plan_attention(
            query_starts=np.arange(work.rows + 1, dtype=np.int32) * work.new_tokens,
            context_lens=np.full(work.rows, work.context, np.int32),
            page_table=table,
            slots=np.zeros(tokens, np.int64),
            page_size=_PAGE,
            group=_HEADS // _KV_HEADS,
            tiles=replace(tiles, **changed),
            device=device,
        )
        compiled = kernel.device_caches[torch.cuda.current_device()][0]
        before = set(compiled)
        try:
            attend(query, cache, plan, output)
        except OutOfResources:
            return None
        if any(compiled[name].n_spills for name in set(compiled) - before):
            return None
        return float(do_bench(lambda: attend(query, cache, plan, output), return_mode="median"))

    return time


def tune(head_dim: int, page_type: str, progress: Callable[[float], None]) -> dict[str, Tiles]:
    """Measure all kernels of attention on the GPU.

    Args:
        head_dim: as padded for the kernels.
        page_type: as of `timer`.
        progress: told how much is done (0 to 1).

    Returns:
        The tiles under their key in the table.
    """
    name = architecture(torch.device("cuda"))
    dtype = CODES.get(page_type, torch.bfloat16)
    tiles = attention_tiles(name, head_dim, torch.bfloat16, dtype)
    total, done = sum(len(list(candidates(part))) for part in PARTS), 0

    def tell() -> None:
        nonlocal done
        done += 1
        progress(done / total)

    best = [
        fastest(getattr(tiles, part), candidates(part), timer(part, head_dim, page_type, tiles), tell)
        for part in PARTS
    ]
    narrow, wide, prefill = best
    return {key(name, 8 * dtype.itemsize, head_dim): (narrow, wide, prefill)}
