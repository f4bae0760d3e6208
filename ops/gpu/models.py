"""Random models of real shapes: the decoder on its kernels against `transformers` on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from device import DEVICE, IS_TRIAL, again, sized
from timing import eager_us
from transformers import LlamaConfig, LlamaForCausalLM

from engine.batch import Batch
from engine.models.decoder import Decoder
from engine.models.graphs import MOST_ROWS, CudaCapture, GraphedDecoder
from engine.models.kv_cache import KVCache
from engine.models.quantized import Kind, quantized
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights
from kernels.quantize import CODES

PAGE = 16
KINDS: tuple[Kind, ...] = ("int8", "fp8", "int4")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model of the Llama line."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int


SMALL = Shape("135M-class", 30, 576, 9, 3, 1536, 49_152)
LARGE = Shape("8B-class", 32, 4096, 32, 8, 14_336, 128_256)
TINY = Shape("tiny", 2, 64, 4, 2, 128, 320)
SHAPES = {"small": TINY, "large": TINY} if IS_TRIAL else {"small": SMALL, "large": LARGE}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two implementations agree on one model."""

    model: str
    dtype: str
    """Of weights, or the format of them and of activations, keys and values."""
    largest_difference: float
    """Of logits, in units of their standard deviation."""
    equal_texts: int
    texts: int


def kind_named(name: str) -> Kind | None:
    """A format of weights; None for "none"."""
    return next((kind for kind in KINDS if kind == name), None)


def random_model(shape: Shape, dtype: torch.dtype) -> Any:
    """A `transformers` model with random weights on the GPU."""
    settings: dict[str, Any] = {"attn_implementation": "sdpa", "dtype": dtype}
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192,
        **settings,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with DEVICE:
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def decoder_of(model: Any, shape: Shape, num_pages: int, kind: Kind | None) -> Decoder:
    """Our decoder on a model's own tensors, kernel by kernel.

    Args:
        kind: "int8" or "fp8", for weights, activations, keys and values; "int4", for weights; None: as the
            model is.
    """
    state = model.state_dict()
    names = {
        "input_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "post_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    layers = [
        LayerWeights(
            **{ours: state[f"model.layers.{index}.{theirs}.weight"] for ours, theirs in names.items()}
        )
        for index in range(shape.layers)
    ]
    weights = Weights(
        embed=state["model.embed_tokens.weight"],
        layers=tuple(layers),
        norm=state["model.norm.weight"],
        lm_head=state["lm_head.weight"],
    )
    spec = ModelSpec(
        architecture="llama",
        name=shape.name,
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=shape.inner,
        vocab_size=shape.vocab,
        max_position=8192,
        rms_eps=model.config.rms_norm_eps,
        rope_theta=10_000.0,
        rotary_dim=shape.hidden // shape.heads,
        tie_embeddings=False,
        sliding_window=(None,) * shape.layers,
    )
    dtype = weights.embed.dtype
    kv = KVCache.allocate(spec, num_pages, PAGE, CODES.get(kind or "", dtype), DEVICE)
    if kind is None:
        return Decoder(spec, weights, kv)
    return Decoder(spec, quantized(weights, kind, DEVICE, lambda _done: None), kv)


def graphed(decoder: Decoder, max_rows: int) -> GraphedDecoder:
    """The decoder as the engine has it."""
    capture = again if IS_TRIAL else CudaCapture()
    return GraphedDecoder(decoder, max_rows=max_rows, capture=capture, progress=lambda _done: None)


def batch_of(counts: list[int], contexts: list[int], table: np.ndarray) -> Batch:
    """The last `counts` tokens of rows of these contexts."""
    starts = np.concatenate(([0], np.cumsum(counts)))
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.concatenate(
        [np.arange(context - count, context) for count, context in zip(counts, contexts, strict=True)]
    )
    nothing = np.zeros(0, np.int64)
    return Batch(
        token_ids=np.zeros(starts[-1], np.int64),
        pending_at=nothing,
        pending_from=nothing,
        positions=positions,
        query_starts=starts.astype(np.int32),
        context_lens=np.array(contexts, np.int32),
        page_table=table.astype(np.int32),
        kv_slots=table[rows, positions // PAGE].astype(np.int64) * PAGE + positions % PAGE,
        logit_rows=starts[1:] - 1,
        samples=[],
    )


def agreement(shape: Shape, dtype: torch.dtype, kind: Kind | None = None) -> Agreement:
    """Prompts of 3 to 200 tokens, then 24 greedy tokens each, together in one batch here and apart there."""
    model, count, lengths = random_model(shape, dtype), sized(24, 3), [3, 17, *map(sized, (64, 200))]
    generator = torch.Generator(DEVICE).manual_seed(1)
    prompts = [
        torch.randint(shape.vocab, (length,), generator=generator, device=DEVICE) for length in lengths
    ]
    width = -(-(max(lengths) + count) // PAGE)
    table = np.random.default_rng(0).permutation(len(prompts) * width).reshape(len(prompts), width)
    decoder = graphed(decoder_of(model, shape, table.size, kind), len(prompts))
    logits = decoder.forward(batch_of(lengths, lengths, table), torch.cat(prompts))
    with torch.inference_mode():
        exact = torch.cat([model(prompt[None]).logits[:, -1].float() for prompt in prompts])
    texts = [logits.argmax(-1)]
    for step in range(1, count):
        contexts = [length + step for length in lengths]
        texts.append(decoder.forward(batch_of([1] * len(lengths), contexts, table), texts[-1]).argmax(-1))
    ours = torch.stack(texts, 1).tolist()
    theirs = [
        model.generate(prompt[None], do_sample=False, min_new_tokens=count, max_new_tokens=count)[
            0, len(prompt) :
        ].tolist()
        for prompt in prompts
    ]
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=True))
    difference = float((logits - exact).abs().max() / exact.std())
    name = kind or str(dtype).replace("torch.", "")
    return Agreement(shape.name, name, difference, equal, len(lengths))


def step_times(
    shape: Shape, kind: Kind | None, context: int = sized(1024)
) -> Iterator[tuple[int, float, float]]:
    """Batch size, and microseconds of one decode step from host arrays to logits: as a graph, and kernel by
    kernel."""
    model = random_model(shape, torch.bfloat16)
    width = -(-context // PAGE)
    sizes = (1, 2) if IS_TRIAL else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    decoder = decoder_of(model, shape, sizes[-1] * width, kind)
    del model
    replayed = graphed(decoder, min(MOST_ROWS, sizes[-1]))
    for size in sizes:
        table = np.random.default_rng(0).permutation(size * width).reshape(size, width)
        batch = batch_of([1] * size, [context] * size, table)
        ids = torch.zeros(size, dtype=torch.int64, device=DEVICE)
        times = [eager_us(partial(each.forward, batch, ids)) for each in (replayed, decoder)]
        yield size, times[0], times[1]
