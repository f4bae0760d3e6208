"""An engine without a model: a byte tokenizer, and a runner whose next token is a hash of the KV it reads.

The fake KV of a token is a hash chained through the pages, from the KV of the token before it. A page
that is freed too early, shared wrongly or written twice therefore changes the text, as it would with
a real model; and the text of a prompt is a pure function of the prompt: `hashed_tokens`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import numpy as np

from engine.batch import Batch, Launch, Masks, SampleRow, StepOutput
from engine.batch_part import known_ids
from engine.config import Config
from engine.engine import Engine
from engine.params import SamplingParams
from engine.request import GenerateRequest, Request
from engine.stream import TokenLogprob, Update
from engine.token_bytes import byte_level_alphabet
from engine.tokenizer import Tokenizer
from engine.tokenizer_definition import TokenizerDefinition, added_token, bpe_model
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
HANGS_S = 120.0
"""No machine is so slow: what takes longer never ends."""
HIDDEN_SIZE = 8
VOCAB_SIZE = 272
"""Width of the fake logits, wider than the vocabulary as in many real models."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_MODULUS = (1 << 61) - 1
_NEVER_SAMPLED = 99
"""What a step that fails leaves where its ids belong."""


def byte_tokenizer() -> Tokenizer:
    """Id b is byte b; three special tokens follow; <|im_end|> ends a sequence."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"<|endoftext|>": END_OF_TEXT, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
    return Tokenizer(
        TokenizerDefinition(
            source="bytes",
            json={
                "added_tokens": [added_token(i, text, special=True) for text, i in special.items()],
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": bpe_model(byte_level_alphabet(), []),
            },
            eos_ids=frozenset({IM_END}),
            named_tokens={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
            chat_template=CHAT_TEMPLATE,
        )
    )


def _chain(previous: int, token_id: int) -> int:
    return (previous * 1_000_003 + token_id + 1) % _MODULUS


def _letter(state: int, letters: int = 26) -> int:
    return ord("a") + state % letters


def hashed_tokens(prompt: Iterable[int], count: int, letters: int = 26) -> list[int]:
    """What the fake model says after `prompt`, without any paging or batching."""
    state = hashed_state(prompt)
    output: list[int] = []
    for _ in range(count):
        output.append(_letter(state, letters))
        state = _chain(state, output[-1])
    return output


def hashed_embedding(state: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The hidden state of a token with that hash."""
    return np.sin(np.arange(1, HIDDEN_SIZE + 1, dtype=np.float32) * (state % 1009))


def hashed_state(tokens: Iterable[int]) -> int:
    """The hash of the last of `tokens`."""
    return reduce(_chain, tokens, 0)


class FakeRunner:
    """Runs batches on hashes.

    Args:
        num_pages, page_size: size of the fake KV.
        script: gives the token a row samples, or None for the hash's own letter. Under a grammar
            mask a token that is not allowed is replaced by an allowed one.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        script: Callable[[SampleRow], int | None] = lambda row: None,
    ) -> None:
        self.script = script
        self.fails: Callable[[Batch], bool | Exception] = lambda batch: False
        """Steps that fail, as a forward pass might, and what they raise..."""
        self.fails_to_prepare: Callable[[Batch], bool] = lambda batch: False
        """...and those that cannot even be prepared."""
        self.seconds: Callable[[Batch], float] = lambda batch: 0.0
        """How long a step is said to have taken."""
        self.batches: list[Batch] = []
        """Every batch that was run."""
        self.letters = 26
        """How many different ones its texts have: of few, some words are said again."""
        self._page_size = page_size
        self._kv = np.zeros(num_pages * page_size, np.int64)
        self._gate = threading.Condition()
        self._permits: float = float("inf")

    def pause(self) -> None:
        """Hold every further step until `allow` or `resume`."""
        with self._gate:
            self._permits = 0

    def allow(self, steps: int) -> None:
        """Let `steps` held steps run."""
        with self._gate:
            self._permits += steps
            self._gate.notify_all()

    def resume(self) -> None:
        """Hold no step any more."""
        self.allow(1 << 60)

    def prepare(self, batch: Batch) -> Launch:
        if self.fails_to_prepare(batch):
            raise RuntimeError("injected failure before the forward pass")
        return partial(self._run, batch)

    def _run(self, batch: Batch) -> StepOutput:
        with self._gate:
            self._gate.wait_for(lambda: self._permits > 0)
            self._permits -= 1
        self.batches.append(batch)
        batch.sampled.fill(_NEVER_SAMPLED)
        failure = self.fails(batch)
        if failure:
            injected = RuntimeError("injected failure of the forward pass")
            raise failure if isinstance(failure, Exception) else injected
        states = self._forward(batch, known_ids(batch))
        masks = batch.masks.result() if batch.masks is not None else None
        batch.sampled[:] = [
            self._choose(row, states[int(at)], _allowed(masks, index))
            for index, (row, at) in enumerate(zip(batch.samples, batch.logit_rows, strict=False))
        ]
        return StepOutput(
            forward_s=self.seconds(batch),
            embeddings=[hashed_embedding(states[int(at)]) for at in batch.embed_rows],
            token_ids=batch.sampled.tolist(),
            logprobs=[
                _logprobs(token_id, row.params.logprobs)
                for token_id, row in zip(batch.sampled.tolist(), batch.samples, strict=True)
            ],
            prompt_logprobs=[
                TokenLogprob(token_id, -(states[int(at)] % 1000) / 64, ((token_id, -0.25),) if top else ())
                for at, token_id, top in zip(
                    batch.logit_rows[len(batch.samples) :],
                    batch.prompt_next.tolist(),
                    batch.prompt_top,
                    strict=True,
                )
            ],
        )

    def _forward(self, batch: Batch, token_ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """The hash after each token of the batch."""
        states: list[int] = []
        for row in range(len(batch.context_lens)):
            for at in range(batch.query_starts[row], batch.query_starts[row + 1]):
                position = int(batch.positions[at])
                before = self._read(batch, row, position - 1) if position else 0
                states.append(_chain(before, int(token_ids[at])))
                self._kv[batch.kv_slots[at]] = states[-1]
        return states

    def _read(self, batch: Batch, row: int, position: int) -> int:
        page = int(batch.page_table[row, position // self._page_size])
        return int(self._kv[page * self._page_size + position % self._page_size])

    def _choose(self, row: SampleRow, state: int, allowed: list[int] | None) -> int:
        scripted = self.script(row)
        wanted = _letter(state, self.letters) if scripted is None else scripted
        if allowed is None or wanted in allowed:
            return wanted
        return allowed[state % len(allowed)] if allowed else -1


def _allowed(masks: Masks | None, index: int) -> list[int] | None:
    """The ids a grammar allows for a sampling row; None without a grammar."""
    if masks is None or index not in masks.rows:
        return None
    words = masks.bits[list(masks.rows).index(index)]
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def _logprobs(token_id: int, top: int | None) -> TokenLogprob | None:
    if top is None:
        return None
    likeliest = [(token_id, -0.25), *((i, -2.0 - i / 64) for i in range(65, 65 + top) if i != token_id)]
    return TokenLogprob(token_id=token_id, logprob=-0.25, top=tuple(likeliest[:top]))


def say(*texts: str) -> Callable[[SampleRow], int | None]:
    """A script: choice i of a request says `texts[i]` (the last one for all further), then ends."""

    def script(row: SampleRow) -> int | None:
        choice = row.seed - row.params.seed
        spoken = texts[min(choice, len(texts) - 1)].encode()
        at = row.position - row.num_prompt
        return spoken[at] if at < len(spoken) else IM_END

    return script


def fake_engine(
    *,
    num_pages: int = 64,
    script: Callable[[SampleRow], int | None] = lambda row: None,
    max_context: int = 4096,
    **settings: Any,
) -> tuple[Engine, FakeRunner]:
    """An engine, not started, on a fake runner; `settings` are fields of `Config`."""
    config = Config(**{"page_size": 4, "max_batch_tokens": 64, **settings})
    tokenizer = byte_tokenizer()
    vocabulary = Vocabulary(
        token_bytes=tokenizer.token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        width=VOCAB_SIZE,
        encode=lambda text: list(text.encode()),
    )
    runner = FakeRunner(num_pages=num_pages, page_size=config.page_size, script=script)
    engine = Engine(
        config=config,
        runner=runner,
        compiler=Compiler(vocabulary, timeout_s=config.grammar_timeout, cache_bytes=1 << 26),
        tokenizer=tokenizer,
        model_name="fake",
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        num_pages=num_pages,
        max_context=max_context,
    )
    return engine, runner


def generate_request(prompt: list[int] | str, *, max_tokens: int = 16, **fields: Any) -> GenerateRequest:
    """A request; fields of `GenerateRequest` by name, all others are sampling parameters."""
    names = GenerateRequest.__dataclass_fields__.keys() & fields.keys()
    own = {name: fields.pop(name) for name in names}
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return GenerateRequest(prompt=ids, params=SamplingParams(max_tokens=max_tokens, **fields), **own)


async def collect(request: Request) -> list[Update]:
    """Everything a request says, one merged update a choice."""
    whole: dict[int, Update] = {}
    async for updates in request.stream:
        for update in updates:
            if update.index in whole:
                whole[update.index].merge(update)
            else:
                whole[update.index] = update
    return [whole[index] for index in sorted(whole)]


def assert_quiet(engine: Engine) -> None:
    """Nothing runs, nothing waits, every page is free or cached, and the counts add up."""
    load, stats = engine.load(), engine.stats
    assert (load.running, load.waiting) == (0, 0)
    assert (load.pages.protected, load.pages.private) == (0, 0)
    assert load.pages.free + load.pages.evictable == load.pages.total
    assert stats.started == sum(stats.finished.values())
    engine.flush_cache()
    load = engine.load()
    assert (load.pages.free, load.tree_nodes) == (load.pages.total, 0)
