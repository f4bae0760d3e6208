"""A request, its sequences, and all arithmetic on their lengths.

    tokens      | prompt ............ | output ....... | pending |
                0          num_prompt ^          known ^         ^ length
    computed    |==================|                                KV is in pages, read back
    scheduled   |==========================================|        launched, maybe not read back

`computed <= scheduled <= length`. Prefill, chunked prefill, decode and resumption after preemption
are one case: run `length - scheduled` tokens, capped by the budget. A token is *pending* between the
launch of the step that samples it and the reading of its id; the next step may be launched with it
as input, because the id is there before that step runs. Two steps are in flight at most, so are two
pending tokens. Guessed tokens that a step tries (`engine.speculation`) lie beyond `length`; those that
were right are known, and computed, once it is read.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from engine.batch import Float32
from engine.detokenizer import Detokenizer
from engine.dictation import Dictation
from engine.params import SamplingParams
from engine.prefix_tree import Node
from engine.prompt_lookup import PromptLookup
from engine.stream import FinishReason, TokenLogprob, UpdateStream
from engine.targets import Targets
from engine.timeline import Timeline
from grammars.base import Grammar, Matcher

Purpose = Literal["generate", "embed", "measure"]
"""What a prompt is run for: to go on with it; for the hidden state of its last token; or only for the
log-probabilities of its targets."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """What a caller submits: validated, tokenised, its grammar compiled."""

    prompt: list[int]
    """Token ids, at least one."""
    params: SamplingParams
    choices: int = 1
    """Independent completions of the prompt; choice i samples with seed + i."""
    grammar: Grammar | None = None
    purpose: Purpose = "generate"
    targets: Targets | None = None
    """To be measured, instead of what `SamplingParams.prompt_logprobs` would ask for."""
    namespace: str = ""
    """Prefixes are shared only within one namespace."""
    tenant: str = ""
    """Whose it is: places to run are shared out evenly between tenants."""
    priority: int = 0
    """The lower, the sooner, within a tenant; waiting makes up for it in time."""
    queue_timeout_s: float | None = None
    """Longest wait for its first step (seconds); None: any."""
    timeout_s: float | None = None
    """Longest time until its end (seconds); None: any."""


@dataclass(kw_only=True, slots=True)
class Timing:
    """Moments of a sequence's life, `time.monotonic()` seconds; 0.0 means not yet."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    finished: float = 0.0


@dataclass(eq=False, kw_only=True, slots=True)
class Sequence:
    """One choice of one request. Lengths and pages belong to the scheduler, the rest to the engine."""

    id: int
    request: Request
    index: int
    params: SamplingParams
    tokens: list[int]
    """Known ids: the prompt, then the output."""
    num_prompt: int
    detokenizer: Detokenizer
    matcher: Matcher | None = None
    dictation: Dictation | None = None
    """Of its grammar; None without one."""
    lookup: PromptLookup | None = None
    """Guesses at its next tokens, once some were wanted."""

    pending: int = 0
    """How many tokens after `tokens` are sampled but unread."""
    superseded: int = 0
    """How many samples in flight are to be thrown away, because the grammar dictated those tokens."""
    computed: int = 0
    scheduled: int = 0
    pages: array[int] = field(default_factory=lambda: array("i"))
    """Page table: page i holds tokens [i * page_size, (i + 1) * page_size). Numbers side by side, as a list's
    would each be fetched from where they lie, in every step."""
    node: Node | None = None
    """Deepest locked node of the prefix tree; its path owns the first pages of the table."""
    num_shared: int = 0
    """How many leading pages of `pages` the tree owns."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was found in the tree when the sequence was first admitted."""
    paced: bool = False
    """Whether it has so long a prompt to run that each step takes only a little of it."""
    preemptions: int = 0
    repeated: int = 0
    """How many tokens were known when it was last preempted: all of them are run again."""
    delay_s: float = 0.0
    """Its priority, as seconds that it is treated as having arrived later."""
    finish_reason: FinishReason | None = None
    timing: Timing = field(default_factory=Timing)
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def order(self) -> tuple[float, int]:
        """The lower, the sooner: a total order that never changes."""
        return self.timing.arrived + self.delay_s, self.id

    @property
    def known(self) -> int:
        """Tokens whose ids are known."""
        return len(self.tokens)

    @property
    def length(self) -> int:
        """Known and pending tokens."""
        return len(self.tokens) + self.pending

    def take_sample(self) -> bool:
        """A sample was read back; False if it is to be thrown away."""
        if self.superseded:
            self.superseded -= 1
            return False
        self.pending -= 1
        return self.finish_reason is None

    def supersede_samples(self) -> None:
        """Throw away the samples in flight: the tokens in their places are known from elsewhere."""
        self.superseded += self.pending
        self.pending = 0

    def confirm_guess(self) -> None:
        """The last known token had been guessed and run. No other of its tokens may be in flight."""
        self.computed += 1
        self.scheduled += 1

    @property
    def first_target(self) -> int:
        """The first position that has to be run because its target is not measured yet; else the length."""
        targets, done = self.request.targets, len(self.request.measures)
        if targets is None or self.index or done == len(targets.positions):
            return self.length
        return targets.positions[done]

    def unmeasured(self, start: int, stop: int) -> range:
        """The targets at positions in [start, stop) that are not measured yet."""
        targets = self.request.targets
        if targets is None or self.index:
            return range(0)
        return targets.between(start, stop, done=len(self.request.measures))

    def cost(self, start: int, stop: int) -> int:
        """What running the tokens in [start, stop) takes of a step's budget: each counts once, and once more
        for each of its targets, since logits take the time of up to a token."""
        if self.request.targets is None:
            return stop - start
        return stop - start + len(self.unmeasured(start, stop))

    def affordable(self, budget: int, most: int) -> int:
        """How many of the next tokens, up to `most`, a budget above 0 pays for: one at least."""
        if self.request.targets is None:
            return min(budget, most)
        start = self.scheduled
        stops = range(start + 2, start + most + 1)
        return 1 + bisect_right(stops, budget, key=lambda stop: self.cost(start, stop))

    def completes(self, stop: int) -> bool:
        """Whether it ends once its tokens before `stop` are run, because nothing is sampled after them."""
        return self.request.purpose != "generate" and stop == self.num_prompt

    @property
    def unscheduled(self) -> int:
        """Tokens that still have to be run before the next one can be sampled."""
        return self.length - self.scheduled

    @property
    def is_dictated(self) -> bool:
        """Whether several tokens of its output are to be run that never were: its grammar dictated them."""
        return self.unscheduled > 1 and self.scheduled >= max(self.num_prompt, self.repeated)

    @property
    def num_output(self) -> int:
        """Sampled tokens, pending ones included."""
        return self.length - self.num_prompt

    @property
    def has_all_output(self) -> bool:
        """Whether all that may be sampled is sampled, pending tokens included, and something was."""
        return len(self.tokens) + self.pending - self.num_prompt >= max(1, self.params.max_tokens)

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled."""
        return max(0, self.params.max_tokens - self.num_output)


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """A submitted request: the handle its caller reads updates from."""

    id: str
    prompt: list[int]
    params: SamplingParams
    namespace: str
    stream: UpdateStream
    tenant: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    purpose: Purpose = "generate"
    targets: Targets | None = None
    measures: list[TokenLogprob] = field(default_factory=list)
    """Of the targets, in their order. Complete before the first update."""
    embedding: Float32 | None = None
    """[hidden] the last token's final hidden state, where that is wanted. There before the update."""

    deadlines: list[asyncio.TimerHandle] = field(default_factory=list)
    """Timers that end it, until it has finished."""

    @property
    def is_finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def drop_deadlines(self) -> None:
        for timer in self.deadlines:
            timer.cancel()
        self.deadlines.clear()

    def measured(self, target: int, logprob: TokenLogprob) -> None:
        """Take the log-probability of a target, unless it is known already."""
        if target == len(self.measures):
            self.measures.append(logprob)

    @property
    def prompt_logprobs(self) -> list[TokenLogprob]:
        """Where `SamplingParams.prompt_logprobs` asks for them: entry i is of token i + 1 of the prompt."""
        return self.measures

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled and read so far, over all choices."""
        return sum(sequence.known - sequence.num_prompt for sequence in self.sequences)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix tree (first choice)."""
        return self.sequences[0].cached_tokens if self.sequences else 0
