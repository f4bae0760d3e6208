"""One step's work as flat arrays: what the model, the kernels and the sampler receive.

    row r's new tokens        token_ids[query_starts[r] : query_starts[r + 1]]
    their places in the row   positions[...]  (consecutive, ending at context_lens[r] - 1)
    KV they see               tokens [0, context_lens[r]) of page_table[r], causally

All arrays are NumPy and live on the host; a model on another device copies them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from engine.params import GREEDY_BELOW, SamplingParams
from engine.stream import TokenLogprob

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

NOTHING: Final[Int64] = np.zeros(0, np.int64)


class SampleRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One token to be sampled: one of its sequence, or several where that tries guessed tokens.

    Made by the thousand a second.
    """

    key: int
    """Identifies the sequence's penalty state, from its first sample to its release."""
    params: SamplingParams
    seed: int
    position: int
    """Index of the token to be sampled within its sequence; the counter of its noise."""
    tokens: Seq[int]
    """The sequence's known ids (read only; it may grow while the step runs)."""
    num_prompt: int
    num_known: int
    """How many of `tokens` were known when the step was planned."""
    forbidden: frozenset[int] = frozenset()
    """Token ids impossible in this step (end of sequence before `min_tokens`)."""

    has_grammar: bool = False
    """Whether a mask comes for it."""

    @property
    def is_plain(self) -> bool:
        """Whether, unless a grammar forbids it, its token depends on the logits and on a few numbers that are
        known before them, and nothing else of the logits is wanted."""
        params = self.params
        return (
            params.logprobs is None
            and not (params.has_penalties or params.logit_bias)
            and not (params.allowed_token_ids or params.bad_words)
        )

    @property
    def takes_likeliest(self) -> bool:
        """Whether it is plain, and takes the token of the largest logit."""
        return self.params.temperature < GREEDY_BELOW and not self.forbidden and self.is_plain


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Grammar masks of a step: `bits[i]` (int32 words; not to be changed) is of sample `rows[i]`."""

    rows: Int64
    bits: Seq[Int32]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """T tokens of R rows; S samples, of a row that tries guessed tokens one more than those.

    `page_table` is padded with 0 to the widest row. `kv_slots[t]` is where token t's KV goes: page *
    page_size + offset.
    """

    token_ids: Int64
    """[T]; 0 where the step before this one has yet to sample the id."""
    pending_at: Int64
    """[P] indices into `token_ids` of those..."""
    pending_from: Int64
    """[P] ...and indices into `previous`."""
    positions: Int64
    """[T]"""
    query_starts: Int32
    """[R + 1]"""
    context_lens: Int32
    """[R] tokens visible to the row's last query, itself included."""
    page_table: Int32
    """[R, W]"""
    kv_slots: Int64
    """[T]"""
    logit_rows: Int64
    """[S + Q] index into `token_ids`: of the token before each sampled one, then of Q measured tokens."""
    samples: list[SampleRow]
    """[S]"""
    sampled: Int64 = field(default_factory=lambda: NOTHING)
    """[S] filled by the step with the ids it samples; -1 for a row whose logits hold no usable number."""
    previous: Int64 = field(default_factory=lambda: NOTHING)
    """`sampled` of the step before this one; -1 counts as 0."""
    prompt_next: Int64 = field(default_factory=lambda: NOTHING)
    """[Q] the ids whose log-probabilities after those tokens are wanted..."""
    prompt_top: list[int] = field(default_factory=list)
    """[Q] ...with those of so many of the likeliest."""
    embed_rows: Int64 = field(default_factory=lambda: NOTHING)
    """[E] indices into `token_ids` of tokens whose final hidden states are wanted."""
    masks: Future[Masks | None] | None = None
    """Resolved by the engine while the forward pass runs; None when no row has a grammar."""
    released: list[int] = field(default_factory=list)
    """Keys of sequences that will never sample again."""


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """What a step gives back to the host."""

    token_ids: list[int]
    """[S] `Batch.sampled`."""
    logprobs: list[TokenLogprob | None]
    """[S]; None where none was asked for."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """[Q] of `Batch.prompt_next`, without those of failed rows."""
    embeddings: list[Float32] = field(default_factory=list)
    """[E] each [hidden], of `Batch.embed_rows`, without those of failed rows."""
    failed: dict[int, str] = field(default_factory=dict)
    """Rows [R] that could not be computed, and why; others may be relied on."""
    forward_s: float = 0.0
    """Seconds of the forward pass, with whatever the same call samples..."""
    sample_s: float = 0.0
    """...and of sampling after it."""


Launch = Callable[[], StepOutput]
"""Runs a prepared step and blocks until it is done. Called on one worker thread, in order of the steps."""


class Runner(Protocol):
    """What the engine runs steps on."""

    def prepare(self, batch: Batch) -> Launch:
        """Do what needs nothing of the steps before this one: they may still run, on another thread."""
        ...
