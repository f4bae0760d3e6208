"""Random decoders of any shape, without `transformers`: for sizes that no architecture there has."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from engine.models.loader import LoadedModel
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights

_SIZES: dict[str, Any] = {
    "architecture": "llama",
    "name": "random",
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 211,
    "max_position": 1024,
    "rms_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_embeddings": True,
}


def random_model(
    *,
    dtype: torch.dtype = torch.float32,
    biases: bool = False,
    head_norms: bool = False,
    **sizes: Any,
) -> LoadedModel:
    """A model of the given sizes (fields of `ModelSpec`)."""
    values = _SIZES | sizes
    values.setdefault("rotary_dim", values["head_dim"])
    values.setdefault("sliding_window", (None,) * values["num_layers"])
    spec = ModelSpec(**values)
    generator = torch.Generator().manual_seed(spec.hidden_size)

    def matrix(rows: int, columns: int) -> Tensor:
        scale = 1.5 / math.sqrt(columns)
        return (scale * torch.randn(rows, columns, generator=generator)).to(dtype)

    def vector(size: int, around: float) -> Tensor:
        return (around + 0.2 * torch.randn(size, generator=generator)).to(dtype)

    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    outputs = {"q": queries, "k": keys, "v": keys, "o": hidden, "gate": inner, "up": inner, "down": hidden}
    inputs = {"o": queries, "down": inner}

    def layer() -> LayerWeights:
        tensors = {name: matrix(rows, inputs.get(name, hidden)) for name, rows in outputs.items()}
        tensors |= {name: vector(hidden, 1.0) for name in ("input_norm", "post_norm")}
        if biases:
            tensors |= {f"{name}_bias": vector(rows, 0.0) for name, rows in outputs.items()}
        if head_norms:
            tensors |= {name: vector(spec.head_dim, 1.0) for name in ("q_norm", "k_norm")}
        return LayerWeights(**tensors)

    embed = matrix(spec.vocab_size, hidden) * math.sqrt(hidden)
    weights = Weights(
        embed=embed,
        layers=tuple(layer() for _ in range(spec.num_layers)),
        norm=vector(hidden, 1.0),
        lm_head=embed if spec.tie_embeddings else matrix(spec.vocab_size, hidden),
    )
    return LoadedModel(spec, weights)


def in_float32(model: LoadedModel) -> LoadedModel:
    """The same numbers in float32."""

    def widen(layer: LayerWeights) -> LayerWeights:
        tensors = {field.name: getattr(layer, field.name) for field in fields(layer)}
        return LayerWeights(
            **{name: tensor.float() for name, tensor in tensors.items() if tensor is not None}
        )

    weights = model.weights
    embed = weights.embed.float()
    return LoadedModel(
        model.spec,
        Weights(
            embed=embed,
            layers=tuple(widen(layer) for layer in weights.layers),
            norm=weights.norm.float(),
            lm_head=embed if weights.lm_head is weights.embed else weights.lm_head.float(),
        ),
    )
