"""Weights in 8 or 4 bits for `decoder.Decoder`: its layers' linears; embeddings and head stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from engine.models.errors import ModelError
from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, Weights, WeightsOf
from kernels.quantize import CODES, PACKED_BLOCK, PackedRows, QuantizedRows, Weight

Kind = Literal["int8", "fp8", "int4"]
"""int8 and fp8: a scale for each row; int4: a scale and an offset for each 32 neighbours of a row."""
M = TypeVar("M")

_MATRICES: Final = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model in memory."""

    spec: ModelSpec
    weights: WeightsOf[Weight]


def quantized(
    weights: Weights, kind: Kind, device: torch.device, progress: Callable[[float], None]
) -> WeightsOf[Weight]:
    """The weights on the device.

    Args:
        weights: on whatever device. They are sent layer by layer, so that if they are on the host the device
            never holds the model unquantised.
        progress: told how much of it is done (0 to 1).

    Raises:
        ModelError: the rows of a matrix cannot be cut into blocks.
    """

    def rounded(matrix: Tensor, name: str) -> Weight:
        return _rounded(matrix.to(device), kind, name)

    return converted(weights, plain=lambda tensor: tensor.to(device), linear=rounded, progress=progress)


def converted(
    weights: WeightsOf[M],
    *,
    plain: Callable[[M | Tensor], Tensor],
    linear: Callable[[M, str], Weight],
    progress: Callable[[float], None],
) -> WeightsOf[Weight]:
    """The weights with each linear's matrix as `linear` makes it, given the name of its field, and all else
    as `plain` does."""

    def layer_of(layer: LayerOf[M]) -> LayerOf[Weight]:
        changed: dict[str, Any] = {}
        for field in fields(layer):
            matrix = getattr(layer, field.name)
            if matrix is not None:
                is_linear = field.name in _MATRICES
                changed[field.name] = linear(matrix, field.name) if is_linear else plain(matrix)
        return LayerOf[Weight](**changed)

    layers = []
    for index, layer in enumerate(weights.layers):
        progress(index / len(weights.layers))
        layers.append(layer_of(layer))
    embed = plain(weights.embed)
    return WeightsOf[Weight](
        embed=embed,
        layers=tuple(layers),
        norm=plain(weights.norm),
        lm_head=embed if weights.lm_head is weights.embed else plain(weights.lm_head),
    )


def _rounded(matrix: Tensor, kind: Kind, name: str) -> Weight:
    if kind != "int4":
        return QuantizedRows.of(matrix, CODES[kind])
    if matrix.shape[1] % PACKED_BLOCK:
        raise ModelError(
            f"quantize: int4 takes rows of whole blocks of {PACKED_BLOCK} weights, and those of {name!r} have"
            f" {matrix.shape[1]}"
        )
    return PackedRows.of(matrix)
