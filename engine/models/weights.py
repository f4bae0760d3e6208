"""Where a decoder's tensors are, whatever file they came from.

Linear weights are [out_features, in_features], as in `torch.nn.Linear`. Rotary pairs are in the
half-split order of `transformers` (dimension i pairs with i + rotary_dim / 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

M_co = TypeVar("M_co", covariant=True)
"""What a matrix is: a Tensor, or whatever else is in a file."""


@dataclass(frozen=True, kw_only=True)
class LayerOf(Generic[M_co]):
    """One decoder layer with matrices of one kind."""

    input_norm: Tensor
    """[hidden]"""
    q: M_co
    """[num_heads * head_dim, hidden]"""
    k: M_co
    """[num_kv_heads * head_dim, hidden]"""
    v: M_co
    """[num_kv_heads * head_dim, hidden]"""
    o: M_co
    """[hidden, num_heads * head_dim]"""
    post_norm: Tensor
    """[hidden]"""
    gate: M_co
    """[intermediate, hidden]"""
    up: M_co
    """[intermediate, hidden]"""
    down: M_co
    """[hidden, intermediate]"""
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    """[head_dim], Qwen3's norm of each query head"""
    k_norm: Tensor | None = None
    """[head_dim]"""


@dataclass(frozen=True, kw_only=True)
class WeightsOf(Generic[M_co]):
    """A whole decoder."""

    embed: M_co
    """[vocab, hidden]"""
    layers: tuple[LayerOf[M_co], ...]
    norm: Tensor
    """[hidden]"""
    lm_head: M_co
    """[vocab, hidden]; the same object as `embed` when they are tied"""


LayerWeights = LayerOf[Tensor]
Weights = WeightsOf[Tensor]
