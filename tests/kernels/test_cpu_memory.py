"""Memory of the step runtime: pieces that share mappings, and pages that are backed before they are used."""

from __future__ import annotations

import ctypes
import gc
import random
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.cpu.abi import Format, Geometry, Step
from kernels.cpu.runtime import Memory, Runtime


def numbers(address: int, count: int) -> list[int]:
    return [*(ctypes.c_int32 * count).from_address(address)]


MIB = 1 << 20
PAGE = 4096


def backed(memory: Memory) -> npt.NDArray[np.bool_]:
    """Which of its pages of 4 KiB the system has given memory to (`mincore`)."""
    found = np.zeros(memory.size // PAGE, np.uint8)
    address, size, into = (ctypes.c_void_p(x) for x in (memory.address, memory.size, found.ctypes.data))
    assert ctypes.CDLL(None).mincore(address, size, into) == 0
    return (found & 1).astype(np.bool_)


def wait_for(memory: Memory, offset: int) -> None:
    """Until the page of 4 KiB at `offset` is backed."""
    end = time.monotonic() + 60
    while not backed(memory)[offset // PAGE]:
        assert time.monotonic() < end, "it is never backed"
        time.sleep(0.001)


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_pages_are_backed_ahead_of_use() -> None:
    """Up to so many bytes beyond the last page that a step wrote to, in every layer, and no more."""
    layers, pages, page_size = 3, 24, 16
    layer = pages * MIB // 2
    runtime = Runtime(1, "portable")
    memory = runtime.allocate(layers * layer)
    backing = memory.keep_backed(layers=layers, pages=pages, ahead=layers * 4 * MIB)
    geometry = Geometry(
        heads=1, kv_heads=1, head_dim=16, true_head_dim=16, rotary_half=8, page_size=page_size, vocab=1,
        kv_format=Format.BF16, kv=memory.address, num_pages=pages, backing=backing.address,
    )  # fmt: skip
    program = runtime.program(geometry, [], [])

    def write_to(*pages: int) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {
            "token_ids": np.zeros(len(pages), np.int64),
            "positions": np.zeros(len(pages), np.int64),
            "kv_slots": np.array([page * page_size + 3 for page in pages]),
            "query_starts": np.array([0, len(pages)], np.int32),
            "context_lens": np.array([len(pages)], np.int32),
            "page_table": np.zeros((1, 1), np.int32),
        }
        step = Step(
            tokens=len(pages), rows=1, table_width=1, rope_rows=1,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )  # fmt: skip
        program.run(step)

    def ends_at(end: int) -> bool:
        wait_for(memory, (layers - 1) * layer + end - PAGE)
        found = backed(memory).reshape(layers, -1)
        return bool(found[:, : end // PAGE].all() and not found[:, end // PAGE :].any())

    assert ends_at(4 * MIB)
    write_to(2, 3, 1)
    assert ends_at(6 * MIB)
    write_to(0)
    write_to(6)  # not yet another huge page of each layer
    assert ends_at(6 * MIB)
    write_to(pages - 1)
    assert ends_at(layer)


def test_what_pages_hold_stays_while_they_are_backed() -> None:
    memory = Runtime(1, "portable").allocate(3 * 5 * MIB)
    backing = memory.keep_backed(layers=3, pages=5, ahead=memory.size)
    held = np.ctypeslib.as_array((ctypes.c_ubyte * memory.size).from_address(memory.address))
    for value in range(100, 110):
        held[::PAGE] = value
        assert (held[::PAGE] == value).all()
    wait_for(memory, memory.size - PAGE)
    assert (held[::PAGE] == value).all()
    assert backing.address


@pytest.mark.parametrize("first", ["memory", "backing", "both"])
def test_the_thread_ends_before_its_memory_is_gone(first: str) -> None:
    """Whatever dies first, also of what is found by the garbage collector; much is left to be backed."""
    runtime = Runtime(1, "portable")
    size = 2 << 30
    gc.collect()
    threads = num_threads()
    held: dict[str, object] = {"memory": (memory := runtime.allocate(size))}
    held["backing"] = memory.keep_backed(layers=2, pages=8, ahead=size)
    gone = weakref.ref(memory)
    del memory
    assert num_threads() == threads + 1
    if first == "both":
        held["cycle"] = held
    else:
        del held[first]
        assert num_threads() == threads + (first == "memory")
    del held
    gc.collect()
    assert num_threads() == threads
    assert gone() is None


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
