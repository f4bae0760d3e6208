"""Tiny GGUF files, written by the `gguf` package from models in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import PreTrainedModel

_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BLOCK_BYTES = {"Q4_K": 144, "Q6_K": 210}


@dataclass
class TinyGGUF:
    """What goes into a file; tests spoil it before `write`."""

    architecture: str
    metadata: dict[str, Any]
    """Keys without the architecture's prefix, except those with a dot-free namespace of their own."""
    tensors: dict[str, tuple[npt.NDArray[Any], GGMLQuantizationType]] = field(default_factory=dict)
    """Name to encoded rows and their type."""

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            name = key if key.startswith(("general.", "split.")) else f"{self.architecture}.{key}"
            if isinstance(value, str):
                writer.add_string(name, value)
            elif isinstance(value, float):
                writer.add_float32(name, value)
            elif isinstance(value, list):
                writer.add_array(name, value)
            else:
                writer.add_uint32(name, value)
        for name, (rows, kind) in self.tensors.items():
            writer.add_tensor(name, rows, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def from_model(model: PreTrainedModel, architecture: str, kind: str = "F32") -> TinyGGUF:
    """The model as GGUF with matrices of type `kind`; `model` itself gets the values as encoded."""
    config = model.config
    tiny = TinyGGUF(
        architecture,
        {
            "block_count": config.num_hidden_layers,
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
            "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        },
    )
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            encoding = GGMLQuantizationType[kind if parameter.dim() == 2 else "F32"]
            values = _encodable(parameter.numpy(), encoding, name)
            parameter.copy_(torch.from_numpy(values))
            short = _short_name(name)
            permuted = [count for part, count in heads.items() if part in short and architecture == "llama"]
            rows = encode(values, encoding, name)
            tiny.tensors[short] = (_interleave(rows, permuted[0]) if permuted else rows, encoding)
    return tiny


def encode(values: npt.NDArray[np.float32], kind: GGMLQuantizationType, name: str) -> npt.NDArray[Any]:
    """The rows in the file; the package cannot encode K-quants, so those are random blocks."""
    if kind.name in _BLOCK_BYTES:
        return _random_blocks(values.shape, kind, seed=len(name) + values.size + sum(name.encode()))
    rows: npt.NDArray[Any] = quantize(values, kind)
    return rows


def _encodable(
    values: npt.NDArray[np.float32], kind: GGMLQuantizationType, name: str
) -> npt.NDArray[np.float32]:
    decoded: npt.NDArray[np.float32] = dequantize(encode(values, kind, name), kind)
    return decoded.reshape(values.shape).copy()


def _random_blocks(shape: tuple[int, ...], kind: GGMLQuantizationType, seed: int) -> npt.NDArray[np.uint8]:
    """Blocks of 256 numbers with arbitrary quants and sensible float16 scales: `d`, and `dmin` of Q4_K."""
    rng = np.random.default_rng(seed)
    size = _BLOCK_BYTES[kind.name]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // 256, size), dtype=np.uint8)
    scales = {"Q4_K": [0, 2], "Q6_K": [208]}[kind.name]
    for at in scales:
        scale = rng.uniform(2e-4, 4e-4, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def _interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of a half-split projection in the order in which llama.cpp rotates: 0, d/2, 1, d/2 + 1, ..."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def _short_name(name: str) -> str:
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name


def rope_settings(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """A `rope_parameters` of linear or yarn in GGUF's words."""
    words = {"rope_type": "type", "original_max_position_embeddings": "original_context_length"}
    words |= {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    return {f"rope.scaling.{words.get(key, key)}": value for key, value in scaling.items()}
