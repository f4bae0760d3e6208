"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import bad_request
from app.generation import Generation, Usage
from app.logprobs import CompletionLogprobs, CompletionLogprobsWriter
from app.protocol import CompletionRequest
from app.replies import ChunkUsage, Exchange, Identity
from app.sampling import sampling_params
from app.state import AppState
from app.structured import text_constraint
from engine.request import GenerateRequest
from engine.stream import TokenLogprob, Update

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class Choice(msgspec.Struct, kw_only=True):
    """Of a whole answer, or of one chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class Completion(msgspec.Struct, tag_field="object", tag="text_completion", kw_only=True):
    """A whole answer, or one chunk: they have the same form and name."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


async def create_completion(state: AppState, body: bytes) -> Exchange:
    """Check, prepare and submit one completions request, all its prompts.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, CompletionRequest)
    state.check(request)
    constraint = text_constraint(request)
    prompts = await _prompts(state, request)
    grammar = await state.compile(constraint)
    requests = [
        GenerateRequest(
            prompt=prompt,
            params=sampling_params(
                request,
                max_tokens=request.max_tokens or _default_max_tokens(state, prompt),
                logprobs=request.logprobs,
                vocab_size=state.engine.vocab_size,
            ),
            choices=request.n or 1,
            grammar=grammar,
            namespace=request.cache_salt or "",
        )
        for prompt in prompts
    ]
    identity = Identity.new("cmpl", state.model_name)
    generation = Generation(state.engine, requests, request_id=identity.id, prompt_field="prompt")
    reply = CompletionReply(identity, _logprobs_writers(state, request, generation.num_choices))
    return Exchange.of(request, generation, reply)


def _default_max_tokens(state: AppState, prompt: list[int]) -> int:
    return max(1, min(_DEFAULT_MAX_TOKENS, state.engine.max_context - len(prompt)))


async def _prompts(state: AppState, request: CompletionRequest) -> list[list[int]]:
    """Every prompt as token ids: the request has a text, texts, one list of ids, or several.

    Raises:
        ApiError: 400; one is empty, or they are of different kinds, or too many.
    """
    given = request.prompt
    items: list[str | list[int]]
    if isinstance(given, str):
        items = [given]
    elif given and isinstance(given[0], int):
        items = [[item for item in given if isinstance(item, int)]]
        if len(items[0]) != len(given):
            raise bad_request("prompt mixes token ids with something else.", "prompt")
    else:
        items = [item for item in given if not isinstance(item, int)]
        if len(items) != len(given) or len({type(item) for item in items}) > 1:
            raise bad_request("prompt mixes texts and lists of token ids.", "prompt")
    if not items or not all(items):
        raise bad_request("prompt is empty.", "prompt")
    most = state.config.max_waiting // (request.n or 1)
    if len(items) > most:
        raise bad_request(f"There are {len(items)} prompts; at most {most} are possible at once.", "prompt")
    return [await state.encode_text(item) if isinstance(item, str) else item for item in items]


def _logprobs_writers(
    state: AppState, request: CompletionRequest, num_choices: int
) -> list[CompletionLogprobsWriter | None]:
    if request.logprobs is None:
        return [None] * num_choices
    skip = request.skip_special_tokens is not False
    return [CompletionLogprobsWriter(state.engine.tokenizer, skip_special=skip) for _ in range(num_choices)]


@dataclass(slots=True)
class _ChoiceState:
    """How far one choice's stream is."""

    writer: CompletionLogprobsWriter | None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of tokens whose text has not been sent yet."""

    def take_logprobs(self) -> CompletionLogprobs | None:
        entries, self.logprobs = self.logprobs, []
        return self.writer.write(entries) if self.writer and entries else None


class CompletionReply:
    """Writes a generation in the form of text completions."""

    def __init__(self, identity: Identity, writers: list[CompletionLogprobsWriter | None]) -> None:
        self._identity = identity
        self._choices = [_ChoiceState(writer) for writer in writers]

    def opening(self, usage: ChunkUsage) -> Iterable[Completion]:
        return ()

    def chunks(self, update: Update, usage: ChunkUsage) -> Iterable[Completion]:
        """New text, then, once the choice ended, a chunk of its own that says why."""
        choice = self._choices[update.index]
        choice.logprobs += update.logprobs
        if update.text:
            yield self._completion(
                [Choice(index=update.index, text=update.text, logprobs=choice.take_logprobs())], usage
            )
        if update.finish_reason is not None:
            yield self._completion([self._last(update, "")], usage)

    def closing(self, usage: Usage) -> Completion:
        return self._completion([], usage)

    def whole(self, updates: list[Update], usage: Usage) -> Completion:
        for update in updates:
            self._choices[update.index].logprobs += update.logprobs
        return self._completion([self._last(update, update.text) for update in updates], usage)

    def _last(self, update: Update, text: str) -> Choice:
        return Choice(
            index=update.index,
            text=text,
            logprobs=self._choices[update.index].take_logprobs(),
            finish_reason=update.finish_reason,
            stop_reason=UNSET if update.stop_reason is None else update.stop_reason,
        )

    def _completion(self, choices: list[Choice], usage: ChunkUsage) -> Completion:
        return Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            choices=choices,
            usage=usage,
        )
