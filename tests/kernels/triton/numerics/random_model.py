"""A model of two layers with random weights, one of them with a window."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights
from tests.fakes import VOCAB_SIZE

SPEC = ModelSpec(
    architecture="qwen3",
    name="random",
    num_layers=2,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=64,
    vocab_size=VOCAB_SIZE,
    max_position=4096,
    rms_eps=1e-6,
    rope_theta=10_000.0,
    rotary_dim=16,
    tie_embeddings=False,
    sliding_window=(None, 24),
)


def random_weights(device: torch.device, spec: ModelSpec = SPEC) -> Weights:
    generator = torch.Generator("cpu").manual_seed(0)

    def standard(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu").to(device)

    def normal(*shape: int) -> Tensor:
        return standard(*shape) * (2 / math.sqrt(shape[-1]))

    def gain(width: int) -> Tensor:
        return 1 + 0.2 * standard(width)

    embed, head = standard(2, VOCAB_SIZE, spec.hidden_size)
    queries, hidden = spec.num_heads * spec.head_dim, spec.hidden_size
    keys, inner = spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    layers = [
        LayerWeights(
            input_norm=gain(hidden),
            q=normal(queries, hidden),
            k=normal(keys, hidden),
            v=normal(keys, hidden),
            o=normal(hidden, queries),
            post_norm=gain(hidden),
            gate=normal(inner, hidden),
            up=normal(inner, hidden),
            down=normal(hidden, inner),
            q_norm=gain(spec.head_dim),
            k_norm=gain(spec.head_dim),
        )
        for _ in range(spec.num_layers)
    ]
    return Weights(embed=embed, layers=tuple(layers), norm=gain(hidden), lm_head=head * 0.5)
