"""A program and all memory it points to, as one thing that can be written to a file and read back.

File: magic, size and SHA-256 of a header, the header (MessagePack), and from the next whole page on the
segments, each at a multiple of 64 bytes. In the header's operations a pointer is the number of its
segment plus one, 0 for none. The header says how long the file must be, so one that was cut short, or
was written by something else, is told apart from a whole one without reading the segments.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from kernels.cpu.abi import POINTERS, Op
from kernels.cpu.runtime import Memory, Piece, Runtime, padded

PARTIAL: Final = ".partial"
"""Ends the names of files that are being written."""
_MAGIC: Final = b"RADISHW1"
_PREFIX: Final = struct.Struct("<8sQ32s")
_MOST_HEADER: Final = 64 << 20
_PAGE: Final = 4096
_LINE: Final = 64


class ImageError(Exception):
    """The file holds no image, not a whole one, or another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A laid-down program."""

    ops: tuple[Op, ...]
    """Every pointer in them is the address of a segment."""
    buffers: tuple[int, ...]
    """Bytes of a row of each buffer."""
    segments: tuple[tuple[int, int], ...]
    """Address and bytes of each piece of memory."""
    owners: tuple[Memory | Piece, ...]
    """What keeps the segments alive."""
    note: bytes = b""
    """What the caller wants to know again when it reads the image."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    note: bytes
    ops: bytes
    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    """Bytes of each segment."""


def write_image(image: Image, path: Path, key: str) -> None:
    """Write a file that is either whole or not there, whenever the machine stops.

    Raises:
        OSError: there is no room, or the place cannot be written. Nothing is left behind.
    """
    sizes = [size for _, size in image.segments]
    header = msgspec.msgpack.encode(
        _Header(
            key=key,
            note=image.note,
            ops=_numbered(image),
            buffers=image.buffers,
            sizes=tuple(sizes),
        )
    )
    data = padded(_PREFIX.size + len(header), _PAGE)
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            # Room is taken at once, so that a full disk is noticed before anything is written.
            os.posix_fallocate(file.fileno(), 0, data + _size(sizes))
            file.write(_PREFIX.pack(_MAGIC, len(header), hashlib.sha256(header).digest()) + header)
            for (address, size), start in zip(image.segments, _starts(sizes), strict=True):
                file.seek(data + start)
                file.write(_view(address, size))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_image(runtime: Runtime, path: Path, key: str) -> Image:
    """Read what `write_image` wrote, into one piece of memory on huge pages.

    It is copied, not mapped: a mapped file lies on small pages, on which a step is a fifth slower.

    Raises:
        ImageError: it is no such file, is damaged, or has another key.
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        header = _read_header(file, path)
        if header.key != key:
            raise ImageError(f"{path}: of another version")
        data, size = padded(file.tell(), _PAGE), _size(header.sizes)
        if os.fstat(file.fileno()).st_size != data + size:
            raise ImageError(f"{path}: truncated")
        memory = runtime.allocate(size)
        view = _view(memory.address, size)
        file.seek(data)
        done = 0
        while done < size:
            count = file.readinto(view[done:])
            if not count:
                raise ImageError(f"{path}: truncated")
            done += count
    starts = [memory.address + start for start in _starts(header.sizes)]
    return Image(
        ops=_addressed(header.ops, starts),
        buffers=header.buffers,
        segments=tuple(zip(starts, header.sizes, strict=True)),
        owners=(memory,),
        note=header.note,
    )


def _read_header(file: FileIO, path: Path) -> _Header:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        raise ImageError(f"{path}: not an image of weights")
    _, size, digest = _PREFIX.unpack(prefix)
    raw = file.read(min(size, _MOST_HEADER))
    if len(raw) != size or hashlib.sha256(raw).digest() != digest:
        raise ImageError(f"{path}: its header is damaged")
    try:
        return msgspec.msgpack.decode(raw, type=_Header)
    except msgspec.DecodeError as error:
        raise ImageError(f"{path}: {error}") from error


def _starts(sizes: Sequence[int]) -> list[int]:
    """Offset of each segment."""
    return list(accumulate((padded(size, _LINE) for size in sizes[:-1]), initial=0))


def _size(sizes: Iterable[int]) -> int:
    return sum(padded(size, _LINE) for size in sizes)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _numbered(image: Image) -> bytes:
    """The operations with numbers of segments for pointers."""
    numbers = {address: index + 1 for index, (address, _) in enumerate(image.segments)}
    return bytes(_with_pointers(image.ops, lambda address: numbers[address]))


def _addressed(raw: bytes, starts: Sequence[int]) -> tuple[Op, ...]:
    """Operations whose numbers of segments are pointers again."""
    count = len(raw) // ctypes.sizeof(Op)
    return tuple(_with_pointers((Op * count).from_buffer_copy(raw), lambda number: starts[number - 1]))


def _with_pointers(ops: Iterable[Op], translate: Callable[[int], int]) -> ctypes.Array[Op]:
    """Copies of `ops` with every pointer that is not null translated."""
    kept = tuple(ops)
    copies = (Op * len(kept))(*kept)
    for op in copies:
        for name in POINTERS:
            if pointer := getattr(op, name):
                setattr(op, name, translate(pointer))
    return copies
