"""The native decoder, on every instruction set this machine runs, against `transformers` and plain torch."""

from __future__ import annotations

import ctypes
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.loader import LoadedModel, embedded_model_path
from engine.models.native import NativeDecoder
from engine.models.native_load import lay_down
from engine.tokenizer import load_tokenizer
from kernels.cpu.build import ALL_FORMATS, Formats, Isa, supported_isas
from kernels.cpu.errors import NativeStepError
from kernels.cpu.runtime import Runtime
from tests.kernels.isas import EMULATED, TESTED
from tests.models import tiny
from tests.models.paged_sequences import PagedSequences, prompt_logits
from tests.models.random_models import in_float32, random_model

TOLERANCE = 1e-4
Quantize = Literal["int8", "gguf"] | None


@pytest.fixture(params=supported_isas())
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


class NativeSequences(PagedSequences):
    """Sequences over a native decoder whose pages hold NaN before they are written."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_pages: int,
        page_size: int,
        threads: int = 2,
        isa: Isa | None = None,
        formats: Formats = ALL_FORMATS,
        quantize: Quantize = None,
        kv_dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, num_pages=num_pages, page_size=page_size, seed=seed)
        runtime = Runtime(threads, isa, formats)
        laid = lay_down(
            model.spec,
            model.weights,
            runtime,
            dtype=model.weights.norm.dtype,
            quantize=quantize,
            progress=lambda _label, _fraction: None,
        )
        decoder = NativeDecoder(laid, num_pages=num_pages, page_size=page_size, kv_dtype=kv_dtype)
        ctypes.memset(decoder.kv.address, 0xFF, decoder.kv.size)
        self.decoder = decoder


def ids(count: int, vocab: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=count)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_architecture(name: str, isa: Isa, tmp_path: Path) -> None:
    """Rows that start, continue a prompt and decode share steps; float32 like `transformers`."""
    oracle = tiny.make(name)
    model = tiny.load(tiny.save(oracle, tmp_path))
    tokens = {key: ids(40, tiny.VOCAB, seed=key) for key in range(3)}
    expected = {key: tiny.oracle_logits(oracle, row) for key, row in tokens.items()}
    sequences = NativeSequences(model, num_pages=24, page_size=6, isa=isa)
    done = dict.fromkeys(tokens, 0)
    for counts in [{0: 17}, {1: 33, 0: 1}, {0: 5, 2: 1, 1: 1}, {2: 39, 0: 17, 1: 6}]:
        chunks = {key: tokens[key][done[key] : done[key] + count] for key, count in counts.items()}
        logits = sequences.step(chunks, logits_of="every")
        for key, chunk in chunks.items():
            part, logits = logits[: len(chunk)], logits[len(chunk) :]
            want = expected[key][done[key] : done[key] + len(chunk)]
            torch.testing.assert_close(part, want, atol=TOLERANCE, rtol=0)
            done[key] += len(chunk)


SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "odd widths": (4, {"hidden_size": 100, "intermediate_size": 70, "vocab_size": 333, "biases": True}),
    "untied": (16, {"tie_embeddings": False}),
    "padded heads": (1, {"head_dim": 24, "rotary_dim": 12, "head_norms": True, "biases": True}),
    "wide heads": (32, {"head_dim": 80, "num_heads": 3, "num_kv_heads": 1}),
    "many queries to a key": (5, {"num_heads": 50, "num_kv_heads": 1}),
    "windows": (16, {"num_layers": 3, "sliding_window": (None, 20, 150)}),
    "windows over small pages": (2, {"num_layers": 2, "sliding_window": (33, 129)}),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_shapes(shape: str, threads: int, isa: Isa) -> None:
    """Contexts over several chunks of keys, prefill and decode in one step, against plain torch."""
    page_size, sizes = SHAPES[shape]
    model = random_model(**sizes)
    vocab = model.spec.vocab_size
    lengths = [5, 300, 17, 128, 1]
    steps = [{key: ids(length, vocab, seed=key) for key, length in enumerate(lengths)}]
    steps.append({key: ids(1 if key % 2 else 140, vocab, seed=9 + key) for key in range(len(lengths))})
    pages = sum(-(-(length + 140) // page_size) for length in lengths)
    plain = PagedSequences(model, num_pages=pages, page_size=page_size)
    native = NativeSequences(model, num_pages=pages, page_size=page_size, threads=threads, isa=isa)
    for chunks in steps:
        torch.testing.assert_close(native.step(chunks), plain.step(chunks), atol=2 * TOLERANCE, rtol=1e-5)


FORMATS: list[tuple[torch.dtype, Quantize, torch.dtype | None]] = [
    (torch.float32, None, None),
    (torch.bfloat16, None, None),
    (torch.bfloat16, "int8", None),
    (torch.float32, None, torch.bfloat16),
    (torch.bfloat16, None, torch.int8),
]
CASES = [(isa, *format_) for isa in supported_isas() for format_ in FORMATS]
CASES += [(isa, torch.bfloat16, quantize, None) for isa in EMULATED for quantize in (None, "int8")]


@pytest.mark.parametrize(("isa", "dtype", "quantize", "kv_dtype"), CASES)
def test_row_is_bit_identical_in_any_company(
    isa: Isa, dtype: torch.dtype, quantize: Quantize, kv_dtype: torch.dtype | None
) -> None:
    """Alone on one thread in chunks of any size, or with 31 others on two threads: the same bits."""
    window = (None, 150)
    model = random_model(dtype=dtype, num_heads=6, head_dim=64, hidden_size=192, sliding_window=window)
    chance = random.Random(5)
    rows = {key: ids(chance.randint(1, 300), 211, seed=key) for key in range(32)}
    more = {key: ids(1, 211, seed=50 + key) for key in rows}

    def sequences(threads: int) -> NativeSequences:
        return NativeSequences(
            model,
            num_pages=640,
            page_size=16,
            threads=threads,
            isa=isa,
            quantize=quantize,
            kv_dtype=kv_dtype,
            seed=threads,
        )

    together = sequences(2)
    batched = [together.step(rows), together.step(more)]
    assert not batched[0].isnan().any()
    alone = sequences(1)
    for key, tokens in rows.items():
        start, last = 0, torch.empty(0)
        while start < len(tokens):
            size = chance.randint(1, 140)
            last = alone.step({key: tokens[start : start + size]})
            start += size
        assert torch.equal(last[0], batched[0][key])
        assert torch.equal(alone.step({key: more[key]})[0], batched[1][key])


def test_threads_that_want_processors() -> None:
    """Where there are too few, threads come late to most jobs: no part is lost or done twice."""
    model = random_model(dtype=torch.bfloat16, num_layers=2)
    rows = {key: ids(5 + key, 211, seed=key) for key in range(6)}
    steps = [rows] + [{key: ids(1, 211, seed=50 + step + key) for key in rows} for step in range(20)]

    def logits(threads: int) -> list[Tensor]:
        sequences = NativeSequences(model, num_pages=64, page_size=16, threads=threads, quantize="int8")
        return [sequences.step(step) for step in steps]

    for alone, together in zip(logits(1), logits(1 + (os.cpu_count() or 1)), strict=True):
        assert torch.equal(alone, together)


TREE = [(0, 0, 420), (1, 0, 384), (2, 0, 288), (3, 2, 288), (4, 1, 528), (5, 4, 528), (6, 0, 48), (7, 6, 240)]
"""Key, the sequence it begins like, and with how many tokens (for the first: all it has)."""


def tree_of_rows(sequences: NativeSequences | None) -> dict[int, list[int]]:
    """Rows that begin alike, by key; computed with shared pages where `sequences` are given."""
    rows: dict[int, list[int]] = {}
    for key, source, shared in TREE:
        start = shared if key else 0
        rows[key] = [*rows.get(source, [])[:start], *ids(560 - start if key % 3 else 420, 211, seed=70 + key)]
        if sequences is not None:
            if key:
                sequences.fork(source, key, start)
            sequences.step({key: rows[key][start:]})
    return rows


@pytest.mark.parametrize(
    ("page_size", "isa", "dtype", "quantize", "kv_dtype"),
    [(size, *case) for case in CASES for size in ([16] if case[0] in EMULATED else [4, 16, 48])],
)
def test_shared_pages_change_nothing(
    page_size: int, isa: Isa, dtype: torch.dtype, quantize: Quantize, kv_dtype: torch.dtype | None
) -> None:
    """Decode and prefill over a tree of shared pages give the bits of each row alone with its own."""
    model = random_model(dtype=dtype, num_heads=6, head_dim=64, hidden_size=192, sliding_window=(None, 200))

    def sequences(threads: int) -> NativeSequences:
        return NativeSequences(
            model,
            num_pages=8 * 900 // page_size,
            page_size=page_size,
            threads=threads,
            isa=isa,
            quantize=quantize,
            kv_dtype=kv_dtype,
            seed=threads,
        )

    shared, alone = sequences(2), sequences(1)
    rows = tree_of_rows(shared)
    for key, row in rows.items():
        alone.step({key: row})
    for counts in ([1] * 8, [1, 20, 1, 1, 40, 1, 2, 1], [1, 1]):
        news = {key: ids(count, 211, seed=key) for key, count in enumerate(counts)}
        together = shared.step(news)
        for key, tokens in news.items():
            assert torch.equal(together[key], alone.step({key: tokens})[0])


def divergence(expected: Tensor, computed: Tensor) -> float:
    """Mean KL divergence in nats a token."""
    target, other = F.log_softmax(expected, -1), F.log_softmax(computed, -1)
    return float((target.exp() * (target - other)).sum(-1).mean())


@pytest.mark.parametrize("isa", TESTED)
@pytest.mark.parametrize(("quantize", "bound"), [(None, 1e-3), ("int8", 2e-2)])
def test_rounded_formats_stay_close(quantize: Quantize, bound: float, isa: Isa) -> None:
    model = random_model(dtype=torch.bfloat16, biases=True, head_norms=True, tie_embeddings=False)
    tokens = ids(200, 211, seed=1)
    native = NativeSequences(model, num_pages=13, page_size=16, isa=isa, quantize=quantize)
    computed = native.step({0: tokens}, logits_of="every")
    assert divergence(prompt_logits(in_float32(model), tokens), computed) < bound


def test_wanted_tokens_are_computed_alike_whatever_else_is_wanted() -> None:
    """Logits of some tokens in any order, and hidden states of others: the bits of a step that wants all."""
    model = random_model(num_layers=3)
    sizes: dict[str, Any] = {"num_pages": 300, "page_size": 4}
    chunks = {key: ids(count, 211, seed=key) for key, count in enumerate((150, 1, 7, 300))}
    every = NativeSequences(model, **sizes)
    logits = every.step(chunks, logits_of="every")
    wanted = np.array([457, 3, 150, 149, 4, 152, 153, 3, 400], np.int64)
    embedded = np.array([457, 200, 201, 152], np.int64)
    few = NativeSequences(model, **sizes)
    hidden = torch.full((2, len(embedded), model.spec.hidden_size), torch.nan)
    batch = replace(few._batch(chunks, "none"), logit_rows=wanted, embed_rows=embedded)
    computed = few.decoder.forward(batch, torch.from_numpy(batch.token_ids), hidden[0])
    assert torch.equal(computed, logits[torch.from_numpy(wanted)])
    alone = NativeSequences(model, **sizes)
    batch = replace(alone._batch(chunks, "every"), embed_rows=embedded)
    alone.decoder.forward(batch, torch.from_numpy(batch.token_ids), hidden[1])
    assert torch.equal(hidden[0], hidden[1])
    more = {key: [5] for key in chunks}
    assert torch.equal(few.step(more), every.step(more))


def test_table_of_angles_grows() -> None:
    """Positions beyond the first part of the table, reached by a jump."""
    model = random_model(num_layers=1, max_position=16384)
    tokens = ids(4200, 211, seed=2)
    native = NativeSequences(model, num_pages=263, page_size=16)
    native.step({0: tokens[:10]})
    computed = native.step({0: tokens[10:]})
    torch.testing.assert_close(computed[0], prompt_logits(model, tokens)[-1], atol=TOLERANCE, rtol=1e-5)


def test_wrong_steps_are_refused() -> None:
    model = random_model()
    sequences = NativeSequences(model, num_pages=4, page_size=16)
    batch = sequences._batch({0: [1, 2, 3]}, "last")
    decoder = sequences.decoder
    with pytest.raises(NativeStepError, match="token id"):
        decoder.forward(batch, torch.tensor([1, 2, 211]))
    for wrong in (
        replace(batch, kv_slots=batch.kv_slots + 64),
        replace(batch, page_table=batch.page_table + 4),
        replace(batch, logit_rows=batch.logit_rows + 1),
        replace(batch, positions=batch.positions - 1),
        replace(batch, context_lens=np.array([2], np.int32)),
    ):
        with pytest.raises(NativeStepError, match="out of range"):
            decoder.forward(wrong, torch.from_numpy(wrong.token_ids))


@contextmanager
def no_more_memory() -> Iterator[None]:
    """The system maps none."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_step_without_memory_can_be_run_again() -> None:
    model = random_model()
    tokens = ids(2000, 211, seed=3)
    sequences = NativeSequences(model, num_pages=2, page_size=2048)
    decoder = sequences.decoder
    assert isinstance(decoder, NativeDecoder)
    sequences.step({0: [1]})  # makes room for few tokens, and the angles of many
    step = decoder.prepare(
        sequences._batch({1: tokens}, "last"), wanted=bytearray(), chosen=np.zeros(0, np.int64)
    )
    logits = np.zeros((1, 211), np.float32)
    with no_more_memory(), pytest.raises(MemoryError, match="native step"):
        decoder.run(step, logits)
    assert not logits.any()
    decoder.run(step, logits)
    expected = NativeSequences(model, num_pages=1, page_size=2048).step({0: tokens})
    assert np.array_equal(logits, expected.numpy())


@pytest.fixture(scope="module")
def embedded() -> LoadedModel:
    return tiny.load(embedded_model_path())


PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a"]


def test_embedded_model_gives_the_same_text(embedded: LoadedModel) -> None:
    """Greedy in float32: each of 32 tokens is the likeliest that plain torch finds after those before it."""
    tokenizer = load_tokenizer(embedded_model_path())
    native = NativeSequences(embedded, num_pages=12, page_size=16)
    prompts = [tokenizer.encode(text, add_special=True, parse_special=False) for text in PROMPTS]
    rows = {key: [*prompt] for key, prompt in enumerate(prompts)}
    news = {key: [*prompt] for key, prompt in rows.items()}
    for _ in range(32):
        best = native.step(news).argmax(-1).tolist()
        news = {key: [token] for key, token in enumerate(best)}
        for key, token in enumerate(best):
            rows[key].append(token)
    for prompt, row in zip(prompts, rows.values(), strict=True):
        likeliest = prompt_logits(embedded, row[:-1])[len(prompt) - 1 :].argmax(-1)
        assert likeliest.tolist() == row[len(prompt) :]


TEXT = (
    "The old lighthouse keeper climbed the stairs every evening, counting each step under his breath. "
    "Outside, the sea had turned the colour of slate, and gulls were wheeling over the rocks. He lit the "
    "lamp, trimmed the wick, and sat down by the window with a cup of tea and the letter from his daughter "
    "that he had been saving all day."
)


ROUNDED = [(torch.bfloat16, 1e-3), (torch.int8, 5e-2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("isa", "kv_dtype", "bound"),
    [(isa, *case) for isa in supported_isas() for case in ROUNDED] + [(isa, *ROUNDED[0]) for isa in EMULATED],
)
def test_rounded_pages_stay_close(shape: str, isa: Isa, kv_dtype: torch.dtype, bound: float) -> None:
    """Weights and activations in float32, so that only pages round: ragged rows, prefill and decode."""
    page_size, sizes = SHAPES[shape]
    model = random_model(**sizes)
    lengths = [5, 270, 17, 128, 1]
    pages = sum(-(-(length + 20) // page_size) for length in lengths)
    plain = PagedSequences(model, num_pages=pages, page_size=page_size)
    native = NativeSequences(model, num_pages=pages, page_size=page_size, isa=isa, kv_dtype=kv_dtype)
    for counts in (lengths, [20, 1, 3, 1, 1], [1] * 5):
        chunks = {key: ids(count, model.spec.vocab_size, seed=key) for key, count in enumerate(counts)}
        assert divergence(plain.step(chunks), native.step(chunks)) < bound


@pytest.mark.parametrize(
    ("dtype", "quantize", "kv_dtype", "bound"),
    [(*FORMATS[1], 1e-3), (*FORMATS[2], 1e-2), (torch.bfloat16, None, torch.int8, 2e-3)],
)
def test_embedded_model_stays_close(
    embedded: LoadedModel,
    dtype: torch.dtype,
    quantize: Quantize,
    kv_dtype: torch.dtype | None,
    bound: float,
) -> None:
    """Divergence from float32, over every position of a text."""
    path = embedded_model_path()
    tokens = load_tokenizer(path).encode(TEXT, add_special=True, parse_special=False)
    native = NativeSequences(
        tiny.load(path, dtype), num_pages=6, page_size=16, quantize=quantize, kv_dtype=kv_dtype
    )
    computed = native.step({0: tokens}, logits_of="every")
    assert divergence(prompt_logits(embedded, tokens), computed) < bound
