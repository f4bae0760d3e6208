"""Weights from a directory of safetensors, in one file or sharded under an index."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.errors import ModelError
from engine.models.hf_config import read_config
from engine.models.layout import Layout, Progress, Shape, check_names, check_shape, load_tensors
from engine.models.spec import ModelSpec
from engine.models.weights import Weights, WeightsOf
from kernels.cpu.abi import Encoding
from kernels.cpu.blocks import Blocks, Matrix

LAYOUT: Final = Layout(
    embed="model.embed_tokens.weight",
    norm="model.norm.weight",
    lm_head="lm_head.weight",
    layer="model.layers.{}.",
    fields={
        "input_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "o": "self_attn.o_proj.weight",
        "post_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
        "q_bias": "self_attn.q_proj.bias",
        "k_bias": "self_attn.k_proj.bias",
        "v_bias": "self_attn.v_proj.bias",
        "o_bias": "self_attn.o_proj.bias",
        "gate_bias": "mlp.gate_proj.bias",
        "up_bias": "mlp.up_proj.bias",
        "down_bias": "mlp.down_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
    },
)
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_DTYPES: Final = frozenset({"F32", "F16", "BF16"})
_AS_THEY_ARE: Final = frozenset({"F32", "BF16"})
_HEADER_SIZE: Final = struct.Struct("<Q")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def load_safetensors(
    directory: Path, *, dtype: torch.dtype, device: torch.device, progress: Progress
) -> tuple[ModelSpec, Weights]:
    """Load a checkpoint directory; one tensor at a time is held beside those already converted.

    Raises:
        ModelError: names the file, and the tensor or field at fault.
    """

    def read(_path: Path, file: Any, name: str) -> Tensor:
        tensor: Tensor = file.get_tensor(name)
        return tensor.to(device, dtype, copy=True)

    return _load(directory, read, progress)


def load_safetensors_matrices(
    directory: Path, *, dtype: torch.dtype, progress: Progress
) -> tuple[ModelSpec, WeightsOf[Matrix]]:
    """Load a directory without reading its matrices of float32 and bfloat16: those stay in the mapped files.

    Other tensors are converted to `dtype`.

    Raises:
        ModelError: names the file, and the tensor or field at fault.
    """
    mapped: dict[Path, _MappedFile] = {}

    def read(path: Path, file: Any, name: str) -> Matrix:
        if path not in mapped:
            mapped[path] = _MappedFile(path)
        matrix = mapped[path].matrix(name)
        return file.get_tensor(name).to(dtype, copy=True) if matrix is None else matrix

    return _load(directory, read, progress)


def _load(
    directory: Path, read: Callable[[Path, Any, str], Matrix], progress: Progress
) -> tuple[ModelSpec, WeightsOf[Any]]:
    spec, optional = read_config(directory)
    wanted = LAYOUT.shapes(spec, optional)
    with ExitStack() as stack:
        owners = _open_all(directory, stack)
        check_names(directory, wanted, [name for name in owners if not _ignorable(name, spec)])
        for name, shape in wanted.items():  # all of them before the first is read: fail early
            _check(*owners[name], name, shape)
        tensors = load_tensors(wanted, lambda name: read(*owners[name], name), progress)
        return spec, LAYOUT.weights(spec, tensors)


class _MappedFile:
    """Where the matrices of a file lie, which the library does not tell. It has checked the file."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        (size,) = _HEADER_SIZE.unpack_from(self._bytes.data)
        self._start = _HEADER_SIZE.size + size
        header = self._bytes[_HEADER_SIZE.size : self._start].tobytes()
        self._entries = msgspec.json.decode(header, type=dict[str, dict[str, Any]])

    def matrix(self, name: str) -> Blocks | None:
        """None: it is no matrix, or of a type that is not read as it is."""
        entry = self._entries[name]
        if entry["dtype"] not in _AS_THEY_ARE or len(entry["shape"]) != 2:
            return None
        begin, end = (self._start + offset for offset in entry["data_offsets"])
        rows, columns = entry["shape"]
        return Blocks(self._bytes[begin:end].reshape(rows, -1), Encoding[entry["dtype"]], columns)


def _open_all(directory: Path, stack: ExitStack) -> dict[str, tuple[Path, Any]]:
    """Each tensor's name to the file that holds it."""
    index = directory / _INDEX
    if not index.exists():
        path = directory / _SINGLE
        if not path.exists():
            raise ModelError(f"{directory}: there is neither {_SINGLE} nor {_INDEX}")
        file = _open(path, stack)
        return dict.fromkeys(file.keys(), (path, file))
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise ModelError(f"{index}: {error}") from error
    files = {name: _open(directory / name, stack) for name in sorted(set(weight_map.values()))}
    return {tensor: (directory / name, files[name]) for tensor, name in weight_map.items()}


def _open(path: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except OSError as error:
        raise ModelError(f"{path}: {error}") from error
    except SafetensorError as error:
        raise ModelError(f"{path}: truncated or damaged: {error}") from error


def _check(path: Path, file: Any, name: str, shape: Shape) -> None:
    try:
        view = file.get_slice(name)
    except SafetensorError as error:
        raise ModelError(f"{path}: tensor {name!r} is missing") from error
    kind = view.get_dtype()
    if kind not in _DTYPES:
        raise ModelError(
            f"{path}: tensor {name!r} is of type {kind}; supported are {', '.join(sorted(_DTYPES))}"
        )
    check_shape(path, name, tuple(view.get_shape()), shape)


def _ignorable(name: str, spec: ModelSpec) -> bool:
    """Buffers of old checkpoints, and the copy of a tied matrix."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tie_embeddings and name == LAYOUT.lm_head)
