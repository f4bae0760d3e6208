"""Weights in 8 bits for `decoder.Decoder`: its layers' linears; embeddings and head stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor

from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, LayerWeights, Weights, WeightsOf
from kernels.quantize import CODES, QuantizedRows, Vectors

_MATRICES: Final = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model in memory."""

    spec: ModelSpec
    weights: WeightsOf[Vectors]


def quantized(
    weights: Weights, kind: str, device: torch.device, progress: Callable[[float], None]
) -> WeightsOf[Vectors]:
    """The weights on the device, a scale for each row of each linear's matrix.

    Args:
        weights: on whatever device. They are sent layer by layer, so that if they are on the host the device
            never holds the model unquantised.
        kind: one of `kernels.quantize.CODES`.
        progress: told how much of it is done (0 to 1).
    """
    layers = []
    for index, layer in enumerate(weights.layers):
        progress(index / len(weights.layers))
        layers.append(_quantized_layer(layer, kind, device))
    embed = weights.embed.to(device)
    return WeightsOf[Vectors](
        embed=embed,
        layers=tuple(layers),
        norm=weights.norm.to(device),
        lm_head=embed if weights.lm_head is weights.embed else weights.lm_head.to(device),
    )


def _quantized_layer(layer: LayerWeights, kind: str, device: torch.device) -> LayerOf[Vectors]:
    converted: dict[str, Any] = {}
    for field in fields(layer):
        tensor: Tensor | None = getattr(layer, field.name)
        converted[field.name] = tensor
        if tensor is not None:
            sent = tensor.to(device)
            is_matrix = field.name in _MATRICES
            converted[field.name] = QuantizedRows.of(sent, CODES[kind]) if is_matrix else sent
    return LayerOf[Vectors](**converted)
