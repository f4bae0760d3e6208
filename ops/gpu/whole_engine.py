"""The whole engine on a random model of a real shape against `transformers` on the same weights."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from device import DEVICE, IS_TRIAL, sized
from models import PAGE, SHAPES, Shape, decoder_of, graphed, random_model

from engine.config import Config
from engine.engine import Engine
from engine.gpu_sampler import GpuSampler
from engine.params import SamplingParams
from engine.request import GenerateRequest
from engine.runner import ModelRunner
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary
from tests.fakes import byte_tokenizer, collect

_ROWS = 2 if IS_TRIAL else 16
_CLOSE = 0.25
"""Standard deviations of the logits: tokens nearer to each other than this may change places in bfloat16."""


def compare(name: str) -> tuple[int, int, int]:
    """How many greedy texts are equal, how many there are, and how many differ only by rounding.

    Half of the prompts begin alike, and all run at once: prefill in chunks, prefix sharing, cascade, graphs.
    """
    shape, count = SHAPES[name], sized(24, 2)
    model = random_model(shape, torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(shape.vocab, (sized(1100, 6),), generator=generator).tolist()
    prompts = [
        shared * (row % 2) + torch.randint(shape.vocab, (3 + sized(17 * row),), generator=generator).tolist()
        for row in range(_ROWS)
    ]
    num_pages = sum(-(-(len(prompt) + count) // PAGE) + 1 for prompt in prompts)
    decoder = graphed(decoder_of(model, shape, num_pages, None), _ROWS)
    engine = engine_of(decoder, shape, num_pages)
    ours = asyncio.run(texts(engine, prompts, count))
    equal, close = 0, 0
    for prompt, mine in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt + mine], device=DEVICE)
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        gap = logits.amax(-1) - logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        equal += bool((gap == 0).all())
        close += bool((gap > 0).any() and (gap <= _CLOSE * logits.std()).all())
    return equal, len(prompts), close


def engine_of(decoder: Any, shape: Shape, num_pages: int) -> Engine:
    """An engine as `engine.load` builds it, on a decoder without a tokenizer of its own."""
    tokenizer = byte_tokenizer()
    vocabulary = Vocabulary(
        token_bytes=tokenizer.token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        width=shape.vocab,
        encode=lambda text: list(text.encode()),
    )
    return Engine(
        config=Config(page_size=PAGE, max_batch_tokens=512, max_running=_ROWS),
        runner=ModelRunner(decoder, GpuSampler(shape.vocab), DEVICE),
        compiler=Compiler(vocabulary, timeout_s=30, cache_bytes=1 << 26),
        tokenizer=tokenizer,
        model_name=shape.name,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_pages=num_pages,
        max_context=8192,
    )


async def texts(engine: Engine, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What the engine answers to all prompts at once, greedily."""
    await engine.start()
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    requests = [
        engine.submit(GenerateRequest(prompt=prompt, params=params), request_id=str(index))
        for index, prompt in enumerate(prompts)
    ]
    answers = await asyncio.gather(*map(collect, requests))
    await engine.stop()
    return [list(updates[0].token_ids) for updates in answers]
