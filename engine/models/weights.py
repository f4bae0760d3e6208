"""Where a decoder's tensors are, whatever file they came from.

Linear weights are [out_features, in_features], as in `torch.nn.Linear`. Rotary pairs are in the
half-split order of `transformers` (dimension i pairs with i + rotary_dim / 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: Tensor
    """[hidden]"""
    q: Tensor
    """[num_heads * head_dim, hidden]"""
    k: Tensor
    """[num_kv_heads * head_dim, hidden]"""
    v: Tensor
    """[num_kv_heads * head_dim, hidden]"""
    o: Tensor
    """[hidden, num_heads * head_dim]"""
    post_norm: Tensor
    """[hidden]"""
    gate: Tensor
    """[intermediate, hidden]"""
    up: Tensor
    """[intermediate, hidden]"""
    down: Tensor
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
class Weights:
    """A whole decoder."""

    embed: Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    """[hidden]"""
    lm_head: Tensor
    """[vocab, hidden]; the same tensor as `embed` when they are tied"""
