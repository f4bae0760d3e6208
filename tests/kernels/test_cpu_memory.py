"""Memory of the step runtime: pieces that share mappings, and pages that are backed before they are used."""

from __future__ import annotations

import ctypes
import gc
import random

import numpy as np
import torch

from kernels.cpu.runtime import Runtime


def numbers(address: int, count: int) -> list[int]:
    return [*(ctypes.c_int32 * count).from_address(address)]


def is_backed(address: int) -> bool:
    """Whether the system has given memory to the page of 4 KiB at `address` (`mincore`)."""
    found = ctypes.c_ubyte()
    assert (
        ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(4096), ctypes.byref(found)) == 0
    )
    return bool(found.value & 1)


def test_a_huge_page_is_backed_and_keeps_what_it_holds() -> None:
    size = 2 << 20
    memory = Runtime(1, "portable").allocate(3 * size - 4096)
    ctypes.memset(memory.address, 7, 1)
    for offset, begin, end in ((size + 5000, size, 2 * size), (2 * size, 2 * size, memory.size)):
        assert not is_backed(memory.address + begin)
        memory.back(offset)
        assert is_backed(memory.address + begin)
        assert is_backed(memory.address + end - 4096)
    memory.back(0)
    assert [*(ctypes.c_ubyte * 2).from_address(memory.address)] == [7, 0]


def test_pieces_are_apart_and_live_as_long_as_any_of_them() -> None:
    """Small ones, ones that begin another mapping, and one of its own, as weights of a model are."""
    runtime = Runtime(1, "portable")
    sizes = [1, 100, 3 << 20, 5, 9 << 20, 16, 4 << 20, 1000]
    random.Random(0).shuffle(sizes)
    tensors = [torch.full((size,), index, dtype=torch.int32) for index, size in enumerate(sizes)]
    pieces = [runtime.store(tensor) for tensor in tensors]
    assert all(piece.address % 64 == 0 for piece in pieces)
    assert len({piece.whole.address for piece in pieces}) < len(pieces)
    kept = pieces[::2]
    del pieces
    gc.collect()
    for piece, tensor in zip(kept, tensors[::2], strict=True):
        assert piece.size == tensor.nbytes
        assert np.array_equal(numbers(piece.address, len(tensor)), tensor.numpy())
