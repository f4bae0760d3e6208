"""Measured tiles: how one is chosen, kept, and used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kernels.gpu import tiles
from kernels.gpu.tile_table import Tile, TileError, key, read, table_path, write
from kernels.gpu.tiles import attention_tiles
from kernels.gpu.tuning import PARTS, candidates, fastest

KNOWN, OTHER, THIRD = Tile(16, 64, 4, 3), Tile(16, 128, 4, 2), Tile(16, 32, 8, 2)
MEASURED = (Tile(16, 32, 8, 2), Tile(64, 32, 4, 2), Tile(128, 32, 8, 4))


@pytest.mark.parametrize(
    ("known", "others", "best"),
    [
        (1.0, (0.5, 0.8), OTHER),
        (1.0, (0.8, 0.5), THIRD),
        (1.0, (0.98, 0.99), KNOWN),  # within noise
        (1.0, (None, None), KNOWN),
        (1.0, (None, 0.9), THIRD),
        (None, (3.0, 2.0), THIRD),
    ],
)
def test_fastest(known: float | None, others: tuple[float | None, ...], best: Tile) -> None:
    times = dict(zip((KNOWN, OTHER, THIRD), (known, *others), strict=True))
    tried = []
    found = fastest(KNOWN, [OTHER, THIRD], times.__getitem__, lambda: tried.append(1))
    assert found == best
    assert len(tried) == 2


@pytest.mark.parametrize("part", PARTS)
def test_candidates_are_distinct_tiles_a_kernel_can_take(part: str) -> None:
    tried = list(candidates(part))
    assert len(set(tried)) == len(tried) >= 18
    assert all(tile.block_m >= 16 and tile.block_n >= 32 for tile in tried)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """The path of a table that the kernels will read anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiles._measured.cache_clear()
    yield table_path
    tiles._measured.cache_clear()


def test_measured_tiles_go_before_the_table(table: Callable[[], Path]) -> None:
    """For the very architecture, head size and page type; for others nothing changes."""
    others = [("sm_90", 64, torch.int8), ("sm_90", 128, torch.bfloat16), ("sm_89", 64, torch.bfloat16)]
    before = [attention_tiles(name, size, torch.bfloat16, pages) for name, size, pages in others]
    tiles._measured.cache_clear()
    write(table(), {key("sm_90", 16, 64): MEASURED, "of another version": MEASURED})
    found = attention_tiles("sm_90", 64, torch.bfloat16, torch.bfloat16)
    assert (found.narrow, found.wide, found.prefill) == MEASURED
    assert [attention_tiles(name, size, torch.bfloat16, pages) for name, size, pages in others] == before


def test_a_table_is_added_to(table: Callable[[], Path]) -> None:
    assert read(table()) == {}
    write(table(), {"a": MEASURED})
    write(table(), {"b": MEASURED[::-1], "a": (KNOWN, OTHER, THIRD)})
    assert read(table()) == {"a": (KNOWN, OTHER, THIRD), "b": MEASURED[::-1]}


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [[1, 2], [1, 2], [1, 2]]}'])
def test_a_damaged_table_is_named(table: Callable[[], Path], content: str) -> None:
    table().parent.mkdir(parents=True)
    table().write_text(content)
    with pytest.raises(TileError, match=r"tiles\.json is no table of tiles; delete it, or run radish tune"):
        attention_tiles("sm_90", 64, torch.bfloat16, torch.bfloat16)
