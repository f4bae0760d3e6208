"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import bad_request
from app.generation import Generation, Usage, check_room
from app.json_events import JsonEvent, JsonEventPlan, JsonEventReader, plan_json_events
from app.logprobs import CompletionLogprobs, CompletionLogprobsWriter, PromptLogprobs, check_amount
from app.prompt_report import PromptReport, prompt_report
from app.prompts import Prompt, encoded, listed
from app.protocol import CompletionRequest
from app.replies import ChunkUsage, Exchange, Identity
from app.request_report import RequestReport
from app.sampling import of_another_prompt, sampling_params
from app.slices import in_slices
from app.state import AppState
from app.structured import text_constraint
from engine.request import GenerateRequest
from engine.stream import Update
from engine.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class Choice(msgspec.Struct, kw_only=True):
    """Of a whole answer, or of one chunk."""

    index: int
    text: str
    json_events: list[JsonEvent] | UnsetType = UNSET
    """The values that this chunk completed, where they are asked for."""
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    """In the choice's first chunk."""


class Completion(msgspec.Struct, tag_field="object", tag="text_completion", kw_only=True):
    """A whole answer, or one chunk: they have the same form and name."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    timings: RequestReport | UnsetType = UNSET
    """Of a whole answer, or in the last chunk, where they are asked for."""


async def create_completion(state: AppState, body: bytes) -> Exchange:
    """Check, prepare and submit one completions request, all its prompts.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, CompletionRequest)
    state.check(request)
    check_room(state.engine, choices=request.n or 1, priority=request.priority or 0)
    constraint = text_constraint(request)
    json_events = plan_json_events(request, constraint)
    if request.echo and request.stream and request.logprobs is not None and (request.n or 1) > 1:
        raise bad_request("An echo with logprobs of several choices is not available in a stream.", "n")
    texts = listed(state, request.prompt, field="prompt", most=state.config.max_waiting // (request.n or 1))
    prompts = await _prompts(state, request, texts)
    grammar = await state.compile(constraint)
    read = partial(
        sampling_params,
        request,
        max_tokens=_max_tokens(state, request, prompts[0]),
        logprobs=request.logprobs,
        engine=state.engine,
        constrained=constraint is not None,
        prompt_logprobs=request.logprobs if request.echo else None,
    )
    params = await state.in_thread(read) if request.bad_words else read()
    requests = [
        GenerateRequest(
            prompt=prompt,
            params=of_another_prompt(params, request, _max_tokens(state, request, prompt)),
            choices=request.n or 1,
            grammar=grammar,
            namespace=request.cache_salt or "",
            priority=request.priority or 0,
        )
        for prompt in prompts
    ]
    echoes = await _echoes(request, state.engine.tokenizer, texts, prompts)
    identity = Identity.new("cmpl-", state.model_name)
    generation = await Generation.submitted(
        state.engine, requests, request_id=identity.id, prompt_field="prompt"
    )
    choices = _choices(state, request, generation, echoes, json_events)
    reply = CompletionReply(identity, choices, generation.report if request.timings else None)
    tells_logprobs = request.logprobs is not None or request.prompt_logprobs is not None
    return Exchange.of(request, generation, reply, reply.write_logprobs if tells_logprobs else None)


async def _prompts(state: AppState, request: CompletionRequest, given: list[Prompt]) -> list[list[int]]:
    """The ids of each prompt.

    Raises:
        ApiError: 400; too long, or too many log-probabilities would be told of them.
    """
    add_special, keep = request.add_special_tokens, request.truncate_prompt_tokens
    prompts = [
        await encoded(state, item, field="prompt", add_special=add_special, keep=keep) for item in given
    ]
    # Each choice tells them.
    tokens = sum(map(len, prompts)) * (request.n or 1)
    if request.echo and request.logprobs is not None:
        check_amount(tokens * (1 + request.logprobs), "logprobs")
    if request.prompt_logprobs is not None:
        check_amount(tokens * (1 + request.prompt_logprobs), "prompt_logprobs")
    return prompts


def _max_tokens(state: AppState, request: CompletionRequest, prompt: list[int]) -> int:
    if request.max_tokens is not None:
        return request.max_tokens
    return max(1, min(_DEFAULT_MAX_TOKENS, state.engine.max_context - len(prompt)))


def _choices(
    state: AppState,
    request: CompletionRequest,
    generation: Generation,
    echoes: list[str | None],
    json_events: JsonEventPlan,
) -> list[_ChoiceState]:
    """The choices of all prompts, in the order of their indices."""
    tokenizer = state.engine.tokenizer
    skip = request.skip_special_tokens is not False
    reports = [prompt_report(request, handle, tokenizer) for handle in generation.requests]
    return [
        _ChoiceState(
            num_top=request.logprobs,
            writer=CompletionLogprobsWriter(tokenizer, skip_special=skip),
            prompt=report,
            json_events=json_events,
            json=json_events.text_reader(),
            echo=echo,
        )
        for report, echo in zip(reports, echoes, strict=True)
        for _ in range(request.n or 1)
    ]


async def _echoes(
    request: CompletionRequest, tokenizer: Tokenizer, given: list[Prompt], prompts: list[list[int]]
) -> list[str | None]:
    """The text of each prompt, where it is to be told."""
    if not request.echo:
        return [None] * len(prompts)
    return [
        await _echo(request, tokenizer, item, prompt) for item, prompt in zip(given, prompts, strict=True)
    ]


async def _echo(request: CompletionRequest, tokenizer: Tokenizer, given: Prompt, prompt: list[int]) -> str:
    """The prompt as text: as it was given, or what its ids stand for."""
    if isinstance(given, str) and request.truncate_prompt_tokens is None:
        return given
    skip = request.skip_special_tokens is not False
    data = bytearray()
    async for token_id in in_slices(prompt):
        data += tokenizer.bytes_of(token_id, skip_special=skip)
    text = data.decode("utf-8", "replace")
    return text.removeprefix(" ") if tokenizer.strips_leading_space else text


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice's stream is."""

    num_top: int | None
    """Of how many likeliest tokens log-probabilities are told; None tells none at all."""
    writer: CompletionLogprobsWriter
    """Has those of tokens whose text has not been sent yet."""
    prompt: PromptReport
    json_events: JsonEventPlan
    json: JsonEventReader | None
    """Reads the text where complete values are to be told."""
    echo: str | None
    """The prompt's text until it is given out; None where it is not asked for."""
    is_first: bool = True
    token_ids: list[int] = field(default_factory=list)
    """Of tokens whose text has not been sent yet."""
    is_echoed: bool = False
    """Whether the prompt's log-probabilities are written."""

    def choice(self, index: int, text: str) -> Choice:
        """What is new, the echo before it; `text` is that of all tokens taken in so far."""
        choice = Choice(index=index, text=text, logprobs=self.writer.taken())
        if self.json is not None:
            choice.json_events = self.json.feed(text) or UNSET
        if self.is_first:
            choice.prompt_token_ids = self.prompt.token_ids()
            choice.prompt_logprobs = self.prompt.logprobs()
            choice.text = (self.echo or "") + text
        if self.prompt.show_ids:
            choice.token_ids, self.token_ids = self.token_ids, []
        self.is_first = False
        return choice

    async def write_logprobs(self, update: Update) -> None:
        """Those of an update, and those of the prompt where they are to come before."""
        await self.prompt.write_logprobs()
        if self.num_top is None:
            return
        if self.echo is not None and not self.is_echoed:
            request = self.prompt.request
            self.is_echoed = True
            await self.writer.write_prompt(request.prompt, self.echo, request.prompt_logprobs, self.num_top)
        await self.writer.write(update.logprobs)


class CompletionReply:
    """Writes a generation in the form of text completions.

    Args:
        timings: makes the report that comes with the answer; None if none is wanted.
    """

    def __init__(
        self,
        identity: Identity,
        choices: list[_ChoiceState],
        timings: Callable[[], RequestReport] | None,
    ) -> None:
        self._identity = identity
        self._choices = choices
        self._timings = timings

    async def write_logprobs(self, updates: Sequence[Update]) -> None:
        """To be called with updates before they are told, where log-probabilities are."""
        for update in updates:
            await self._choices[update.index].write_logprobs(update)

    def opening(self, usage: ChunkUsage) -> Iterable[Completion]:
        return ()

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterable[Completion]:
        """New text, then, once the choice ended, a chunk of its own that says why."""
        choice = self._take(update)
        if update.text or (choice.is_first and choice.echo):
            yield self._completion([choice.choice(update.index, update.text)], usage)
        if update.finish_reason is not None:
            yield self._completion([self._last(update, "")], usage)

    def closing(self, usage: ChunkUsage) -> Iterable[Completion]:
        yield self._last_completion([], usage)

    def whole(self, updates: list[Update], usage: Usage) -> Completion:
        for update in updates:
            self._take(update)
        return self._last_completion([self._last(update, update.text) for update in updates], usage)

    def _take(self, update: Update) -> _ChoiceState:
        choice = self._choices[update.index]
        choice.token_ids += update.token_ids
        return choice

    def _last(self, update: Update, text: str) -> Choice:
        state = self._choices[update.index]
        choice = state.choice(update.index, text)
        if state.json is not None and state.json_events.ends_whole(update):
            choice.json_events = state.json.end() or UNSET
        choice.finish_reason = update.finish_reason
        choice.stop_reason = UNSET if update.stop_reason is None else update.stop_reason
        return choice

    def _last_completion(self, choices: list[Choice], usage: ChunkUsage) -> Completion:
        completion = self._completion(choices, usage)
        completion.timings = self._timings() if self._timings else UNSET
        return completion

    def _completion(self, choices: list[Choice], usage: ChunkUsage) -> Completion:
        return Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=choices,
            usage=usage,
        )
