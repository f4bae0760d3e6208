"""The shipped model against `transformers` on the same file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.models.gguf_file import read_gguf
from engine.models.loader import LoadedModel, embedded_model_path
from tests.models import tiny
from tests.models.paged_sequences import PagedSequences, prompt_logits

PAGE_SIZE = 16
NEW_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a little girl who",
    "Water boils when",
    "Dear customer , thank you for",
    "The most important thing about computers is that",
    "My favorite food",
    "Birds fly south in the winter because",
    "In the year that the war ended , my father",
    "Scientists have found",
    "Let me explain how an engine works : first",
    "She opened the door and",
    "The difference between good and bad music is",
    "Once the sun",
    "Many people think that dogs are",
    "If you want to learn a new language , you should",
    "There are three kinds of",
    "Every day I went to the market because",
    "A short story about a king , a cat and",
    "Plants need light because",
    "The quick brown fox",
]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny.load(embedded_model_path())


@pytest.fixture(scope="module")
def oracle() -> PreTrainedModel:
    """SmolLM2-135M as published, with what `transformers`' own GGUF reader makes of the file."""
    path = str(embedded_model_path())
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    with tiny.quiet():
        made = LlamaForCausalLM(config)
        tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=made)["tensors"]
        made.load_state_dict(tensors, strict=False)
        made.tie_weights()
    made.eval()
    return made


@pytest.fixture(scope="module")
def prompts() -> dict[int, list[int]]:
    """Every word of the prompts is one token of the vocabulary."""
    tokens = read_gguf(embedded_model_path()).metadata["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    return {
        key: [ids[word if at == 0 else "Ġ" + word] for at, word in enumerate(prompt.split())]
        for key, prompt in enumerate(PROMPTS)
    }


@pytest.fixture(scope="module")
def batched(model: LoadedModel, prompts: dict[int, list[int]]) -> dict[int, list[int]]:
    """Greedy continuations, all prompts in one batch."""
    return greedy(model, prompts, chunk=512)


def greedy(model: LoadedModel, prompts: dict[int, list[int]], *, chunk: int) -> dict[int, list[int]]:
    """NEW_TOKENS likeliest tokens after each prompt; the prompts run in chunks of `chunk`."""
    longest = max(map(len, prompts.values()))
    num_pages = len(prompts) * -(-(longest + NEW_TOKENS) // PAGE_SIZE)
    sequences = PagedSequences(model, num_pages=num_pages, page_size=PAGE_SIZE)
    output: dict[int, list[int]] = {}
    for start in range(0, longest, chunk):
        rest = {key: tokens[start : start + chunk] for key, tokens in prompts.items() if tokens[start:]}
        for key, row in zip(rest, sequences.step(rest), strict=True):
            output[key] = [int(row.argmax())]
    for _ in range(NEW_TOKENS - 1):
        logits = sequences.step({key: tokens[-1:] for key, tokens in output.items()})
        for tokens, row in zip(output.values(), logits, strict=True):
            tokens.append(int(row.argmax()))
    return output


def test_weights(model: LoadedModel, oracle: PreTrainedModel) -> None:
    """Bit for bit, the undone permutation of queries and keys included."""
    state = oracle.state_dict()
    weights = model.weights
    assert torch.equal(weights.embed, state["model.embed_tokens.weight"])
    assert weights.lm_head is weights.embed
    for index, layer in enumerate(weights.layers):
        for name, tensor in {"q": layer.q, "k": layer.k, "v": layer.v, "o": layer.o}.items():
            assert torch.equal(tensor, state[f"model.layers.{index}.self_attn.{name}_proj.weight"])
        assert torch.equal(layer.down, state[f"model.layers.{index}.mlp.down_proj.weight"])


def test_logits(model: LoadedModel, oracle: PreTrainedModel, prompts: dict[int, list[int]]) -> None:
    tokens = [token for prompt in prompts.values() for token in prompt]
    ours, theirs = prompt_logits(model, tokens, page_size=PAGE_SIZE), tiny.oracle_logits(oracle, tokens)
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def test_greedy_text(
    oracle: PreTrainedModel, prompts: dict[int, list[int]], batched: dict[int, list[int]]
) -> None:
    """If `transformers`, shown a prompt and our text, puts each of our tokens first, then its own greedy
    text is ours: by induction, one forward pass a prompt instead of one a token."""
    for key, prompt in prompts.items():
        logits: Tensor = tiny.oracle_logits(oracle, prompt + batched[key])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == batched[key], PROMPTS[key]


def test_greedy_text_alone_and_in_chunks(
    model: LoadedModel, prompts: dict[int, list[int]], batched: dict[int, list[int]]
) -> None:
    assert greedy(model, {7: prompts[7]}, chunk=3)[7] == batched[7]
