"""GGUF files against `transformers` on the same values, and what is said of files that cannot be loaded."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models.errors import ModelError
from engine.models.loader import load_model
from engine.models.rope import rotary_frequencies
from tests.models import tiny, tiny_gguf
from tests.models.paged_sequences import prompt_logits
from tests.models.tiny_gguf import TinyGGUF

F32 = GGMLQuantizationType.F32
MODELS: dict[str, tuple[type[PreTrainedModel], type[Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def make(architecture: str, **changes: Any) -> PreTrainedModel:
    sizes = {
        "vocab_size": tiny.VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attn_implementation": "eager",
    }
    if architecture == "qwen3":
        sizes["head_dim"] = 16
    model, config = MODELS[architecture]
    with tiny.quiet():
        made = model(config(**sizes | changes))
        tiny.randomise(made)
    return made


def ids(count: int) -> list[int]:
    return random.Random(1).choices(range(tiny.VOCAB), k=count)


def check_logits(oracle: PreTrainedModel, path: Path) -> None:
    tokens = ids(30)
    expected = tiny.oracle_logits(oracle, tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(prompt_logits(tiny.load(path), tokens), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_architectures_and_types(tmp_path: Path, architecture: str, kind: str) -> None:
    oracle = make(architecture)
    check_logits(oracle, tiny_gguf.from_model(oracle, architecture, kind).write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_k_quants(tmp_path: Path, kind: str) -> None:
    oracle = make("llama", hidden_size=256, intermediate_size=256)
    check_logits(oracle, tiny_gguf.from_model(oracle, "llama", kind).write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 1}),
        ("qwen2", {"tie_word_embeddings": True}),
    ],
)
def test_variants(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    oracle = make(architecture, **changes)
    path = tiny_gguf.from_model(oracle, architecture).write(tmp_path / "m.gguf")
    spec = tiny.load(path).spec
    assert spec.tie_embeddings == changes.get("tie_word_embeddings", False)
    check_logits(oracle, path)


def test_explicit_head_dim(tmp_path: Path) -> None:
    oracle = make("llama", head_dim=24)
    file = tiny_gguf.from_model(oracle, "llama")
    file.metadata |= {"attention.key_length": 24, "attention.value_length": 24, "rope.dimension_count": 24}
    check_logits(oracle, file.write(tmp_path / "m.gguf"))


def test_partial_rotary_unpermutes_the_rotated_rows_only(tmp_path: Path) -> None:
    file = tiny_gguf.from_model(make("llama"), "llama")
    file.metadata["rope.dimension_count"] = 8
    rows = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    file.tensors["blk.0.attn_q.weight"] = (rows, F32)
    loaded = tiny.load(file.write(tmp_path / "m.gguf"))
    order = [0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)]
    expected = rows.reshape(4, 16, 64)[:, order].reshape(64, 64)
    np.testing.assert_array_equal(loaded.weights.layers[0].q.numpy(), expected)


def test_mistral_window(tmp_path: Path) -> None:
    """A Mistral file says it is llama, with a window on every layer."""
    file = tiny_gguf.from_model(make("llama"), "llama")
    for window, expected in [(7, 7), (128, None), (0, None)]:
        file.metadata["attention.sliding_window"] = window
        assert tiny.load(file.write(tmp_path / "m.gguf")).spec.sliding_window == (expected, expected)


def test_bfloat16_and_progress(tmp_path: Path) -> None:
    file = tiny_gguf.from_model(make("qwen2"), "qwen2", "Q8_0")
    path = file.write(tmp_path / "m.gguf")
    exact = tiny.load(path)
    reports: list[tuple[str, float]] = []
    half = load_model(
        path,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        progress=lambda label, fraction: reports.append((label, fraction)),
    )
    assert torch.equal(half.weights.layers[1].down, exact.weights.layers[1].down.to(torch.bfloat16))
    fractions = [fraction for _, fraction in reports]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1], len(fractions)) == (0.0, 1.0, len(file.tensors) + 1)
    assert {label for label, _ in reports} == {"Loading weights"}


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_rope_scaling(tmp_path: Path, scaling: dict[str, Any]) -> None:
    oracle = make("qwen2", rope_parameters=scaling | {"rope_theta": 500.0})
    file = tiny_gguf.from_model(oracle, "qwen2")
    file.metadata |= tiny_gguf.rope_settings(scaling)
    path = file.write(tmp_path / "m.gguf")
    with tiny.quiet():
        expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](oracle.config)
    frequencies, attention_factor = rotary_frequencies(tiny.load(path).spec)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(factor)
    check_logits(oracle, path)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 8.0}, 8.0),
    ],
)
def test_linear_scaling_of_old_files(tmp_path: Path, metadata: dict[str, Any], expected: float) -> None:
    file = tiny_gguf.from_model(make("llama"), "llama")
    plain, _ = rotary_frequencies(tiny.load(file.write(tmp_path / "plain.gguf")).spec)
    file.metadata |= metadata
    scaled, factor = rotary_frequencies(tiny.load(file.write(tmp_path / "m.gguf")).spec)
    torch.testing.assert_close(scaled, plain / expected)
    assert factor == 1.0


def test_llama3_is_stored_as_divisors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    oracle = make("llama", rope_parameters=scaling | {"rope_theta": 500.0})
    with tiny.quiet():
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](oracle.config)
    plain = 1.0 / 500.0 ** (torch.arange(0, 16, 2) / 16)
    file = tiny_gguf.from_model(oracle, "llama")
    file.tensors["rope_freqs.weight"] = ((plain / scaled).numpy(), F32)
    path = file.write(tmp_path / "m.gguf")
    assert rotary_frequencies(tiny.load(path).spec)[1] == 1.0
    check_logits(oracle, path)


def test_longrope(tmp_path: Path) -> None:
    short, long = [1.0 + 0.1 * at for at in range(8)], [1.0 + 2.0 * at for at in range(8)]
    scaling = {
        "rope_type": "longrope",
        "factor": 4.0,
        "attention_factor": 1.25,
        "original_max_position_embeddings": 16,
        "short_factor": short,
        "long_factor": long,
    }
    oracle = make("llama", rope_parameters=scaling | {"rope_theta": 500.0})
    file = tiny_gguf.from_model(oracle, "llama")
    file.metadata |= {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": 16,
        "rope.scaling.attn_factor": 1.25,
    }
    file.tensors["rope_factors_short.weight"] = (np.array(short, np.float32), F32)
    file.tensors["rope_factors_long.weight"] = (np.array(long, np.float32), F32)
    check_logits(oracle, file.write(tmp_path / "m.gguf"))


@pytest.fixture(scope="module")
def template() -> TinyGGUF:
    return tiny_gguf.from_model(make("llama"), "llama")


@pytest.fixture
def file(template: TinyGGUF) -> TinyGGUF:
    """A good file, to be spoiled."""
    return TinyGGUF(template.architecture, dict(template.metadata), dict(template.tensors))


def refusal(path: Path) -> str:
    """The message of the error; it must name the file."""
    with pytest.raises(ModelError) as caught:
        tiny.load(path)
    message = str(caught.value)
    assert str(path) in message
    return message.replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", None, "FILE: field 'llama.block_count' is missing"),
        ("context_length", None, "FILE: field 'llama.context_length' is missing"),
        ("context_length", "long", "field 'llama.context_length' is 'long', not a positive whole number"),
        ("embedding_length", 0, "field 'llama.embedding_length' is 0, not a positive whole number"),
        ("embedding_length", 96, "tensor 'token_embd.weight' has shape [97, 64], expected [97, 96]"),
        ("feed_forward_length", 7, "tensor 'blk.0.ffn_gate.weight' has shape [96, 64], expected [7, 64]"),
        ("feed_forward_length", [96, 48], "field 'llama.feed_forward_length' is '[96, 48]', not a positive"),
        ("block_count", 3, "FILE: tensor 'blk.2.attn_norm.weight' is missing"),
        ("block_count", 1, "FILE: tensor 'blk.1.attn_q.weight' has no place in this architecture"),
        ("block_count", 4_000_000_000, "'llama.block_count' is 4000000000, but there are only 21 tensors"),
        ("attention.head_count_kv", 3, "field 'llama.attention.head_count_kv' is 3, which does not divide 4"),
        ("attention.value_length", 8, "'llama.attention.value_length' is 8, not the length of keys, 16"),
        ("attention.layer_norm_rms_epsilon", None, "'llama.attention.layer_norm_rms_epsilon' is missing"),
        (
            "attention.sliding_window_pattern",
            6,
            "'llama.attention.sliding_window_pattern' is 6, which is not",
        ),
        ("rope.dimension_count", 7, "field 'llama.rope.dimension_count' is 7, not an even number up to 16"),
        (
            "rope.scaling.type",
            "spiral",
            "field 'llama.rope.scaling.type' is 'spiral', which is not supported",
        ),
        (
            "rope.scaling.type",
            "longrope",
            "'llama.rope.scaling.type' is 'longrope', but the tensors rope_factors",
        ),
        ("rope.scaling.yarn_log_multiplier", 0.1, "field 'llama.rope.scaling.yarn_log_multiplier' is 0.1"),
        ("expert_count", 8, "field 'llama.expert_count' is 8, which is not supported"),
        ("split.count", 2, "field 'split.count': files split in parts are not supported"),
        ("general.alignment", "x", "field 'general.alignment' is 'x', not a positive whole number"),
    ],
)
def test_refused_fields(tmp_path: Path, file: TinyGGUF, key: str, value: Any, message: str) -> None:
    if value is None:
        del file.metadata[key]
    else:
        file.metadata[key] = value
    assert message in refusal(file.write(tmp_path / "m.gguf"))


def test_refuses_unknown_architecture(tmp_path: Path, file: TinyGGUF) -> None:
    file.architecture = "gemma3"
    message = refusal(file.write(tmp_path / "m.gguf"))
    assert "field 'general.architecture' is 'gemma3'; supported are llama, qwen2, qwen3" in message


def test_refuses_windows_of_unknown_layers(tmp_path: Path) -> None:
    file = tiny_gguf.from_model(make("qwen2"), "qwen2")
    file.metadata["attention.sliding_window"] = 7
    assert "field 'qwen2.attention.sliding_window' is 7" in refusal(file.write(tmp_path / "m.gguf"))


def _remove(name: str) -> Callable[[TinyGGUF], object]:
    return lambda file: file.tensors.pop(name)


def _put(name: str, rows: np.ndarray[Any, Any], kind: str = "F32") -> Callable[[TinyGGUF], object]:
    return lambda file: file.tensors.update({name: (rows, GGMLQuantizationType[kind])})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_remove("token_embd.weight"), "FILE: tensor 'token_embd.weight' is missing"),
        (_remove("blk.1.ffn_up.weight"), "FILE: tensor 'blk.1.ffn_up.weight' is missing"),
        (
            _put("blk.0.attn_q.bias", np.ones(64, np.float32)),
            "FILE: tensor 'blk.1.attn_q.bias' is missing",
        ),
        (
            _put("blk.0.ffn_gate_inp.weight", np.ones((4, 64), np.float32)),
            "FILE: tensor 'blk.0.ffn_gate_inp.weight' has no place in this architecture",
        ),
        (
            _put("blk.1.attn_v.weight", np.ones((16, 64), np.float32)),
            "FILE: tensor 'blk.1.attn_v.weight' has shape [16, 64], expected [32, 64]",
        ),
        (
            _put("blk.1.attn_v.weight", np.zeros((32, 44), np.uint8), "Q5_0"),
            "FILE: tensor 'blk.1.attn_v.weight' is of type Q5_0; supported are F32, F16, BF16, Q8_0, Q4_0",
        ),
        (
            _put("rope_freqs.weight", np.ones(4, np.float32)),
            "'llama.rope.dimension_count' is None, but 'rope_freqs.weight' has 4 numbers",
        ),
    ],
)
def test_refused_tensors(
    tmp_path: Path, file: TinyGGUF, spoil: Callable[[TinyGGUF], object], message: str
) -> None:
    spoil(file)
    assert message in refusal(file.write(tmp_path / "m.gguf"))


def test_qwen2_without_its_biases(tmp_path: Path) -> None:
    file = tiny_gguf.from_model(make("qwen2"), "qwen2")
    for layer in (0, 1):
        del file.tensors[f"blk.{layer}.attn_k.bias"]
    assert refusal(file.write(tmp_path / "m.gguf")) == "FILE: tensor 'blk.0.attn_k.bias' is missing"


def test_truncated_tensor_data(tmp_path: Path, file: TinyGGUF) -> None:
    path = file.write(tmp_path / "m.gguf")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-8000])
    message = refusal(path)
    assert message == (
        f"FILE: truncated: tensor 'output.weight' ends at byte {size}, the file at byte {size - 8000}"
    )


def test_truncated_header(tmp_path: Path, file: TinyGGUF) -> None:
    """Wherever the header ends early, the error says so."""
    path = file.write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for size in range(4, 700, 3):
        path.write_bytes(whole[:size])
        assert refusal(path).startswith("FILE: truncated within its header, in ")


def test_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    for content in (b"", b"GG", b"PK\x03\x04" * 20):
        path.write_bytes(content)
        assert refusal(path) == "FILE: not a GGUF file (it does not begin with 'GGUF')"


def test_missing_path(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere.gguf") == "FILE: there is no such file or directory"


@pytest.mark.parametrize(("order", "version"), [("<", 1), ("<", 9), (">", 3)])
def test_refuses_other_versions(tmp_path: Path, order: str, version: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(order + "IQQ", version, 0, 0))
    assert "GGUF version" in refusal(path)


@given(at=st.integers(4, 1800), byte=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_damaged_header_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, template: TinyGGUF, at: int, byte: int
) -> None:
    """No byte of the header can cause anything but a ModelError."""
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    if not path.exists():
        template.write(tmp_path_factory.getbasetemp() / "whole.gguf")
    content = bytearray((tmp_path_factory.getbasetemp() / "whole.gguf").read_bytes())
    content[at] = byte
    path.write_bytes(content)
    try:
        tiny.load(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017  # both outcomes are right
