"""A model as a program of native steps: read from the cache, or loaded, packed and then cached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from engine.models.errors import ModelError
from engine.models.layout import Progress
from engine.models.loader import load_matrices
from engine.models.native_plan import Planner, Quantize
from engine.models.spec import ModelSpec
from engine.models.weight_cache import WeightCache
from engine.models.weights import WeightsOf
from kernels.cpu.abi import Format
from kernels.cpu.blocks import Matrix
from kernels.cpu.image import Image
from kernels.cpu.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModel:
    """A laid-down model and the runtime for it."""

    spec: ModelSpec
    runtime: Runtime
    image: Image
    kv_format: Format
    """Of keys and values in their pages."""


class _Note(msgspec.Struct, frozen=True):
    """What an image says of its model."""

    spec: ModelSpec
    kv_format: int


def lay_down(
    spec: ModelSpec,
    weights: WeightsOf[Matrix],
    runtime: Runtime,
    *,
    dtype: torch.dtype,
    quantize: Quantize | None,
    progress: Progress,
) -> NativeModel:
    """Pack weights, which are not needed afterwards.

    Args:
        dtype: of linear weights that are not quantised, float32 or bfloat16.
    """
    label = "Quantizing weights" if quantize else "Packing weights"
    plan = Planner(spec, runtime, dtype, quantize)
    plan.lay(weights, lambda done: progress(label, done))
    note = msgspec.json.encode(_Note(spec, plan.kv_format))
    return NativeModel(spec=spec, runtime=runtime, image=plan.image(note), kv_format=plan.kv_format)


def load_native(
    path: Path, *, dtype: torch.dtype, quantize: Quantize | None, runtime: Runtime, progress: Progress
) -> NativeModel:
    """A model from its files or, if they and the code are as they were, from the cache.

    Raises:
        ModelError: the model is missing, damaged or unsupported.
    """
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or directory")
    cache = WeightCache(path, runtime, quantize or str(dtype).removeprefix("torch."))
    progress("Reading packed weights", 0.0)
    image = cache.read()
    if image is not None:
        note = msgspec.json.decode(image.note, type=_Note)
        return NativeModel(spec=note.spec, runtime=runtime, image=image, kv_format=Format(note.kv_format))
    # What a file has as plain numbers is not quantised where its own blocks are served.
    plain = torch.bfloat16 if quantize == "gguf" else dtype
    spec, weights = load_matrices(path, dtype=plain, progress=progress)
    model = lay_down(spec, weights, runtime, dtype=dtype, quantize=quantize, progress=progress)
    cache.write_in_background(model.image)
    return model
