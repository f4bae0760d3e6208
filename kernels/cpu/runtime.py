"""The step runtime as Python objects: memory, threads, packed weights, programs."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import abi
from kernels.cpu.abi import Encoding, Format, Geometry, Kind, LogprobJob, Op, PackJob, SampleJob, Step
from kernels.cpu.blocks import Blocks, Matrix
from kernels.cpu.build import ALL_FORMATS, Formats, Isa, is_supported, library_path, supported_isas
from kernels.cpu.errors import NativeStepError, NativeUnavailableError

_log = logging.getLogger("radish.load")

PANEL: Final = 32
"""Outputs of a packed weight are padded to a multiple of this..."""
GROUP: Final = 64
"""...and inputs to a multiple of this."""
BLOCK: Final = 32
"""Inputs that share a scale in GGUF's blocks; `WIDE` may where a weight is quantised here."""
WIDE: Final = 64
_LINE: Final = 64
_SHARED: Final = 32 << 20
"""Bytes of a mapping that pieces share."""


def padded(size: int, unit: int) -> int:
    """`size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit


def q8_row_bytes(columns: int) -> int:
    """Bytes of a row of int8 activations: values, and three numbers for each 32 of them at most."""
    return columns + columns // BLOCK * 12


def _source(matrix: Matrix) -> tuple[object, int, Encoding]:
    """What keeps its memory alive, where that is, and how it is to be read."""
    if isinstance(matrix, Blocks):
        rows = np.ascontiguousarray(matrix.rows)
        return rows, rows.ctypes.data, matrix.kind
    tensor = matrix.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor, tensor.data_ptr(), Encoding.BF16
    tensor = tensor.float()
    return tensor, tensor.data_ptr(), Encoding.F32


def _load_best(formats: Formats) -> tuple[Isa, ctypes.CDLL]:
    """The best instruction set that serves here; those that were to be better are told with their reasons."""
    refused: list[tuple[Isa, NativeUnavailableError]] = []
    for isa in supported_isas():
        try:
            library = _load(isa, formats)
        except NativeUnavailableError as error:
            refused.append((isa, error))
            continue
        for better, reason in refused:
            _log.warning("%s is not used, steps run on %s: %s", better, isa, reason)
        return isa, library
    raise refused[0][1]


def _load(isa: Isa, formats: Formats) -> ctypes.CDLL:
    if not is_supported(isa):
        raise NativeUnavailableError(f"this processor does not run {isa}")
    path = library_path(isa, formats)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"cannot load {path}: {error}") from error
    signatures: dict[str, tuple[object, list[object]]] = {
        "radish_struct_bytes": (c_int64, [c_int32]),
        "radish_start": (c_int32, []),
        "radish_map": (c_void_p, [c_int64]),
        "radish_unmap": (None, [c_void_p, c_int64]),
        "radish_backing_create": (c_void_p, [c_void_p, c_int64, c_int64, c_int64, c_int64]),
        "radish_backing_destroy": (None, [c_void_p]),
        "radish_pool_create": (c_void_p, [c_int32]),
        "radish_pool_destroy": (None, [c_void_p]),
        "radish_packed_bytes": (c_int64, [c_int32, c_int64, c_int64, c_int64]),
        "radish_pack": (None, [c_void_p, POINTER(PackJob)]),
        "radish_sample": (c_int32, [c_void_p, POINTER(SampleJob)]),
        "radish_logprobs": (c_int32, [c_void_p, POINTER(LogprobJob)]),
        "radish_program_create": (
            c_void_p,
            [c_void_p, POINTER(Geometry), POINTER(Op), c_int64, POINTER(c_int64), c_int64],
        ),
        "radish_program_destroy": (None, [c_void_p]),
        "radish_program_run": (c_int32, [c_void_p, POINTER(Step)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for index, struct in enumerate(abi.STRUCTS):
        if library.radish_struct_bytes(index) != ctypes.sizeof(struct):
            raise NativeUnavailableError(f"{path}: struct {struct.__name__} differs in size")
    status = library.radish_start()
    if status > 0:
        raise NativeUnavailableError(f"the system refuses what {isa} needs: {os.strerror(status)}")
    if status < 0:
        raise NativeUnavailableError(f"products of {isa} come out wrong")
    return library


class Memory:
    """Zeroed memory on huge pages where the system has them, returned when the object dies."""

    def __init__(self, library: ctypes.CDLL, size: int) -> None:
        address = library.radish_map(size)
        if not address:
            raise MemoryError(f"cannot map {size} bytes")
        self.address: int = address
        self.size = size
        self._library = library
        weakref.finalize(self, library.radish_unmap, address, size)

    def keep_backed(self, *, layers: int, pages: int, ahead: int) -> Backing:
        """Have what lies ahead of use of KV pages, which fill this memory, backed by the system.

        Args:
            ahead: bytes over all layers.
        """
        return Backing(self._library, self, layers, pages, ahead)


class Backing:
    """A thread that keeps KV pages backed ahead of their use; see src/backing.h."""

    def __init__(self, library: ctypes.CDLL, memory: Memory, layers: int, pages: int, ahead: int) -> None:
        address = library.radish_backing_create(
            memory.address, layers, pages, memory.size // (layers * pages), ahead
        )
        if not address:
            raise MemoryError("cannot allocate what backs pages")
        self.address: int = address
        """For a `Geometry`; the program must not run once this object is dead."""
        # Holds the memory, which must not be unmapped before the thread has ended, whatever dies first.
        weakref.finalize(self, _end, library, address, memory)


def _check(status: int) -> None:
    """Raise what a call says that went wrong."""
    if status == abi.NO_MEMORY:
        raise MemoryError("the native step ran out of memory")
    if status:
        raise NativeStepError(abi.REFUSED[status])


def _end(library: ctypes.CDLL, backing: int, _memory: Memory) -> None:
    library.radish_backing_destroy(backing)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a larger memory."""

    address: int
    size: int
    whole: Memory
    """Kept alive by its pieces."""


class Arena:
    """Zeroed memory for what is kept as long as a model: small pieces share mappings, so that they lie on
    huge pages as well."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._whole: Memory | None = None
        self._used = 0

    def take(self, size: int) -> Piece:
        """A piece that begins at a multiple of 64 bytes."""
        if size > _SHARED // 2:
            whole = Memory(self._library, size)
            return Piece(whole.address, size, whole)
        if self._whole is None or self._used + size > _SHARED:
            self._whole, self._used = Memory(self._library, _SHARED), 0
        piece = Piece(self._whole.address + self._used, size, self._whole)
        self._used += padded(size, _LINE)
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A linear weight in the layout of src/packed.h."""

    memory: Piece
    format: Format
    n: int
    """Padded outputs."""
    k: int
    """Padded inputs."""
    group: int
    """Inputs that share a scale, of codes and of the activations that they are multiplied with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a packed weight: source row i goes to offset + i // block * stride + i % block."""

    weight: Matrix
    """[rows, columns]"""
    offset: int = 0
    block: int = 1
    stride: int = 1


class Runtime:
    """One loaded library and the threads its steps run on."""

    def __init__(self, threads: int, isa: Isa | None = None, formats: Formats = ALL_FORMATS) -> None:
        """
        Args:
            threads: at least 1; the caller of a step is one of them.
            isa: None for the best that serves here.
            formats: those that programs may have.

        Raises:
            NativeUnavailableError: it cannot be built or run here.
        """
        self.threads = threads
        self._formats = formats
        self.isa: Isa
        if isa is None:
            self.isa, self._library = _load_best(formats)
        else:
            self.isa, self._library = isa, _load(isa, formats)
        pool = self._library.radish_pool_create(threads)
        if not pool:
            raise NativeUnavailableError(f"the system gives no {threads} threads")
        self.pool: int = pool
        self._arena = Arena(self._library)
        self._finalizer = weakref.finalize(self, self._library.radish_pool_destroy, self.pool)

    def allocate(self, size: int) -> Memory:
        """Zeroed memory of `size` bytes."""
        return Memory(self._library, size)

    def store(self, tensor: Tensor) -> Piece:
        """A copy of a tensor's numbers in native memory."""
        source = tensor.detach().contiguous()
        memory = self._arena.take(source.nbytes)
        ctypes.memmove(memory.address, source.data_ptr(), source.nbytes)
        return memory

    def pack(
        self, parts: Sequence[Part], *, rows: int, columns: int, target: Format, group: int = BLOCK
    ) -> Packed:
        """Pack a weight of `rows` x `columns` (before padding) from its parts; the rest is zero.

        Args:
            group: inputs that share a scale; of 4 bits always `BLOCK`.
        """
        n, k = padded(rows, PANEL), padded(columns, GROUP)
        memory = self._arena.take(self._library.radish_packed_bytes(target, n, k, group))
        for part in parts:
            kept, address, source = _source(part.weight)
            job = PackJob(
                source=address,
                source_format=source,
                target_format=target,
                rows=part.weight.shape[0],
                columns=part.weight.shape[1],
                n=n,
                k=k,
                group=group,
                offset=part.offset,
                block=part.block,
                stride=part.stride,
                target=memory.address,
            )
            self._library.radish_pack(self.pool, byref(job))
            del kept
            if isinstance(part.weight, Blocks):
                part.weight.forget()
        return Packed(memory=memory, format=target, n=n, k=k, group=group)

    def sample(self, job: SampleJob) -> None:
        """Choose a token from each row of logits, on the threads of the steps; between two of them.

        Raises:
            MemoryError
            NativeStepError: an id is out of range.
        """
        _check(self._library.radish_sample(self.pool, byref(job)))

    def logprobs(self, job: LogprobJob) -> None:
        """Log-probabilities from rows of logits, on the threads of the steps; between two of them.

        Raises:
            MemoryError
        """
        _check(self._library.radish_logprobs(self.pool, byref(job)))

    def program(self, geometry: Geometry, ops: Sequence[Op], row_bytes: Sequence[int]) -> Program:
        """Lay a program down. What its pointers point to must outlive it.

        Raises:
            ValueError: it has formats that this runtime was not made for.
        """
        weights = {Format(op.src_format) for op in ops if op.kind == Kind.LINEAR}
        if not weights <= self._formats.weights or geometry.kv_format not in self._formats.pages:
            raise ValueError(f"weights {weights}, pages {geometry.kv_format}: not in {self._formats}")
        return Program(self, self._library, geometry, ops, row_bytes)


class Program:
    """Operations that make one step."""

    def __init__(
        self,
        runtime: Runtime,
        library: ctypes.CDLL,
        geometry: Geometry,
        ops: Sequence[Op],
        row_bytes: Sequence[int],
    ) -> None:
        self._runtime = runtime  # its threads must outlive the program
        self._library = library
        self._handle: int | None = library.radish_program_create(
            runtime.pool,
            byref(geometry),
            (Op * len(ops))(*ops),
            len(ops),
            (c_int64 * len(row_bytes))(*row_bytes),
            len(row_bytes),
        )
        if self._handle is None:
            raise MemoryError("cannot allocate the program's scratch memory")
        self._finalizer = weakref.finalize(self, library.radish_program_destroy, self._handle)

    def run(self, step: Step) -> None:
        """Execute one step; the interpreter lock is released meanwhile. One at a time.

        Raises:
            MemoryError: the step may be run again.
            NativeStepError: the step was refused; nothing was computed.
        """
        _check(self._library.radish_program_run(self._handle, byref(step)))
