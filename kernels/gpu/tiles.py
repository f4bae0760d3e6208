"""How large the pieces are that attention kernels work on, by architecture, head size and dtypes.

A table instead of autotuning: a step never measures anything. What is in it compiles without register
spills (`ops/kernel_matrix.py` goes through all of it); no row has been tuned by measurement. Where
`radish tune` has measured, its file goes before the table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import torch

from kernels.gpu.tile_table import Tile, TileError, Tiles, key, read, table_path

INTERPRETER: Final = "interpreter"
"""The architecture of Triton's interpreter, whose cost is per operation: large blocks."""


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """All that attention over one model's heads needs."""

    narrow: Tile
    """Decode: the query heads of one KV head, one or few tokens."""
    wide: Tile
    """Decode of tokens that share pages, or of several tokens of one sequence."""
    prefill: Tile
    split: int
    """Keys of one decode work item; a property of the table alone, so that how a sequence's keys are
    partitioned, and with it the rounding of its result, does not depend on other sequences."""


_SPLIT: Final = 512

# architecture → bits of a number in the pages → padded head size → narrow, wide, prefill
_TABLE: Final[dict[str, dict[int, dict[int, tuple[Tile, Tile, Tile]]]]] = {
    "sm_80": {
        16: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            128: (Tile(16, 128, 4, 3), Tile(64, 64, 8, 3), Tile(64, 64, 8, 3)),
            256: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
        },
        8: {
            64: (Tile(16, 128, 8, 3), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 3)),
            256: (Tile(16, 64, 8, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
        },
    },
    "sm_89": {
        16: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 3)),
            256: (Tile(16, 64, 4, 3), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2)),
        },
        8: {
            64: (Tile(16, 128, 8, 3), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 3)),
            256: (Tile(16, 64, 8, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
        },
    },
    "sm_90": {
        16: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            256: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 3), Tile(128, 32, 8, 2)),
        },
        8: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)),
            256: (Tile(16, 64, 8, 3), Tile(64, 64, 8, 3), Tile(64, 32, 8, 3)),
        },
    },
    "sm_100": {
        16: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 1)),
            128: (Tile(16, 128, 4, 3), Tile(64, 64, 8, 3), Tile(128, 64, 8, 3)),
            256: (Tile(16, 64, 4, 3), Tile(64, 64, 8, 2), Tile(128, 64, 8, 2)),
        },
        8: {
            64: (Tile(16, 128, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 1)),
            128: (Tile(16, 64, 4, 3), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
            256: (Tile(16, 64, 8, 3), Tile(64, 64, 8, 3), Tile(64, 32, 8, 2)),
        },
    },
    "gfx942": {
        16: {
            64: (Tile(16, 64, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 2)),
            128: (Tile(16, 32, 4, 2), Tile(64, 32, 4, 2), Tile(128, 64, 8, 1)),
            256: (Tile(16, 32, 4, 2), Tile(64, 32, 8, 1), Tile(64, 32, 4, 2)),
        },
        8: {
            64: (Tile(16, 64, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 1)),
            128: (Tile(16, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 32, 4, 2)),
            256: (Tile(16, 64, 4, 3), Tile(64, 32, 4, 2), Tile(64, 32, 4, 2)),
        },
    },
}
# float32 is for comparisons: small tiles that fit everywhere.
_FLOAT32: Final = {
    64: (Tile(16, 32, 4, 2), Tile(16, 32, 4, 2), Tile(16, 32, 4, 2)),
    128: (Tile(16, 16, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
    256: (Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
_NEAREST: Final = {"sm_86": "sm_89", "sm_87": "sm_89", "sm_120": "sm_89", "gfx950": "gfx942"}
"""Architectures that take another's rows: the same limits or wider ones."""


def architecture(device: torch.device) -> str:
    """What the table calls a device: "sm_90", "gfx942", or the interpreter where tensors are on a CPU."""
    if device.type == "cpu":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def attention_tiles(
    architecture: str, head_dim: int, dtype: torch.dtype, page_dtype: torch.dtype
) -> AttentionTiles:
    """The tiles for queries of `dtype` over pages of `page_dtype`.

    Raises:
        TileError: no row for this architecture, heads are wider than 256, or the file of measured tiles is
            damaged.
    """
    size = padded(head_dim)
    if architecture == INTERPRETER:
        return AttentionTiles(Tile(16, 128, 4, 1), Tile(64, 128, 4, 1), Tile(64, 64, 4, 1), split=128)
    known = _NEAREST.get(architecture, architecture)
    if known not in _TABLE:
        raise TileError(f"no kernel tiles for architecture {architecture!r}")
    if dtype == torch.float32:
        return AttentionTiles(*_FLOAT32[size], split=_SPLIT)
    bits = 8 * page_dtype.itemsize
    tiles = _measured().get(key(architecture, bits, size), _TABLE[known][bits][size])
    return AttentionTiles(*tiles, split=_SPLIT)


def padded(head_dim: int) -> int:
    """The head size whose tiles heads of `head_dim` take."""
    for size in (64, 128, 256):
        if size >= head_dim:
            return size
    raise TileError(f"heads of {head_dim} dimensions are wider than 256")


@functools.cache
def _measured() -> dict[str, Tiles]:
    """What is in the file when the first model is set up."""
    return read(table_path())
