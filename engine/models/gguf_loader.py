"""A model from a GGUF file: metadata to `ModelSpec`, tensors decoded by the `gguf` package.

Metadata keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from engine.models.errors import ModelError
from engine.models.gguf_file import GGUFFile, read_gguf
from engine.models.gguf_spec import read_spec
from engine.models.layout import Layout, Progress, check_names, check_shape, load_tensors
from engine.models.spec import ModelSpec
from engine.models.weights import Weights, WeightsOf
from kernels.cpu.abi import Encoding
from kernels.cpu.blocks import Blocks, Matrix

LAYOUT: Final = Layout(
    embed="token_embd.weight",
    norm="output_norm.weight",
    lm_head="output.weight",
    layer="blk.{}.",
    fields={
        "input_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "post_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "o_bias": "attn_output.bias",
        "gate_bias": "ffn_gate.bias",
        "up_bias": "ffn_up.bias",
        "down_bias": "ffn_down.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
    },
)
ROPE_TENSORS: Final[tuple[str, ...]] = (
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
)
_TYPES: Final = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_PLAIN: Final = ("F32", "F16", "BF16")
_NATIVE: Final = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1")
_SLICE: Final = 1 << 20
"""Numbers decoded at a time; bounds the scratch memory."""


def load_gguf(
    path: Path, *, dtype: torch.dtype, device: torch.device, progress: Progress
) -> tuple[ModelSpec, Weights]:
    """Load a file; at most one slice of one tensor is held beside those already converted.

    Raises:
        ModelError: names the file, and the tensor or field at fault.
    """
    return _load(path, lambda file, name: _decode(file, name, dtype).to(device), progress)


def load_gguf_matrices(
    path: Path, *, dtype: torch.dtype, progress: Progress
) -> tuple[ModelSpec, WeightsOf[Matrix]]:
    """Load a file without decoding the matrices that the native step can pack: those stay in the mapped file.

    Other blocks are decoded to float32, other plain numbers converted to `dtype`.

    Raises:
        ModelError: names the file, and the tensor or field at fault.
    """

    def read(file: GGUFFile, name: str) -> Matrix:
        info = file.tensors[name]
        if info.type_name in _NATIVE and len(info.shape) == 2:
            return Blocks(_rows(file, name), Encoding[info.type_name], info.shape[-1])
        return _decode(file, name, dtype if info.type_name in _PLAIN else torch.float32)

    return _load(path, read, progress)


def gguf_model_spec(path: Path) -> ModelSpec:
    """What a file says of its model, without its weights.

    Raises:
        ModelError: as `load_gguf`.
    """
    return _spec(read_gguf(path))


def _spec(file: GGUFFile) -> ModelSpec:
    factors = {
        name: tuple(_decode(file, name, torch.float32).tolist())
        for name in ROPE_TENSORS
        if name in file.tensors
    }
    return read_spec(file, factors)


def _load(
    path: Path, read: Callable[[GGUFFile, str], Matrix], progress: Progress
) -> tuple[ModelSpec, WeightsOf[Any]]:
    file = read_gguf(path)
    spec = _spec(file)
    wanted = LAYOUT.shapes(spec, _optional_fields(file, spec))
    check_names(path, wanted, [name for name in file.tensors if name not in ROPE_TENSORS])

    for name, shape in wanted.items():  # all of them before the first is decoded: fail early
        check_shape(path, name, file.tensors[name].shape, shape)
        _rows(file, name)

    def load(name: str) -> Matrix:
        matrix = read(file, name)
        if spec.architecture == "llama" and ".attn_q." in name:
            return _half_split(matrix, spec.num_heads, spec)
        if spec.architecture == "llama" and ".attn_k." in name:
            return _half_split(matrix, spec.num_kv_heads, spec)
        return matrix

    return spec, LAYOUT.weights(spec, load_tensors(wanted, load, progress))


def _optional_fields(file: GGUFFile, spec: ModelSpec) -> set[str]:
    """What the architecture always has, and what the first layer has besides."""
    always = {"qwen2": {"q_bias", "k_bias", "v_bias"}, "qwen3": {"q_norm", "k_norm"}}
    first = LAYOUT.layer.format(0)
    biases = {field for field in LAYOUT.fields if field.endswith("_bias")}
    present = {field for field in biases if first + LAYOUT.fields[field] in file.tensors}
    return present | always.get(spec.architecture, set())


def _rows(file: GGUFFile, name: str) -> npt.NDArray[np.uint8]:
    """The tensor's encoded rows; refuses a type that is not supported."""
    info = file.tensors[name]
    if info.type_name not in _TYPES:
        raise ModelError(
            f"{file.path}: tensor {name!r} is of type {info.type_name}; supported are {', '.join(_TYPES)}"
        )
    return file.rows(info)


def _decode(file: GGUFFile, name: str, dtype: torch.dtype) -> Tensor:
    """The tensor's numbers, on the CPU."""
    info, rows = file.tensors[name], _rows(file, name)
    tensor = torch.empty(info.shape, dtype=dtype)
    flat = tensor.view(len(rows), -1)
    step = max(1, _SLICE // info.shape[-1])
    for start in range(0, len(rows), step):
        numbers = dequantize(rows[start : start + step], GGMLQuantizationType(info.type_id))
        if not numbers.flags.writeable:  # a view of the mapped file, which torch does not take
            numbers = numbers.copy()
        flat[start : start + step] = torch.from_numpy(numbers)
    return tensor


@overload
def _half_split(matrix: Tensor, num_heads: int, spec: ModelSpec) -> Tensor: ...
@overload
def _half_split(matrix: Matrix, num_heads: int, spec: ModelSpec) -> Matrix: ...
def _half_split(matrix: Matrix, num_heads: int, spec: ModelSpec) -> Matrix:
    """Reorder the rows of a query or key projection from interleaved rotary pairs, (0, 1), (2, 3)...,
    which GGUF's llama architecture has, to the half-split pairs of `Weights`."""
    if isinstance(matrix, Blocks):
        order = _half_split(torch.arange(len(matrix.rows))[:, None], num_heads, spec)[:, 0]
        return replace(matrix, rows=matrix.rows[order.numpy()])
    heads = matrix.view(num_heads, spec.head_dim, -1)
    rotated, rest = heads[:, : spec.rotary_dim], heads[:, spec.rotary_dim :]
    pairs = rotated.reshape(num_heads, spec.rotary_dim // 2, 2, -1).transpose(1, 2).flatten(1, 2)
    return torch.cat((pairs, rest), dim=1).view(matrix.shape)
