"""Rotary frequencies against `transformers`, from both spellings of config.json and from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models.errors import ModelError
from engine.models.hf_config import read_config
from engine.models.rope import rotary_angles, rotary_frequencies
from engine.models.spec import ModelSpec
from tests.models import tiny

HEAD_DIM = 64
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 8,
    "max_position_embeddings": 32768,
}
SHORT = [1.0 + 0.1 * index for index in range(HEAD_DIM // 2)]
LONG = [1.0 + index**1.3 for index in range(HEAD_DIM // 2)]
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn without original": {"rope_type": "yarn", "factor": 2.0},
    "yarn betas": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "truncate": False,
    },
    "yarn attention_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.5,
    },
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "short_factor": SHORT,
        "long_factor": LONG,
    },
    "longrope without factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 4096,
        "short_factor": SHORT,
        "long_factor": LONG,
    },
    "longrope attention_factor": {
        "rope_type": "longrope",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "short_factor": SHORT,
        "long_factor": LONG,
        "attention_factor": 1.19,
    },
}


def spec_of(directory: Path, **fields: Any) -> ModelSpec:
    config = {"architectures": ["LlamaForCausalLM"]} | SIZES | fields
    (directory / "config.json").write_text(json.dumps(config))
    return read_config(directory)[0]


def theirs(scaling: dict[str, Any], theta: float, seq_len: int | None) -> tuple[torch.Tensor, float]:
    with tiny.quiet():
        config = LlamaConfig(**SIZES, rope_parameters=scaling | {"rope_theta": theta})
        frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, seq_len=seq_len)
    return frequencies, factor


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "rope_scaling with type"])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_scaling_variants(tmp_path: Path, scaling: dict[str, Any], spelling: str) -> None:
    theta = 500_000.0
    if spelling == "rope_parameters":
        spec = spec_of(tmp_path, rope_parameters=scaling | {"rope_theta": theta})
    elif spelling == "rope_scaling":
        spec = spec_of(tmp_path, rope_scaling=scaling, rope_theta=theta)
    else:
        old = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
        spec = spec_of(tmp_path, rope_scaling=old, rope_theta=theta)
    expected, factor = theirs(scaling, theta, seq_len=SIZES["max_position_embeddings"])
    frequencies, attention_factor = rotary_frequencies(spec)
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(factor, rel=1e-12)


def test_longrope_served_within_the_original_context(tmp_path: Path) -> None:
    """A server that never goes beyond it uses the short factors, as `transformers` does."""
    scaling = SCALINGS["longrope"]
    spec = msgspec.structs.replace(spec_of(tmp_path, rope_scaling=scaling, rope_theta=1e4), max_position=4096)
    expected, factor = theirs(scaling, 1e4, seq_len=4096)
    frequencies, attention_factor = rotary_frequencies(spec)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(factor, rel=1e-12)


def test_original_context_beside_the_scaling(tmp_path: Path) -> None:
    """Where Phi-3's configs have it; it wins over the one inside."""
    spec = spec_of(
        tmp_path,
        original_max_position_embeddings=2048,
        rope_scaling=SCALINGS["yarn"],
    )
    assert spec.rope_scaling is not None
    assert spec.rope_scaling.original_max_position == 2048


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({}, 10_000.0),
        ({"rope_theta": 1e6}, 1e6),
        ({"rope_scaling": None, "rope_theta": 1e6}, 1e6),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, 1e5),
        ({"rope_parameters": {"rope_theta": 1e5}, "rope_theta": 7.0}, 1e5),
    ],
)
def test_no_scaling(tmp_path: Path, fields: dict[str, Any], theta: float) -> None:
    spec = spec_of(tmp_path, **fields)
    assert spec.rope_scaling is None
    frequencies, factor = rotary_frequencies(spec)
    expected = theta ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    np.testing.assert_allclose(frequencies.numpy(), expected, rtol=1e-6)
    assert factor == 1.0


def test_partial_rotary(tmp_path: Path) -> None:
    for fields in ({"partial_rotary_factor": 0.25}, {"rope_parameters": {"partial_rotary_factor": 0.25}}):
        spec = spec_of(tmp_path, **fields)
        assert (spec.head_dim, spec.rotary_dim) == (64, 16)
        expected = 10_000.0 ** -(np.arange(0, 16, 2) / 16)
        np.testing.assert_allclose(rotary_frequencies(spec)[0].numpy(), expected, rtol=1e-6)


def test_angles() -> None:
    frequencies = torch.tensor([1.0, 0.25])
    cos, sin = rotary_angles(frequencies, 1.5, torch.tensor([0, 3, 100]))
    angles = np.array([0, 3, 100])[:, None] * np.array([1.0, 0.25])
    np.testing.assert_allclose(cos.numpy(), 1.5 * np.cos(angles), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sin.numpy(), 1.5 * np.sin(angles), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "proportional"}, "field 'rope_scaling.rope_type' is 'proportional'"),
        ({"type": "mrope"}, "field 'rope_scaling.rope_type' is 'mrope'"),
        ({"rope_type": "linear"}, "field 'rope_scaling.factor' is missing"),
        ({"rope_type": "llama3", "factor": 8.0}, "field 'rope_scaling.low_freq_factor' is missing"),
        ({"rope_type": "longrope", "short_factor": SHORT}, "field 'rope_scaling.long_factor' is missing"),
        (
            {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG[1:]},
            "field 'rope_scaling.long_factor' has 31 numbers, expected 32",
        ),
        ({"rope_type": "linear", "factor": "two"}, r"field 'rope_scaling': .*\$\.factor"),
        ({"rope_type": "linear", "factor": 0}, r"field 'rope_scaling': .*\$\.factor"),
        ({"full_attention": {"rope_type": "default"}}, "field 'rope_scaling.full_attention'"),
    ],
)
def test_refusals(tmp_path: Path, rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(tmp_path, rope_scaling=rope)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize("factor", [0.05, 1.5])
def test_refuses_impossible_partial_rotary(tmp_path: Path, factor: float) -> None:
    with pytest.raises(ModelError, match="field 'partial_rotary_factor'"):
        spec_of(tmp_path, partial_rotary_factor=factor)
