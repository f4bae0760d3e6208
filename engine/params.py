"""How one request wants its tokens chosen and where it wants them to end."""

from __future__ import annotations

from typing import Final

import msgspec

GREEDY_BELOW: Final = 1e-5
"""Temperatures under which the likeliest token is certain, to float32."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping, already validated and with every default filled in.

    Penalties follow the OpenAI API (presence, frequency: output tokens only) and the CTRL paper,
    arXiv:1909.05858 (repetition: prompt and output tokens). `min_p` follows arXiv:2407.01082.
    """

    max_tokens: int
    """Most tokens to sample; 0 only runs the prompt."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are impossible, and stop strings mean nothing, before this many tokens
    were sampled. A grammar knows best when its sentence may end: under one only stop strings mind this."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities reach this sum."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    """Token id to a value added to its logit."""
    seed: int = 0
    """Seeds the counter-based noise; callers draw one where the user gave none."""
    logprobs: int | None = None
    """None: none wanted. k: log-probability of the sampled token and of the k likeliest."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of every token of the prompt but the first."""
    allowed_token_ids: frozenset[int] = frozenset()
    """Nothing else is sampled; empty allows everything."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that the output never holds."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ensure_complete: bool = True
    """Under a grammar: end the text the shortest way when the budget leaves room for nothing else."""

    @property
    def has_penalties(self) -> bool:
        """Whether sampling needs the counts of earlier tokens."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
