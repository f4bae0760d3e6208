"""Checkpoint directories: what is read from them, and what is said of those that cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.errors import ModelError
from engine.models.loader import load_model
from tests.models import tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A good checkpoint, to be spoiled."""
    return tiny.save(tiny.make("qwen3"), tmp_path / "tiny-qwen")


def refusal(directory: Path) -> str:
    """The message of the error, with the directory's path left out."""
    with pytest.raises(ModelError) as caught:
        tiny.load(directory)
    message = str(caught.value)
    assert str(directory) in message
    return message.replace(str(directory), "DIR")


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_every_tensor_is_in_its_place(directory: Path) -> None:
    state = load_file(directory / "model.safetensors")
    model = tiny.load(directory)
    layer = model.weights.layers[2]
    places = {
        "self_attn.q_proj": layer.q,
        "self_attn.k_proj": layer.k,
        "self_attn.v_proj": layer.v,
        "self_attn.o_proj": layer.o,
        "self_attn.q_norm": layer.q_norm,
        "self_attn.k_norm": layer.k_norm,
        "mlp.gate_proj": layer.gate,
        "mlp.up_proj": layer.up,
        "mlp.down_proj": layer.down,
        "input_layernorm": layer.input_norm,
        "post_attention_layernorm": layer.post_norm,
    }
    for name, tensor in places.items():
        assert tensor is not None
        assert torch.equal(tensor, state[f"model.layers.2.{name}.weight"])
    assert torch.equal(model.weights.embed, state["model.embed_tokens.weight"])
    assert torch.equal(model.weights.norm, state["model.norm.weight"])
    assert torch.equal(model.weights.lm_head, state["lm_head.weight"])
    assert model.spec.name == "tiny-qwen"


def test_tied_embeddings_are_one_tensor(tmp_path: Path) -> None:
    """Also where the checkpoint holds a copy, as old ones do."""
    directory = tiny.save(tiny.make("llama-tied"), tmp_path)
    edit_tensors(
        directory,
        lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}),
    )
    model = tiny.load(directory)
    assert model.weights.lm_head is model.weights.embed


def test_buffers_of_old_checkpoints_are_passed_over(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(directory, lambda tensors: tensors.update({name: torch.ones(4)}))
    assert tiny.load(directory).spec.num_layers == 3


def test_shards(tmp_path: Path) -> None:
    oracle = tiny.make("llama")
    whole = tiny.load(tiny.save(oracle, tmp_path / "whole"))
    sharded = tiny.save(oracle, tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    model = tiny.load(sharded)
    assert torch.equal(model.weights.lm_head, whole.weights.lm_head)
    for ours, theirs in zip(model.weights.layers, whole.weights.layers, strict=True):
        assert torch.equal(ours.down, theirs.down)


def test_dtypes_are_converted_and_progress_is_told(directory: Path) -> None:
    exact = tiny.load(directory).weights
    edit_tensors(
        directory, lambda tensors: tensors.update({name: each.half() for name, each in tensors.items()})
    )
    reports: list[tuple[str, float]] = []
    half = load_model(
        directory,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        progress=lambda label, fraction: reports.append((label, fraction)),
    )
    assert torch.equal(half.weights.layers[0].q, exact.layers[0].q.half().to(torch.bfloat16))
    fractions = [fraction for _, fraction in reports]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1], len(fractions)) == (0.0, 1.0, 3 + 11 * 3 + 1)
    assert {label for label, _ in reports} == {"Loading weights"}


def test_weights_do_not_change_with_the_file(directory: Path) -> None:
    model = tiny.load(directory)
    before = model.weights.layers[0].q.clone()
    path = directory / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(model.weights.layers[0].q, before)


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("qwen2-window", {"layer_types": None}, (None, None, 5)),
        ("qwen2-window", {"layer_types": None, "max_window_layers": 1}, (None, 5, 5)),
        ("qwen2-window", {"layer_types": None, "max_window_layers": 28}, (None, None, None)),
        ("qwen2-window", {"use_sliding_window": False}, (None, None, None)),
        ("qwen2-layer-types", {}, (7, None, 7)),
        ("mistral-window", {}, (6, 6, 6)),
        ("mistral-window", {"sliding_window": None}, (4096, 4096, 4096)),  # absent: the default
        ("mistral", {}, (None, None, None)),  # null
        ("llama", {"sliding_window": 7}, (None, None, None)),  # not a field of Llama's
    ],
)
def test_windows(tmp_path: Path, name: str, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    directory = tiny.save(tiny.make(name), tmp_path)
    tiny.edit_config(directory, **changes)
    assert tiny.load(directory).spec.sliding_window == windows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Gemma3ForCausalLM"]},
            "field 'architectures' is ['Gemma3ForCausalLM']; supported",
        ),
        ({"architectures": []}, "field 'architectures' is []; supported are LlamaForCausalLM"),
        ({"architectures": None}, "missing required field `architectures`"),
        ({"hidden_size": None}, "missing required field `hidden_size`"),
        ({"hidden_size": "32"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"num_hidden_layers": 0}, "Expected `int` >= 1 - at `$.num_hidden_layers`"),
        ({"hidden_act": "gelu"}, "field 'hidden_act' is 'gelu'; only 'silu' is supported"),
        ({"num_key_value_heads": 3}, "field 'num_key_value_heads' is 3, which does not divide"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "field 'quantization_config': quantised weights (gptq) are not supported",
        ),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention"]},
            "field 'layer_types' has 1 entries for 3 layers",
        ),
        (
            {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 3},
            "field 'layer_types' has 'chunked_attention'; supported are full_attention, sliding_attention",
        ),
    ],
)
def test_refused_fields(directory: Path, changes: dict[str, Any], message: str) -> None:
    tiny.edit_config(directory, **changes)
    refused = refusal(directory)
    assert refused.startswith("DIR/config.json: ")
    assert message in refused


def test_refuses_heads_that_do_not_divide(tmp_path: Path) -> None:
    directory = tiny.save(tiny.make("llama"), tmp_path)
    tiny.edit_config(directory, num_attention_heads=5, num_key_value_heads=5, head_dim=None)
    assert "field 'num_attention_heads' is 5, which does not divide hidden_size, 32" in refusal(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 98}, "tensor 'model.embed_tokens.weight' has shape [97, 32], expected [98, 32]"),
        (
            {"head_dim": 16},
            "tensor 'model.layers.0.self_attn.q_proj.weight' has shape [32, 32], expected [64, 32]",
        ),
        ({"num_hidden_layers": 4}, "DIR: tensor 'model.layers.3.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 2}, "DIR: tensor 'model.layers.2.input_layernorm.weight' has no place"),
        ({"attention_bias": True}, "DIR: tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            "DIR: tensor 'model.layers.0.self_attn.q_proj.bias' is missing",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "_norm.weight' has no place in this architecture"),
    ],
)
def test_config_and_tensors_disagree(directory: Path, changes: dict[str, Any], message: str) -> None:
    tiny.edit_config(directory, **changes)
    assert message in refusal(directory)


def test_malformed_config(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(path.read_text()[:100])
    assert refusal(directory).startswith("DIR/config.json: Input data was truncated")
    path.unlink()
    assert refusal(directory) == "DIR/config.json: No such file or directory"


def test_missing_tensor(directory: Path) -> None:
    edit_tensors(directory, lambda tensors: tensors.pop("model.norm.weight"))
    assert refusal(directory) == "DIR: tensor 'model.norm.weight' is missing"


def test_unsupported_type(directory: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(directory, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    assert f"model.safetensors: tensor '{name}' is of type I8; supported are BF16, F16, F32" in refusal(
        directory
    )


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_truncated_file(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(directory).startswith("DIR/model.safetensors: truncated or damaged: ")


def test_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert refusal(directory) == "DIR: there is neither model.safetensors nor model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint in shards and its index."""
    directory = tiny.save(tiny.make("llama"), tmp_path / "sharded", max_shard_size="20KB")
    return directory, directory / "model.safetensors.index.json"


def test_missing_shard(sharded: tuple[Path, Path]) -> None:
    directory, index = sharded
    name = json.loads(index.read_text())["weight_map"]["model.norm.weight"]
    (directory / name).unlink()
    assert refusal(directory).startswith(f"DIR/{name}: ")


def test_index_names_the_wrong_shard(sharded: tuple[Path, Path]) -> None:
    directory, index = sharded
    content = json.loads(index.read_text())
    names = sorted(set(content["weight_map"].values()))
    wrong = next(name for name in names if name != content["weight_map"]["model.norm.weight"])
    content["weight_map"]["model.norm.weight"] = wrong
    index.write_text(json.dumps(content))
    assert refusal(directory) == f"DIR/{wrong}: tensor 'model.norm.weight' is missing"


def test_malformed_index(sharded: tuple[Path, Path]) -> None:
    directory, index = sharded
    index.write_text('{"metadata": {}}')
    assert refusal(directory) == (
        "DIR/model.safetensors.index.json: Object missing required field `weight_map`"
    )
