"""Tiles that were measured on this machine, in a file of the user's cache directory.

A measurement holds for one version of Triton and of the kernels, so both are in the names of what is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import astuple, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

_KERNELS: Final = ("flash.py", "attention_decode.py", "attention_prefill.py")


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel's launch: rows and keys of a block, warps of a program, stages of the load pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


class TileError(ValueError):
    """There are no tiles for what is asked."""


Tiles = tuple[Tile, Tile, Tile]
"""Narrow, wide and prefill, as in `kernels.gpu.tiles.AttentionTiles`."""


def table_path() -> Path:
    """The file; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radish" / "tiles.json"


@functools.cache
def version() -> str:
    """Of what tiles are measured for."""
    sources = b"".join((Path(__file__).parent / name).read_bytes() for name in _KERNELS)
    return f"triton {metadata.version('triton')}, kernels {hashlib.sha256(sources).hexdigest()[:16]}"


def key(architecture: str, bits: int, head_dim: int) -> str:
    """The name of what was measured.

    Args:
        bits: of a number in the pages.
        head_dim: as padded for the kernels.
    """
    return f"{architecture}, {bits} bits, heads of {head_dim}, {version()}"


def read(path: Path) -> dict[str, Tiles]:
    """The file's tiles by `key`; nothing if there is no such file.

    Raises:
        TileError: it is no table of tiles.
    """
    try:
        content = json.loads(path.read_bytes())
        return {name: _tiles(rows) for name, rows in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise TileError(f"{path} is no table of tiles; delete it, or run radish tune again") from error


def write(path: Path, measured: dict[str, Tiles]) -> None:
    """Put tiles into the file, in the place of those of the same key, at once."""
    kept = {name: [astuple(tile) for tile in tiles] for name, tiles in (read(path) | measured).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(kept, indent=1))
    partial.replace(path)


def _tiles(rows: list[list[int]]) -> Tiles:
    narrow, wide, prefill = (Tile(*row) for row in rows)
    return narrow, wide, prefill
