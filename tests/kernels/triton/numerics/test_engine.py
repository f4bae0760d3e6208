"""The whole engine on Triton's kernels: the same text as on plain torch, for every way to choose it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import torch

from engine.config import Config
from engine.engine import Engine
from engine.gpu_sampler import GpuSampler
from engine.models import decoder
from engine.models.decoder import Decoder
from engine.models.kv_cache import KVCache
from engine.models.quantized import converted, quantized
from engine.models.spec import ModelSpec
from engine.models.weights import WeightsOf
from engine.request import Request
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.stream import TokenLogprob, Update
from grammars.compiler import Compiler
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from kernels.dispatch import operations
from kernels.quantize import PackedRows, Weight
from tests.fakes import VOCAB_SIZE, assert_quiet, byte_tokenizer, collect, generate_request
from tests.kernels.triton.numerics.random_model import SPEC, random_weights


def random_engine(
    sampler: Sampler, device: torch.device, weights: WeightsOf[Weight], spec: ModelSpec = SPEC
) -> Engine:
    config = Config(page_size=16, max_batch_tokens=96)
    num_pages = 96
    tokenizer = byte_tokenizer()
    vocabulary = Vocabulary(
        token_bytes=tokenizer.token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        width=VOCAB_SIZE,
        encode=lambda text: list(text.encode()),
    )
    kv = KVCache.allocate(spec, num_pages, config.page_size, torch.float32, device)
    return Engine(
        config=config,
        runner=ModelRunner(Decoder(spec, weights, kv), sampler, device),
        compiler=Compiler(vocabulary, timeout_s=30, cache_bytes=1 << 26),
        tokenizer=tokenizer,
        model_name="random",
        vocab_size=VOCAB_SIZE,
        hidden_size=spec.hidden_size,
        num_pages=num_pages,
        max_context=spec.max_position,
    )


CPU = torch.device("cpu")
SYSTEM = "A common beginning, long enough to fill the pages of a whole split of the keys: " * 2
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("short", {"temperature": 0.0}),
    (SYSTEM + "one", {"temperature": 0.0, "logprobs": 3}),
    (SYSTEM + "two", {"temperature": 0.0, "repetition_penalty": 1.5, "logit_bias": {65: 3.0}}),
    (SYSTEM + "three", {"seed": 1, "top_p": 0.8}),
    (SYSTEM + "four", {"seed": 2, "top_k": 20, "min_p": 0.02, "frequency_penalty": 0.5}),
    (SYSTEM + "five", {"seed": 3, "choices": 2, "min_tokens": 8}),
    ("grammar", {"seed": 4, "grammar": True}),
]


async def replies(engine: Engine, requests: list[tuple[str, dict[str, Any]]]) -> list[Update]:
    """What the engine answers to all requests at once."""
    await engine.start()
    grammar = await engine.compiler.compile(Constraint(kind="regex", spec="[a-f]{3}-[0-9]+"))
    submitted: list[Request] = []
    for prompt, fields in requests:
        with_grammar = {**fields, "grammar": grammar} if "grammar" in fields else fields
        request = generate_request(prompt, max_tokens=6, ignore_eos=True, **with_grammar)
        submitted.append(engine.submit(request, request_id=str(len(submitted))))
    answers = await asyncio.gather(*map(collect, submitted))
    assert_quiet(engine)
    await engine.stop()
    return [update for answer in answers for update in answer]


async def test_engine(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Every way to choose a token; one request comes twice."""
    requests = [*REQUESTS, REQUESTS[1]]
    expected = await replies(random_engine(Sampler(VOCAB_SIZE), CPU, random_weights(CPU)), requests)
    monkeypatch.setattr(decoder, "operations", lambda _device: operations(torch.device("cuda")))
    computed = await replies(random_engine(GpuSampler(VOCAB_SIZE), device, random_weights(device)), requests)
    assert len({tuple(update.token_ids) for update in expected}) == len(expected) - 1
    assert [update.token_ids for update in computed] == [update.token_ids for update in expected]
    for ours, theirs in zip(logprobs_of(computed), logprobs_of(expected), strict=True):
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=1e-4)


async def test_engine_in_4_bits(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Against plain torch on plain weights, which have the values that the codes stand for."""
    spec = msgspec.structs.replace(SPEC, hidden_size=64)
    requests = [(prompt, {"temperature": 0.0, "logprobs": 1}) for prompt in ("short", "a longer one")]
    plain = random_weights(CPU, spec)
    stand_for = converted(
        plain,
        plain=lambda tensor: tensor,
        linear=lambda matrix, _name: PackedRows.of(matrix).plain(),
        progress=lambda _done: None,
    )
    expected = await replies(random_engine(Sampler(VOCAB_SIZE), CPU, stand_for, spec), requests)
    monkeypatch.setattr(decoder, "operations", lambda _device: operations(torch.device("cuda")))
    packed = quantized(plain, "int4", device, lambda _done: None)
    computed = await replies(random_engine(GpuSampler(VOCAB_SIZE), device, packed, spec), requests)
    assert [update.token_ids for update in computed] == [update.token_ids for update in expected]
    for ours, theirs in zip(logprobs_of(computed), logprobs_of(expected), strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    unrounded = await replies(random_engine(Sampler(VOCAB_SIZE), CPU, plain, spec), requests)
    assert [update.token_ids for update in unrounded] != [update.token_ids for update in expected]


def logprobs_of(updates: list[Update]) -> list[TokenLogprob]:
    return [entry for update in updates for entry in update.logprobs]
