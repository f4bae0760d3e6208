"""Packing a model holds no second copy of it: matrices are read from their file, and given back to it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from engine.models.loader import load_matrices
from engine.models.native_load import NativeModel, lay_down
from engine.models.native_plan import Quantize
from engine.models.spec import ModelSpec
from engine.models.weights import WeightsOf
from kernels.cpu.blocks import Blocks, Matrix
from kernels.cpu.runtime import Runtime
from tests.models import tiny

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@pytest.fixture(params=["float32", "bfloat16"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model = tiny.make("qwen3-biases-tied").to(getattr(torch, request.param))
    return tiny.save(model, tmp_path / "model")


def quiet(_label: str, _fraction: float) -> None:
    pass


def resident(directory: Path) -> int:
    """KiB of the model's files that are in this process's memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            counts = str(directory) in line
        elif counts and first == "Rss:":
            total += int(line.split()[1])
    return total


def packed(
    spec: ModelSpec, weights: WeightsOf[Matrix], dtype: torch.dtype, quantize: Quantize | None
) -> NativeModel:
    return lay_down(spec, weights, Runtime(1), dtype=dtype, quantize=quantize, progress=quiet)


def contents(model: NativeModel) -> list[bytes]:
    return [ctypes.string_at(address, size) for address, size in model.image.segments]


def test_matrices_stay_in_their_file(directory: Path) -> None:
    _, weights = load_matrices(directory, dtype=torch.float32, progress=quiet)
    matrices = [getattr(layer, name) for layer in weights.layers for name in _MATRICES]
    for matrix in (weights.embed, *matrices):
        assert isinstance(matrix, Blocks)
        assert not matrix.rows.flags.owndata
        assert not matrix.rows.flags.writeable  # what lies there is the file's


def test_no_more_of_the_file_is_in_memory_than_is_being_packed(directory: Path) -> None:
    spec, weights = load_matrices(directory, dtype=torch.float32, progress=quiet)
    seen: list[int] = []
    lay_down(
        spec,
        weights,
        Runtime(1),
        dtype=torch.float32,
        quantize=None,
        progress=lambda _label, _fraction: seen.append(resident(directory)),
    )
    assert len(seen) == spec.num_layers + 1
    assert seen[0] > 0  # its header
    assert set(seen[1:]) == {0}


@pytest.mark.parametrize(
    ("dtype", "quantize"), [(torch.float32, None), (torch.bfloat16, None), (torch.float32, "int8")]
)
def test_what_is_packed_is_what_was_converted_before(
    directory: Path, dtype: torch.dtype, quantize: Quantize | None
) -> None:
    spec, weights = load_matrices(directory, dtype=dtype, progress=quiet)
    loaded = tiny.load(directory, dtype)
    before = packed(loaded.spec, loaded.weights, dtype, quantize)
    assert contents(packed(spec, weights, dtype, quantize)) == contents(before)
