"""A GGUF file: its metadata, and where its tensors lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Only the header is read; tensor data stays in the mapped file until it is asked for. Every length is
checked against the size of the file before it is used, so that a damaged file is named, not trusted.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.models.errors import ModelError

MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_TYPE_NAMES: Final = {int(kind): kind.name for kind in GGMLQuantizationType}
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in torch (the file stores it the other way round)."""
    type_id: int
    offset: int
    """Bytes from the start of the file's tensor data."""

    @property
    def type_name(self) -> str:
        """The ggml name of the element type, e.g. "Q4_K"."""
        return _TYPE_NAMES.get(self.type_id, f"number {self.type_id}")


@dataclass(frozen=True)
class GGUFFile:
    """An opened file."""

    path: Path
    metadata: dict[str, Any]
    """Arrays are lists."""
    tensors: dict[str, TensorInfo]
    _bytes: npt.NDArray[np.uint8]
    _data_start: int

    def rows(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The tensor's encoded bytes, a view of the mapped file: [rows, bytes of a row].

        Raises:
            ModelError: the row is no whole number of blocks, or the file ends before the tensor does.
        """
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(info.type_id)]
        if not info.shape or info.shape[-1] % block:
            raise ModelError(
                f"{self.path}: tensor {info.name!r} of shape {info.shape} "
                f"cannot be {info.type_name}, which has blocks of {block}"
            )
        row_bytes = info.shape[-1] // block * block_bytes
        count = math.prod(info.shape[:-1])
        start = self._data_start + info.offset
        stop = start + count * row_bytes
        if stop > len(self._bytes):
            raise ModelError(
                f"{self.path}: truncated: tensor {info.name!r} ends at byte {stop}, "
                f"the file at byte {len(self._bytes)}"
            )
        return self._bytes[start:stop].reshape(count, row_bytes)


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of the file at `path` and map the rest.

    Raises:
        ModelError: the file cannot be read, is not GGUF, or ends within its header.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelError(f"{path}: not a GGUF file (it does not begin with 'GGUF')")
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    reader = _HeaderReader(path, data.data)
    version = reader.scalar("I", "the version")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported (little-endian 2 and 3 are)")
    num_tensors = reader.scalar("Q", "the number of tensors")
    num_fields = reader.scalar("Q", "the number of fields")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = reader.string("a field's name")
        metadata[key] = reader.value(reader.scalar("I", f"field {key!r}"), f"field {key!r}")
    tensors = {info.name: info for info in (reader.tensor() for _ in range(num_tensors))}
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path}: field 'general.alignment' is {alignment!r}, not a positive whole number")
    data_start = -(-reader.position // alignment) * alignment
    return GGUFFile(path, metadata, tensors, data, data_start)


class _HeaderReader:
    """A cursor over the header; `what` in its methods names, for errors, what is being read."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.position = len(MAGIC)
        self._path = path
        self._data = data

    def scalar(self, code: str, what: str) -> Any:
        """One number of the struct format `code`."""
        (value,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code), what))
        return value

    def string(self, what: str) -> str:
        (text,) = self._strings(1, what)
        return text

    def value(self, kind: int, what: str) -> Any:
        """A metadata value of the GGUF type `kind`."""
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        raise ModelError(f"{self._path}: {what} has the unknown type {kind}")

    def tensor(self) -> TensorInfo:
        name = self.string("a tensor's name")
        what = f"the description of tensor {name!r}"
        dimensions = self.scalar("I", what)
        if dimensions > _MAX_DIMENSIONS:
            raise ModelError(f"{self._path}: tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.scalar("Q", what) for _ in range(dimensions))
        return TensorInfo(name, shape[::-1], self.scalar("I", what), self.scalar("Q", what))

    def _array(self, what: str) -> list[Any]:
        kind, length = self.scalar("I", what), self.scalar("Q", what)
        if kind == _STRING:
            return self._strings(length, what)
        if kind in _SCALARS:
            layout = f"<{length}{_SCALARS[kind]}"
            size = struct.calcsize("<" + _SCALARS[kind]) * length
            return list(struct.unpack(layout, self._take(size, what)))
        raise ModelError(f"{self._path}: {what} is an array of the unsupported type {kind}")

    def _strings(self, count: int, what: str) -> list[str]:
        """A vocabulary and its merges are 100,000 of them, most of what a header is."""
        texts: list[str] = []
        data, position = self._data, self.position
        try:
            for _ in range(count):
                start = position + _LENGTH.size
                position = start + _LENGTH.unpack_from(data, position)[0]
                if position > len(data):
                    raise self._truncated(what)
                texts.append(str(data[start:position], "utf-8"))
        except struct.error:  # no room for a length
            raise self._truncated(what) from None
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path}: {what} is not UTF-8") from error
        self.position = position
        return texts

    def _take(self, size: int, what: str) -> memoryview:
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise self._truncated(what)
        return self._data[start : self.position]

    def _truncated(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: truncated within its header, in {what}")
