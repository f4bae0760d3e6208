"""A prompt of 100,000 tokens, in memory that grows linearly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.models.loader import LoadedModel
from engine.models.rope import rotary_frequencies
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights
from tests.kernels.largest_tensor import LargestTensor
from tests.models.paged_sequences import PagedSequences

Float64 = npt.NDArray[np.float64]
LENGTH = 100_000
CHUNK = 512
HIDDEN, HEADS, HEAD_DIM, VOCAB = 16, 2, 8, 50


def tiny_model() -> LoadedModel:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    spec = ModelSpec(
        architecture="llama",
        name="long",
        num_layers=1,
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        intermediate_size=24,
        vocab_size=VOCAB,
        max_position=131_072,
        rms_eps=1e-6,
        rope_theta=1e6,
        rotary_dim=HEAD_DIM,
        tie_embeddings=True,
        sliding_window=(None,),
    )
    layer = LayerWeights(
        input_norm=1 + random(HIDDEN),
        q=random(HEADS * HEAD_DIM, HIDDEN),
        k=random(HEAD_DIM, HIDDEN),
        v=random(HEAD_DIM, HIDDEN),
        o=random(HIDDEN, HEADS * HEAD_DIM),
        post_norm=1 + random(HIDDEN),
        gate=random(24, HIDDEN),
        up=random(24, HIDDEN),
        down=random(HIDDEN, 24),
    )
    embed = random(VOCAB, HIDDEN)
    return LoadedModel(spec, Weights(embed=embed, layers=(layer,), norm=1 + random(HIDDEN), lm_head=embed))


def last_logits(model: LoadedModel, tokens: list[int]) -> Float64:
    """The one layer written out in double precision for the last query."""
    weights, layer = model.weights, model.weights.layers[0]

    def wide(tensor: torch.Tensor | None) -> Float64:
        assert tensor is not None
        return np.asarray(tensor.numpy(), np.float64)

    def norm(x: Float64, weight: torch.Tensor) -> Float64:
        normed: Float64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * wide(weight)
        return normed

    def turn(x: Float64, positions: npt.NDArray[np.int64]) -> Float64:
        """[tokens, heads, HEAD_DIM] as complex pairs, turned; angles rounded to float32 like the model's."""
        half = HEAD_DIM // 2
        frequencies = rotary_frequencies(model.spec)[0].numpy()
        angles = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
        pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate((pairs.real, pairs.imag), axis=-1)

    x = wide(weights.embed)[tokens]
    normed = norm(x, layer.input_norm)
    positions = np.arange(len(tokens), dtype=np.int64)
    keys = turn((normed @ wide(layer.k).T)[:, None], positions)[:, 0]
    query = turn((normed[-1:] @ wide(layer.q).T).reshape(1, HEADS, HEAD_DIM), positions[-1:])[0]
    scores = query @ keys.T / np.sqrt(HEAD_DIM)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    attended = share / share.sum(-1, keepdims=True) @ (normed @ wide(layer.v).T)
    last = x[-1] + wide(layer.o) @ attended.reshape(-1)
    inner = norm(last, layer.post_norm)
    gate = wide(layer.gate) @ inner
    last = last + wide(layer.down) @ (gate / (1 + np.exp(-gate)) * (wide(layer.up) @ inner))
    logits: Float64 = norm(last, weights.norm) @ wide(weights.lm_head).T
    return logits


def test_long_prompt() -> None:
    model = tiny_model()
    tokens = np.random.default_rng(5).integers(0, VOCAB, LENGTH).tolist()
    sequences = PagedSequences(model, num_pages=LENGTH // 16, page_size=16)
    last = LENGTH - CHUNK
    for start in range(0, last, CHUNK):
        sequences.step({0: tokens[start : min(start + CHUNK, last)]})
    with LargestTensor() as largest:
        logits = sequences.step({0: tokens[last:]})
    # All scores of this chunk would be 100 times as much, those of the prompt 20,000 times.
    assert largest.numel <= 2**20
    np.testing.assert_allclose(logits[0].numpy(), last_logits(model, tokens), atol=1e-3)
