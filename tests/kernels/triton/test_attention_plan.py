"""The planner: every token meets every key once, and keys that rows share are read once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu.attention_plan import MOST_DECODE_TOKENS, AttentionPlan, plan_attention
from kernels.gpu.tile_table import Tile
from kernels.gpu.tiles import AttentionTiles

PAGE, SPLIT = 4, 16
TILES = AttentionTiles(Tile(16, 16, 4, 1), Tile(32, 16, 4, 1), Tile(64, 16, 4, 1), split=SPLIT)


def plan_of(
    rows: list[tuple[int, int]], table: np.ndarray, *, group: int = 2, share_from: int = 3
) -> AttentionPlan:
    counts = np.array([count for count, _ in rows])
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return plan_attention(
        query_starts=starts,
        context_lens=np.array([context for _, context in rows], np.int32),
        page_table=table,
        slots=np.arange(starts[-1]),
        page_size=PAGE,
        group=group,
        tiles=TILES,
        device=torch.device("cpu"),
        share_from=share_from,
    )


@st.composite
def shared_rows(draw: st.DrawFn) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Rows that share leading pages with an earlier one, as rows over one radix tree do."""
    rows: list[tuple[int, int]] = []
    pages: list[list[int]] = []
    fresh = iter(range(1, 10_000))
    for index in range(draw(st.integers(1, 9))):
        count = draw(st.integers(0, 12))
        context = count + draw(st.integers(0, 100))
        width = -(-context // PAGE)
        origin = pages[draw(st.integers(0, index - 1))] if index else []
        common = min(draw(st.sampled_from([0, 4, 9, 16])), len(origin), max(0, context - count) // PAGE)
        rows.append((count, context))
        pages.append([*origin[:common], *(next(fresh) for _ in range(width - common))])
    table = np.full((len(rows), max(1, *map(len, pages))), -1, np.int32)
    for index, row in enumerate(pages):
        table[index, : len(row)] = row
    return rows, table


@given(shared_rows(), st.sampled_from([1, 2, 7, 16]), st.integers(2, 5))
@settings(max_examples=150, deadline=None)
def test_every_part_is_computed_once_over_its_own_pages(
    problem: tuple[list[tuple[int, int]], np.ndarray], group: int, share_from: int
) -> None:
    rows, table = problem
    plan = plan_of(rows, table, group=group, share_from=share_from)
    row_of_token = np.repeat(np.arange(len(rows)), [count for count, _ in rows])
    part_starts = plan.part_starts.tolist()
    computed: list[int] = []
    heads = 1 << (group - 1).bit_length()
    for items, tile in ((plan.narrow_items, TILES.narrow), (plan.wide_items, TILES.wide)):
        for first, size, table_row, start, stop in items.tolist():
            assert 0 < size <= max(1, tile.block_m // heads)
            assert start % SPLIT == 0
            for token in plan.members[first : first + size].tolist():
                row = int(row_of_token[token])
                seen = slice(start // PAGE, -(-stop // PAGE))
                assert table[row, seen].tolist() == table[table_row, seen].tolist()
                assert stop == min(start + SPLIT, rows[row][1])
                computed.append(part_starts[token] + start // SPLIT)
    assert sorted(computed) == list(range(plan.num_parts))
    decoded = [int(t) for t, row in enumerate(row_of_token) if rows[row][0] <= MOST_DECODE_TOKENS]
    assert plan.decode_tokens.tolist() == decoded
    positions = [p for count, context in rows for p in range(context - count, context)]
    assert plan.positions.tolist() == positions
    tiles = [
        (row, first)
        for row, (count, _) in enumerate(rows)
        if count > MOST_DECODE_TOKENS
        for first in range(0, count, max(1, TILES.prefill.block_m // heads))
    ]
    assert sorted(map(tuple, plan.prefill_tiles.tolist())) == tiles


@pytest.mark.parametrize(("share_from", "times"), [(3, 1), (6, 5)])
def test_shared_keys_are_read_once(share_from: int, times: int) -> None:
    """Five rows share two splits, one of them has another of its own; from six on it would be worth it."""
    own = [39, 39, 39, 39, 39 + SPLIT]
    table = np.arange(5 * 20, dtype=np.int32).reshape(5, 20)
    table[:, : 2 * SPLIT // PAGE] = table[0, : 2 * SPLIT // PAGE]
    plan = plan_of([(1, context) for context in own], table, share_from=share_from)
    read = sum(
        stop - start
        for items in (plan.narrow_items, plan.wide_items)
        for _, _, _, start, stop in items.tolist()
    )
    assert read == times * 2 * SPLIT + 5 * 7 + SPLIT


def test_arrays_are_aligned() -> None:
    """So that kernels are specialised once, whatever the sizes of a step."""
    plan = plan_of([(1, 30), (17, 17), (1, 1)], np.arange(24, dtype=np.int32).reshape(3, 8))
    for name in ("page_table", "slots", "members", "narrow_items", "prefill_tiles", "part_starts"):
        assert getattr(plan, name).storage_offset() * 4 % 64 == 0
    assert plan.page_table.stride(0) % 16 == 0
