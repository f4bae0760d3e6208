"""The shape of a decoder of the Llama line, independent of the file format it came from."""

from __future__ import annotations

from typing import Literal

import msgspec


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched; fields as in the checkpoint's `rope_scaling`."""

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and switches of one model."""

    architecture: Literal["llama", "mistral", "qwen2", "qwen3"]
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """Width of the logits; may exceed the tokenizer's vocabulary."""
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    rotary_dim: int
    """Leading dimensions of each head that are rotated; usually `head_dim`."""
    tie_embeddings: bool
    sliding_window: tuple[int | None, ...]
    """[num_layers] tokens each layer sees, the current one included; None: all."""
