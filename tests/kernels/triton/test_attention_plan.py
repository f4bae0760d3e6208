"""The planner: every token meets every key once, and keys that rows share are read once."""

from __future__ import annotations

from collections import Counter

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


def reads(plan: AttentionPlan, table: np.ndarray) -> Counter[int]:
    """How often a step reads each page of its decoded rows."""
    counts: Counter[int] = Counter()
    for items in (plan.narrow_items, plan.wide_items):
        for _, _, row, start, stop in items.tolist():
            counts.update(table[row, start // PAGE : -(-stop // PAGE)].tolist())
    return counts


def tree_rows(node_tokens: list[int], leaves: int, own: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Decoding rows at the leaves of a tree with two children a node.

    Args:
        node_tokens: length of a node of each depth, in whole pages.
        leaves: rows below each node of the last depth.
        own: tokens of each row alone.
    """
    fresh = iter(range(1 << 20))
    paths: list[list[int]] = [[]]
    for depth, tokens in enumerate(node_tokens):
        parents = [path for path in paths for _ in range(1 if depth == 0 else 2)]
        paths = [[*path, *(next(fresh) for _ in range(tokens // PAGE))] for path in parents]
    pages = [[*path, *(next(fresh) for _ in range(-(-own // PAGE)))] for path in paths for _ in range(leaves)]
    context = sum(node_tokens) + own
    return [(1, context)] * len(pages), np.array(pages, np.int32)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_shared_page_is_read_once_at_every_depth(depth: int) -> None:
    """And flat, as often as it has rows below it."""
    rows, table = tree_rows([2 * SPLIT] * depth, 3, SPLIT + 5)
    wide = TILES.wide.block_m // 2  # members of an item, at two heads a group
    shared, flat = reads(plan_of(rows, table), table), reads(plan_of(rows, table, share_from=1 << 20), table)
    below = Counter(table.ravel().tolist())
    assert flat == below
    assert set(shared) == set(below)
    for page, times in shared.items():
        assert times == -(-below[page] // wide)


def test_little_in_common_is_read_apart() -> None:
    """Nodes that fill no split are not shared, and their pages cost what they do flat; nor are two rows."""
    for node, leaves in ((SPLIT - PAGE, 5), (4 * SPLIT, 2)):
        rows, table = tree_rows([node], leaves, SPLIT)
        plan, flat = plan_of(rows, table), plan_of(rows, table, share_from=1 << 20)
        assert torch.equal(plan.narrow_items, flat.narrow_items)
        assert len(plan.wide_items) == len(flat.wide_items) == 0


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(3, 5), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_what_nodes_cut_costs_less_than_a_split_each(nodes: list[int], leaves: int, own: int) -> None:
    """Whatever the lengths of nodes: beyond its pages read once for each full item, a node costs at most the
    split that it ends in, once for each child or row."""
    rows, table = tree_rows([PAGE * pages for pages in nodes], leaves, own)
    below = Counter(table.ravel().tolist())
    wide = TILES.wide.block_m // 2
    total = sum(reads(plan_of(rows, table), table).values())
    once = sum(-(-count // wide) for count in below.values())
    branches = sum(2**depth * 2 for depth in range(len(nodes) - 1)) + len(rows)
    assert once <= total <= once + branches * SPLIT // PAGE
    assert total <= sum(below.values())


def test_arrays_are_aligned() -> None:
    """So that kernels are specialised once, whatever the sizes of a step."""
    plan = plan_of([(1, 30), (17, 17), (1, 1)], np.arange(24, dtype=np.int32).reshape(3, 8))
    for name in ("page_table", "slots", "members", "narrow_items", "prefill_tiles", "part_starts"):
        assert getattr(plan, name).storage_offset() * 4 % 64 == 0
    assert plan.page_table.stride(0) % 16 == 0
