"""Every launch that a model runner makes, on meta tensors, for whatever compiles or counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Masks, SampleRow
from engine.gpu_sampler import GpuSampler
from engine.models import decoder
from engine.models.decoder import Decoder
from engine.models.graphs import GraphedDecoder
from engine.models.kv_cache import KVCache
from engine.models.quantized import Kind, quantized
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights, WeightsOf
from engine.params import SamplingParams
from kernels.dispatch import operations
from kernels.gpu import linear_8bit as linears
from kernels.gpu import step
from kernels.gpu.linear_8bit import linear_8bit
from kernels.gpu.linear_int4 import linear_int4
from kernels.gpu.logprobs import logprobs
from kernels.gpu.norm import add_rms_norm_quantized
from kernels.quantize import CODES, PackedRows, Weight

META = torch.device("meta")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def model_spec(*, num_heads: int, num_kv_heads: int, head_dim: int) -> ModelSpec:
    """One layer of an 8B-class model with heads of this shape."""
    return ModelSpec(
        architecture="qwen3",
        name="meta",
        num_layers=1,
        hidden_size=4096,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=14336,
        vocab_size=151_936,
        max_position=131_072,
        rms_eps=1e-6,
        rope_theta=500_000.0,
        rotary_dim=head_dim,
        tie_embeddings=False,
        sliding_window=(None,),
    )


def weights_of(spec: ModelSpec, *, head_norms: bool) -> Weights:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = LayerWeights(
        input_norm=meta(hidden),
        q=meta(queries, hidden),
        k=meta(keys, hidden),
        v=meta(keys, hidden),
        o=meta(hidden, queries),
        post_norm=meta(hidden),
        gate=meta(inner, hidden),
        up=meta(inner, hidden),
        down=meta(hidden, inner),
        q_norm=meta(spec.head_dim) if head_norms else None,
        k_norm=meta(spec.head_dim) if head_norms else None,
    )
    embed = meta(spec.vocab_size, hidden)
    return Weights(embed=embed, layers=(layer,) * spec.num_layers, norm=meta(hidden), lm_head=embed)


def mixed_batch() -> Batch:
    """A prompt, a decode row alone, a draft, and four rows that share a whole split of 512 tokens."""
    counts = np.array([64, 1, 8, 1, 1, 1, 1])
    contexts = np.array([64, 700, 600, 600, 601, 602, 603], np.int32)
    table = np.arange(7 * 44, dtype=np.int32).reshape(7, 44)
    table[3:, :32] = table[3, :32]
    starts = np.concatenate(([0], np.cumsum(counts)))
    params = SamplingParams(max_tokens=9, repetition_penalty=1.1, logit_bias={5: 1.0}, top_k=50, top_p=0.9)
    return Batch(
        token_ids=np.zeros(starts[-1], np.int64),
        pending_at=np.zeros(0, np.int64),
        pending_from=np.zeros(0, np.int64),
        positions=np.concatenate([np.arange(c - n, c) for n, c in zip(counts, contexts, strict=True)]),
        query_starts=starts.astype(np.int32),
        context_lens=contexts,
        page_table=table,
        kv_slots=np.zeros(starts[-1], np.int64),
        logit_rows=starts[1:] - 1,
        samples=[
            SampleRow(key=row, params=params, seed=row, position=9, tokens=[1] * 9, num_prompt=5, num_known=9)
            for row in range(7)
        ],
    )


def launch_model_step(architecture: str, spec: ModelSpec, *, head_norms: bool, dtype: torch.dtype) -> None:
    """A step of a model, its steps for graphs, and a step of its sampler."""
    batch = mixed_batch()
    weights = weights_of(spec, head_norms=head_norms)
    logits = launch_forward(architecture, spec, weights, batch, kv_dtype=dtype)
    sampler = GpuSampler(spec.vocab_size)
    sampler._adjust(logits, batch.samples)
    words = -(-spec.vocab_size // 32)
    masks = Masks(rows=np.arange(2), bits=[*np.zeros((2, words), np.int32)])
    chosen = sampler._choose(logits, batch.samples, masks)
    logprobs(logits, chosen, 5)


def launch_forward(
    architecture: str, spec: ModelSpec, weights: WeightsOf[Weight], batch: Batch, *, kv_dtype: torch.dtype
) -> Tensor:
    """Logits of a step; the steps for graphs of one and of two rows besides. No tensor on the meta device has
    numbers, so this fails if a step reads any back."""
    with as_on(architecture):
        model = Decoder(spec, weights, KVCache.allocate(spec, 256, 16, kv_dtype, META))
        GraphedDecoder(model, max_rows=2, capture=launched_once, progress=lambda _done: None)
        return model.forward(batch, meta(len(batch.token_ids), dtype=torch.int64))


@contextmanager
def as_on(architecture: str) -> Iterator[None]:
    """Decoders on meta tensors take what they would on a GPU."""
    with (
        patch.object(decoder, "operations", lambda _device: operations(torch.device("cuda"))),
        patch.object(step, "architecture", lambda _device: architecture),
        patch.object(linears, "architecture", lambda _device: architecture),
    ):
        yield


def launched_once(launch: Callable[[], None]) -> Callable[[], None]:
    launch()
    return launch


def launch_quantized_step(architecture: str, spec: ModelSpec, kind: Kind) -> None:
    """A step on quantised weights; in 8 bits activations, keys and values are so, too."""
    weights = quantized(weights_of(spec, head_norms=False), kind, META, lambda _done: None)
    kv_dtype = CODES.get(kind, torch.bfloat16)
    launch_forward(architecture, spec, weights, mixed_batch(), kv_dtype=kv_dtype)


def launch_quantized(architecture: str) -> None:
    """Linears and norms on 8 and 4 bits, for few rows and for many."""
    with patch.object(linears, "architecture", lambda _device: architecture):
        for dtype in (torch.int8, torch.uint8):
            add_rms_norm_quantized(meta(16, 4096), meta(16, 4096), meta(4096), 1e-6, dtype)
            for rows in (16, 64, 512):
                x, weight = meta(rows, 4096, dtype=dtype), meta(4096, 4096, dtype=dtype)
                scales = meta(rows, dtype=torch.float32), meta(4096, dtype=torch.float32)
                linear_8bit(x, scales[0], weight, scales[1], dtype=torch.bfloat16)
        for rows in (16, 64, 512):
            codes, numbers = meta(4096, 2048, dtype=torch.uint8), meta(2, 4096, 128, dtype=torch.float16)
            linear_int4(meta(rows, 4096), PackedRows(codes, numbers[0], numbers[1]))
