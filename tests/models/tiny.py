"""Tiny random models in `transformers`, the oracle: one for each thing a decoder can have."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from engine.models.loader import LoadedModel, load_model

VOCAB = 97
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
_FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.5], "long_factor": [1.0, 2.5, 6.0, 11.0]}


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


def _llama(**settings: Any) -> Callable[[], PreTrainedModel]:
    return lambda: LlamaForCausalLM(LlamaConfig(**_SIZES | settings))


def _mistral(**settings: Any) -> Callable[[], PreTrainedModel]:
    return lambda: MistralForCausalLM(MistralConfig(**_SIZES | settings))


def _qwen2(**settings: Any) -> Callable[[], PreTrainedModel]:
    return lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES | settings))


def _qwen3(**settings: Any) -> Callable[[], PreTrainedModel]:
    return lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES | {"head_dim": 8} | settings))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama(),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True),
    "llama-one-kv-head": _llama(num_key_value_heads=1),
    "llama-all-kv-heads": _llama(num_key_value_heads=4),
    "llama-wide-heads": _llama(head_dim=20),
    "llama-linear": _llama(**_rope("linear", factor=4.0)),
    "llama-dynamic": _llama(**_rope("dynamic", factor=2.0)),
    "llama-llama3": _llama(
        **_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
    ),
    "llama-yarn": _llama(**_rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama-yarn-untruncated": _llama(
        **_rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=16,
            truncate=False,
            beta_fast=4.0,
            beta_slow=0.5,
            mscale=1.2,
            mscale_all_dim=0.7,
        )
    ),
    "llama-longrope-long": _llama(
        **_rope("longrope", factor=4.0, original_max_position_embeddings=16, **_FACTORS)
    ),
    "llama-longrope-short": _llama(
        **_rope("longrope", factor=4.0, original_max_position_embeddings=64, **_FACTORS)
    ),
    "mistral": _mistral(sliding_window=None),
    "mistral-window": _mistral(sliding_window=6),
    "qwen2": _qwen2(),
    "qwen2-tied": _qwen2(tie_word_embeddings=True),
    "qwen2-window": _qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen2-layer-types": _qwen2(
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": _qwen3(),
    "qwen3-biases-tied": _qwen3(attention_bias=True, tie_word_embeddings=True),
    "qwen3-yarn": _qwen3(**_rope("yarn", factor=2.0, original_max_position_embeddings=32)),
}


@contextmanager
def quiet() -> Iterator[None]:
    """Around calls of `transformers`: its deprecations and its log are not ours."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def randomise(model: PreTrainedModel) -> None:
    """Give every parameter, norms and biases included, values that matter; ready for inference."""
    model.eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "norm" in name else 0.0
            parameter.copy_(around + 0.3 * torch.randn(parameter.shape, generator=generator))


def make(name: str) -> PreTrainedModel:
    """The model `name` of MODELS."""
    with quiet():
        model = MODELS[name]()
        randomise(model)
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """Write the model as a checkpoint directory."""
    with quiet():
        model.save_pretrained(directory, **options)
    return directory


def load(path: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Read a model with the loader under test."""
    return load_model(path, dtype=dtype, device=torch.device("cpu"), progress=lambda _label, _fraction: None)


def oracle_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """What `transformers` computes: float32 [tokens, vocab]."""
    with quiet(), torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    return logits


def edit_config(directory: Path, **changes: Any) -> None:
    """Overwrite fields of config.json; None removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    for key, value in changes.items():
        if value is None:
            del config[key]
    path.write_text(json.dumps(config))
