"""Weights in 8 bits for `decoder.Decoder`: its layers' linears; embeddings and head stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engine.models.layout import Progress
from engine.models.loader import load_model
from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, LayerWeights, Weights, WeightsOf
from kernels.quantize import CODES, QuantizedRows, Vectors

_MATRICES: Final = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model in memory."""

    spec: ModelSpec
    weights: WeightsOf[Vectors]


def load_quantized(
    path: Path, *, dtype: torch.dtype, kind: str, device: torch.device, progress: Progress
) -> QuantizedModel:
    """Load a model to the host, and send it to the device a layer at a time: that never holds it unquantised.

    Args:
        dtype: of embeddings, norms and activations.
        kind: one of `kernels.quantize.CODES`.

    Raises:
        ModelError: the model is missing, damaged or unsupported.
    """
    loaded = load_model(path, dtype=dtype, device=torch.device("cpu"), progress=progress)
    weights = quantized(loaded.weights, kind, device, lambda done: progress("Quantizing weights", done))
    return QuantizedModel(loaded.spec, weights)


def quantized(
    weights: Weights, kind: str, device: torch.device, progress: Callable[[float], None]
) -> WeightsOf[Vectors]:
    """The weights on the device, a scale for each row of each linear's matrix."""
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
