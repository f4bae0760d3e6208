"""Decode steps captured once and run again: they depend on nothing but the tensors they were captured with.

The interpreter has no graphs. What stands in for one calls the captured function again, so that whatever it
took from the host at the time of capture stays as it was; and its launches are recorded, which a graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from engine.models import decoder, graphs
from engine.models.decoder import Decoder
from engine.models.graphs import CudaCapture, GraphedDecoder, graph_sizes
from engine.models.loader import LoadedModel
from kernels.dispatch import operations
from tests.kernels.triton.numerics.random_model import SPEC, random_weights
from tests.models.paged_sequences import PagedSequences

CPU = torch.device("cpu")
TOLERANCE = 2e-4


class Replays:
    """CUDA graphs or, in the interpreter, what stands in for them; counts what is replayed."""

    def __init__(self, device: torch.device) -> None:
        self._capture = CudaCapture() if device.type == "cuda" else same_launches
        self.count = 0

    def __call__(self, launch: Callable[[], None]) -> Callable[[], None]:
        again = self._capture(launch)

        def replay() -> None:
            self.count += 1
            again()

        return replay


def same_launches(launch: Callable[[], None]) -> Callable[[], None]:
    """Calls `launch` again, and fails if it launches anything but what it did at first."""
    captured = launched(launch)

    def replay() -> None:
        assert launched(launch) == captured

    return replay


def launched(launch: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Every kernel with its grid and arguments: numbers, and shapes of tensors."""
    launches = []

    def record(executor: Any, *arguments: Any, **named: Any) -> None:
        given = [*arguments, *named.values()]
        shown = [(each.shape, each.stride()) if isinstance(each, torch.Tensor) else each for each in given]
        launches.append((executor.fn.__name__, executor.grid, shown))
        run(executor, *arguments, **named)

    run = interpreter.GridExecutor.__call__
    with patch.object(interpreter.GridExecutor, "__call__", record):
        launch()
    assert launches
    return launches


@pytest.fixture
def replays(device: torch.device) -> Replays:
    return Replays(device)


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders made from here on run on Triton's kernels."""
    monkeypatch.setattr(decoder, "operations", lambda _device: operations(torch.device("cuda")))


def sequences(device: torch.device) -> PagedSequences:
    model = LoadedModel(SPEC, random_weights(device))
    return PagedSequences(model, num_pages=64, page_size=16, device=device)


def graphed(device: torch.device, replays: Replays, *, max_rows: int) -> PagedSequences:
    model = sequences(device)
    assert isinstance(model.decoder, Decoder)
    model.decoder = GraphedDecoder(
        model.decoder, max_rows=max_rows, capture=replays, progress=lambda _done: None
    )
    return model


def prompt(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def test_every_step_after_capture(
    request: pytest.FixtureRequest, device: torch.device, replays: Replays
) -> None:
    """Other rows, lengths, pages, splits and sizes than those captured, with steps between that are not."""
    plain = sequences(CPU)
    request.getfixturevalue("on_kernels")
    model = graphed(device, replays, max_rows=4)
    shared = prompt(128, 9)  # a whole split in the interpreter

    def compare(chunks: dict[int, list[int]], logits_of: Literal["last", "first"] = "last") -> None:
        found, right = (each.step(chunks, logits_of=logits_of).cpu() for each in (model, plain))
        torch.testing.assert_close(found, right, rtol=0, atol=TOLERANCE)

    compare({0: shared + prompt(20, 0), 9: prompt(17, 9)})
    for key in (1, 2, 3):
        for each in (plain, model):
            each.fork(0, key, 128)
    compare({1: prompt(4, 1), 2: prompt(5, 2), 3: prompt(6, 3)})
    assert replays.count == 0
    compare({9: [5]})
    compare({0: [65], 1: [66], 2: [67], 3: [68]})  # share a split
    compare({1: [1], 9: [2], 3: [3]})
    compare({2: [72], 9: prompt(12, 4)})
    compare({4: [7]})  # a sequence's first token, with nothing before it
    compare({3: [8], 4: [9]}, "first")  # a token that is known already comes after that of 4
    assert replays.count == 5


def test_contexts_too_long_for_a_graph(
    monkeypatch: pytest.MonkeyPatch, on_kernels: None, device: torch.device, replays: Replays
) -> None:
    """Two splits where a graph has place for one: computed all the same, and what fits is replayed again."""
    monkeypatch.setattr(graphs, "most_parts", lambda _size: 1)
    model, other = graphed(device, replays, max_rows=1), sequences(device)
    for key, tokens in ((0, prompt(127, 0)), (0, [1]), (0, [2]), (1, [3]), (0, [4])):
        torch.testing.assert_close(model.step({key: tokens}), other.step({key: tokens}), rtol=0, atol=1e-5)
    assert replays.count == 2


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (5, [1, 2, 3, 4, 5]), (40, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40])]
)
def test_sizes(most: int, sizes: list[int]) -> None:
    assert graph_sizes(most) == sizes
