"""The decoder against `transformers` on the same weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from engine.models.loader import LoadedModel
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights
from tests.models import tiny
from tests.models.paged_sequences import PagedSequences, prompt_logits

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=tiny.MODELS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, LoadedModel]:
    """A model in `transformers`, and what the loader makes of its checkpoint."""
    oracle = tiny.make(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    return oracle, tiny.load(tiny.save(oracle, directory))


def ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(tiny.VOCAB), k=count)


def test_whole_prompt(pair: tuple[PreTrainedModel, LoadedModel]) -> None:
    oracle, model = pair
    tokens = ids(40, seed=1)
    expected = tiny.oracle_logits(oracle, tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(prompt_logits(model, tokens), expected, atol=TOLERANCE, rtol=0)


def test_chunks_and_single_tokens(pair: tuple[PreTrainedModel, LoadedModel]) -> None:
    oracle, model = pair
    tokens = ids(40, seed=2)
    sequences = PagedSequences(model, num_pages=14, page_size=3)
    computed = [
        sequences.step({0: tokens[start:stop]}, logits_of="every")
        for start, stop in [(0, 7), (7, 8), (8, 9), (9, 25), (25, 38), (38, 39), (39, 40)]
    ]
    torch.testing.assert_close(
        torch.cat(computed), tiny.oracle_logits(oracle, tokens), atol=TOLERANCE, rtol=0
    )


def test_ragged_batches(pair: tuple[PreTrainedModel, LoadedModel]) -> None:
    """Rows that start, prefill in chunks and decode share steps; only the last tokens give logits."""
    oracle, model = pair
    tokens = {key: ids(40, seed=10 + key) for key in range(4)}
    done = dict.fromkeys(tokens, 0)
    expected = {key: tiny.oracle_logits(oracle, tokens[key]) for key in tokens}
    sequences = PagedSequences(model, num_pages=24, page_size=8)
    for counts in [{0: 19}, {0: 1, 1: 11}, {1: 1, 2: 25, 0: 1}, {0: 1, 3: 9, 1: 9, 2: 1}, {3: 31, 0: 1}]:
        chunks = {key: tokens[key][done[key] : done[key] + count] for key, count in counts.items()}
        logits = sequences.step(chunks)
        for row, (key, chunk) in enumerate(chunks.items()):
            done[key] += len(chunk)
            torch.testing.assert_close(logits[row], expected[key][done[key] - 1], atol=TOLERANCE, rtol=0)


def test_bfloat16(tmp_path: Path) -> None:
    """Half the digits, but no worse than `transformers` in bfloat16."""
    oracle = tiny.make("qwen3")
    model = tiny.load(tiny.save(oracle, tmp_path), torch.bfloat16)
    tokens = ids(40, seed=3)
    exact = tiny.oracle_logits(oracle, tokens)
    theirs = tiny.oracle_logits(oracle.bfloat16(), tokens)
    sequences = PagedSequences(model, num_pages=10, page_size=4, dtype=torch.bfloat16)
    ours = sequences.step({0: tokens}, logits_of="every")
    assert ours.dtype == torch.float32
    assert (ours - exact).abs().mean() < 1.2 * (theirs - exact).abs().mean()
    torch.testing.assert_close(ours, exact, atol=0.05 * float(exact.abs().max()), rtol=0)


def test_no_row_samples(tmp_path: Path) -> None:
    """A step inside a prompt gives no logits but leaves its keys and values for the next."""
    oracle = tiny.make("llama")
    model = tiny.load(tiny.save(oracle, tmp_path))
    tokens = ids(20, seed=4)
    sequences = PagedSequences(model, num_pages=5, page_size=4)
    assert sequences.step({0: tokens[:19]}, logits_of="none").shape == (0, tiny.VOCAB)
    last = sequences.step({0: tokens[19:]})[0]
    torch.testing.assert_close(last, tiny.oracle_logits(oracle, tokens)[-1], atol=TOLERANCE, rtol=0)


def test_row_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """Greedy text is the same alone, in a batch of 32, and with its prompt in chunks."""
    model = tiny.load(tiny.save(tiny.make("qwen3"), tmp_path))
    prompts = {key: ids(3 + key % 17, seed=20 + key) for key in range(32)}
    batched = greedy(model, prompts, chunk=64)
    assert batched == greedy(model, prompts, chunk=5)
    for key in (0, 7, 31):
        assert batched[key] == greedy(model, {key: prompts[key]}, chunk=64)[key]


def greedy(
    model: LoadedModel, prompts: dict[int, list[int]], *, chunk: int, count: int = 24
) -> dict[int, list[int]]:
    """`count` likeliest tokens after each prompt."""
    sequences = PagedSequences(model, num_pages=32 * 8, page_size=6)
    last: dict[int, int] = {}
    for start in range(0, max(map(len, prompts.values())), chunk):
        rest = {key: tokens[start : start + chunk] for key, tokens in prompts.items()}
        rest = {key: tokens for key, tokens in rest.items() if tokens}
        best = sequences.step(rest).argmax(-1).tolist()
        last |= zip(rest, best, strict=True)
    output = {key: [last[key]] for key in prompts}
    for _ in range(count - 1):
        best = sequences.step({key: tokens[-1:] for key, tokens in output.items()}).argmax(-1).tolist()
        for key, token in zip(output, best, strict=True):
            output[key].append(token)
    return output


def test_partial_rotary() -> None:
    """None of the four architectures rotates only some dimensions in `transformers`; Phi-3, the same
    decoder with fused projections, does."""
    heads, head_dim, hidden, inner = 4, 16, 64, 48
    with tiny.quiet():
        settings: dict[str, Any] = {"partial_rotary_factor": 0.25, "attn_implementation": "eager"}
        config = Phi3Config(
            vocab_size=tiny.VOCAB,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            **settings,
        )
        oracle = Phi3ForCausalLM(config)
        tiny.randomise(oracle)
    state = oracle.state_dict()
    layers = []
    for index in range(2):
        layer = {name.split(".", 3)[3]: value for name, value in state.items() if f".layers.{index}." in name}
        query, key, value = layer["self_attn.qkv_proj.weight"].split(
            [heads * head_dim, 2 * head_dim, 2 * head_dim]
        )
        gate, up = layer["mlp.gate_up_proj.weight"].chunk(2)
        layers.append(
            LayerWeights(
                input_norm=layer["input_layernorm.weight"],
                q=query,
                k=key,
                v=value,
                o=layer["self_attn.o_proj.weight"],
                post_norm=layer["post_attention_layernorm.weight"],
                gate=gate,
                up=up,
                down=layer["mlp.down_proj.weight"],
            )
        )
    spec = ModelSpec(
        architecture="llama",
        name="phi",
        num_layers=2,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=2,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=tiny.VOCAB,
        max_position=64,
        rms_eps=config.rms_norm_eps,
        rope_theta=10_000.0,
        rotary_dim=4,
        tie_embeddings=False,
        sliding_window=(None, None),
    )
    weights = Weights(
        embed=state["model.embed_tokens.weight"],
        layers=tuple(layers),
        norm=state["model.norm.weight"],
        lm_head=state["lm_head.weight"],
    )
    tokens = ids(40, seed=5)
    torch.testing.assert_close(
        prompt_logits(LoadedModel(spec, weights), tokens),
        tiny.oracle_logits(oracle, tokens),
        atol=TOLERANCE,
        rtol=0,
    )
