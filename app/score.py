"""POST /v1/score: how likely labels are as what follows a prompt, in SGLang's form.

Each item's prompt is computed once, whatever the number of labels, and what items have in common is
computed once as well: the prefix cache shares it. Labels of several tokens are beyond SGLang's form.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from app.errors import bad_request
from app.generation import Generation, Usage, check_room
from app.logprobs import check_amount
from app.prompts import check_number
from app.protocol import TokenId
from app.replies import Identity, Reading
from app.sampling import check_ids
from app.slices import JsonList, in_slices
from app.state import AppState
from engine.params import SamplingParams
from engine.request import GenerateRequest, Request
from engine.targets import Targets

_Ids = list[TokenId]
_Place = tuple[int, int]
_LABELS = msgspec.Meta(min_length=1, max_length=256)


class ScoreRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/score."""

    query: str | _Ids
    items: str | Annotated[list[str | _Ids], msgspec.Meta(min_length=1)]
    """Each makes a prompt with the query: texts if that is a text, else token ids."""
    label_token_ids: Annotated[_Ids, _LABELS] | None = None
    """Labels of one token each."""
    labels: Annotated[list[str | _Ids], _LABELS] | None = None
    """Labels instead, each a text that goes on with the prompt as it is written, or its token ids."""
    apply_softmax: bool | None = None
    """Divide an item's probabilities by their sum."""
    item_first: bool | None = None
    """Put the item before the query instead of after it."""
    model: str | None = None


class LabelScore(msgspec.Struct, kw_only=True):
    """Natural log-probabilities of one label after one prompt."""

    logprob: float
    """Of the whole label: the sum."""
    token_ids: list[int]
    token_logprobs: list[float]


class Scores(msgspec.Struct, tag_field="object", tag="scoring", kw_only=True):
    id: str
    created: int
    model: str
    scores: list[list[float]]
    """For each item the probability of each label, in the request's order."""
    logprobs: list[list[LabelScore]]
    """What they come from."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Branch:
    """Labels that differ in their last token only: one prompt tells of all of them."""

    beginning: tuple[int, ...]
    lasts: list[int]

    def request(self, prompt: list[int]) -> GenerateRequest:
        last = len(prompt) - 1
        whole = [*prompt, *self.beginning]
        positions = [*range(last, len(whole) - 1), *[len(whole) - 1] * len(self.lasts)]
        return GenerateRequest(
            prompt=whole,
            params=SamplingParams(max_tokens=0),
            purpose="measure",
            targets=Targets(positions, [*self.beginning, *self.lasts]),
        )


async def create_score(state: AppState, body: bytes) -> Reading:
    """Check, prepare and submit all prompts of one request.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, ScoreRequest)
    if request.model is not None:
        state.check_model(request.model)
    check_room(state.engine)
    items = [request.items] if isinstance(request.items, str) else request.items
    check_number(len(items), field="items", most=state.config.max_waiting)
    _check_size(state, request.query, items)
    prompts = await _prompts(state, request, items)
    labels = await _labels(state, request)
    check_amount(len(prompts) * sum(map(len, labels)), "labels")
    branches, places = await _branches(labels)
    most = state.config.max_waiting // len(branches)
    if len(prompts) > most:
        raise bad_request(
            f"There are {len(prompts)} items; with these labels {most} are possible at once.", "items"
        )
    requests = (branch.request(prompt) for prompt in prompts for branch in branches)
    identity = Identity.new("score-", state.model_name)
    generation = await Generation.submitted(
        state.engine, requests, request_id=identity.id, prompt_field="items"
    )

    async def answer() -> Scores:
        probabilities, told = JsonList[list[float]](), JsonList[list[LabelScore]]()
        async for first in in_slices(range(0, len(generation.requests), len(branches))):
            handles = generation.requests[first : first + len(branches)]
            whole, logprobs = JsonList[LabelScore](), []
            async for score in _scores(handles, branches, places):
                whole.append(score)
                logprobs.append(score.logprob)
            told.append(whole.taken())
            probabilities.append(_probabilities(logprobs, softmax=request.apply_softmax or False))
        return Scores(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            scores=probabilities.taken(),
            logprobs=told.taken(),
            usage=generation.usage(),
        )

    return Reading(generation, answer)


def _check_size(state: AppState, query: str | _Ids, items: Sequence[str | _Ids]) -> None:
    """Refuse a query that is repeated so often that a body with all prompts would be too large.

    Raises:
        ApiError: 400; nothing was tokenised.
    """
    size, most = len(query) * len(items) + sum(map(len, items)), state.config.max_body << 20
    if size > most:
        message = f"The prompts have {size} characters or token ids together; at most {most} are read."
        raise bad_request(message, "items")


async def _prompts(state: AppState, request: ScoreRequest, items: Sequence[str | _Ids]) -> list[list[int]]:
    prompts: list[list[int]] = []
    async for item in in_slices(items):
        first, second = (item, request.query) if request.item_first else (request.query, item)
        if isinstance(first, str) and isinstance(second, str):
            prompts.append(await state.encode_text(first + second, field="items", add_special=True))
        elif isinstance(first, str) or isinstance(second, str):
            raise bad_request("The query and the items must be all texts or all token ids.", "items")
        else:
            prompts.append([*first, *second])
        if not prompts[-1]:
            raise bad_request("A prompt of query and item is empty.", "items")
    return prompts


async def _labels(state: AppState, request: ScoreRequest) -> list[list[int]]:
    if (request.label_token_ids is None) == (request.labels is None):
        raise bad_request("Either label_token_ids or labels are needed.", "label_token_ids")
    if request.label_token_ids is not None:
        check_ids("label_token_ids", request.label_token_ids, state.engine.vocab_size)
        return [[token_id] for token_id in request.label_token_ids]
    labels: list[list[int]] = []
    async for label in in_slices(request.labels or ()):
        ids = label
        if isinstance(ids, str):
            ids = await state.encode_text(ids, field="labels", add_special=False)
        if not ids:
            raise bad_request("A label is empty.", "labels")
        check_ids("labels", ids, state.engine.vocab_size)
        labels.append(ids)
    return labels


async def _branches(labels: list[list[int]]) -> tuple[list[_Branch], list[_Place]]:
    """The branches of labels, and for each label the number of its branch and of its last token there."""
    numbers: dict[tuple[int, ...], int] = {}
    branches: list[_Branch] = []
    places: list[_Place] = []
    async for *rest, last in in_slices(labels):
        number = numbers.setdefault(tuple(rest), len(branches))
        if number == len(branches):
            branches.append(_Branch(tuple(rest), []))
        lasts = branches[number].lasts
        if last not in lasts:
            lasts.append(last)
        places.append((number, lasts.index(last)))
    return branches, places


async def _scores(
    handles: Sequence[Request], branches: Sequence[_Branch], places: Sequence[_Place]
) -> AsyncIterator[LabelScore]:
    """Those of one item's labels, whose branches are `handles`."""
    measured = [[measure.logprob for measure in handle.measures] for handle in handles]
    async for number, place in in_slices(places):
        branch, logprobs = branches[number], measured[number]
        shared = len(branch.beginning)
        told = [*logprobs[:shared], logprobs[shared + place]]
        ids = [*branch.beginning, branch.lasts[place]]
        yield LabelScore(logprob=math.fsum(told), token_ids=ids, token_logprobs=told)


def _probabilities(logprobs: list[float], *, softmax: bool) -> list[float]:
    if not softmax:
        return [math.exp(logprob) for logprob in logprobs]
    highest = max(logprobs)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
