"""Pieces of memory that share mappings."""

from __future__ import annotations

import ctypes
import gc
import random

import numpy as np
import torch

from kernels.cpu.runtime import Runtime


def numbers(address: int, count: int) -> list[int]:
    return [*(ctypes.c_int32 * count).from_address(address)]


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
