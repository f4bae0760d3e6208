"""How products with quantised weights are cut into programs.

For few rows a product is a read of the weights: blocks are narrow, so that there are as many programs as
multiprocessors, and deep, so that each keeps many bytes on their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl

ROW_BLOCKS: Final = 8
"""Row blocks that run one after another over the same weights, which then are in cache."""


@dataclass(frozen=True, slots=True)
class LinearTile:
    """One launch: rows, columns and depth of a block, warps of a program, stages of the load pipeline."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


def eight_bit_tile(rows: int) -> LinearTile:
    """For codes of 8 bits on both sides."""
    if rows <= 16:
        return LinearTile(16, 32, 256, 4, 5)
    return LinearTile(64, 32, 128, 4, 4) if rows <= 128 else LinearTile(128, 128, 64, 8, 3)


def int4_tile(rows: int) -> LinearTile:
    """For weights of 4 bits, and activations of 16 or 32."""
    if rows <= 16:
        return LinearTile(16, 32, 256, 4, 5)
    return LinearTile(64, 32, 128, 4, 3) if rows <= 128 else LinearTile(128, 128, 64, 8, 3)


@triton.jit
def block_of(program, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROW_BLOCKS: tl.constexpr):
    """Row and column of a program's block, ROW_BLOCKS row blocks at a time."""
    row_blocks = (rows + BLOCK_M - 1) // BLOCK_M
    column_blocks = (columns + BLOCK_N - 1) // BLOCK_N
    group = program // (ROW_BLOCKS * column_blocks)
    height = tl.minimum(row_blocks - group * ROW_BLOCKS, ROW_BLOCKS)
    within = program % (ROW_BLOCKS * column_blocks)
    return group * ROW_BLOCKS + within % height, within // height
