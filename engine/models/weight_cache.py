"""Laid-down models in the user's cache directory, so that a second start neither reads nor packs a model.

A file is named after the model's path, the format of its weights and the instruction set, then after its
key, which besides tells the model's files (name, size, time of change) and the code that made it. So
installations of two versions do not overwrite each other's. Of one model in one form the two versions used
last are kept, of all files the eight used last. A cache that cannot be used is a warning, never an error.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from functools import cache
from pathlib import Path
from typing import Final

from kernels.cpu.build import cache_directory
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.image import PARTIAL, Image, ImageError, read_image, write_image
from kernels.cpu.runtime import Runtime

_log = logging.getLogger("radish.load")

_SUFFIX: Final = ".weights"
_MOST_FILES: Final = 8
_MOST_VERSIONS: Final = 2
"""Of one model in one form."""
_LEFT_S: Final = 3600
"""A partial file that has not been written to for so long was left by a crash."""
_ROOT: Final = Path(__file__).parents[2]
_CODE: Final = ("kernels/cpu", "engine/models")
_MODEL_FILES: Final = frozenset({".gguf", ".safetensors", ".json"})


class WeightCache:
    """The place of one model in one form."""

    def __init__(self, path: Path, runtime: Runtime, form: str) -> None:
        """
        Args:
            path: a model's file or directory.
            form: everything else that decides what is laid down, such as the format of the weights.
        """
        self._runtime = runtime
        self._key = f"{_code_digest()} {runtime.isa} {form} {_identity(path)}"
        self.file: Path | None = None
        try:
            directory = cache_directory("weights")
        except NativeUnavailableError as error:
            _log.warning("weights are not cached: %s", error)
            return
        self.file = (
            directory / f"{_digest(str(path.resolve()))}-{form}-{runtime.isa}-{_digest(self._key)}{_SUFFIX}"
        )

    def read(self) -> Image | None:
        """The image, if there is one of this version of model and code."""
        if self.file is None:
            return None
        try:
            image = read_image(self._runtime, self.file, self._key)
            self.file.touch()  # it was used
        except FileNotFoundError:
            return None
        except (ImageError, OSError) as error:
            _log.info("weights are packed anew: %s", error)
            return None
        return image

    def write_in_background(self, image: Image) -> threading.Thread:
        """Start writing; a process that ends meanwhile leaves the cache as it was."""
        thread = threading.Thread(target=self.write, args=(image,), name="radish-weights", daemon=True)
        thread.start()
        return thread

    def write(self, image: Image) -> None:
        """Replace what is there. Blocks until it is on the disk."""
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_room(self.file)
            write_image(image, self.file, self._key)
        except OSError as error:
            _log.warning("weights are not cached: %s", error)


def _make_room(file: Path) -> None:
    """Remove what crashes left, and the least recently used files beyond the bound."""
    now = time.time()
    for partial in file.parent.glob(f"*{PARTIAL}"):
        if now - partial.stat().st_mtime > _LEFT_S:
            partial.unlink(missing_ok=True)
    others = [other for other in file.parent.glob(f"*{_SUFFIX}") if other != file]
    others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
    versions = [other for other in others if _model_of(other) == _model_of(file)]
    for other in (*versions[_MOST_VERSIONS - 1 :], *others[_MOST_FILES - 1 :]):
        other.unlink(missing_ok=True)


def _model_of(file: Path) -> str:
    """What the names of all versions of a model in one form begin with."""
    return file.name.rpartition("-")[0]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(path: Path) -> str:
    """The model's files by name, size and time of change."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _MODEL_FILES)
    states = [(str(file.resolve()), file.stat()) for file in files]
    return repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])


@cache
def _code_digest() -> str:
    """Of all code that decides what packed weights are."""
    digest = hashlib.sha256()
    for directory in _CODE:
        for file in sorted((_ROOT / directory).rglob("*")):
            if file.suffix in {".py", ".h", ".cpp"}:
                digest.update(file.name.encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()
