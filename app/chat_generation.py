"""From a conversation to its generation: what every API that has conversations goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app.errors import ApiError, bad_request
from app.generation import Generation, check_room
from app.json_events import JsonEventPlan, plan_json_events
from app.logprobs import check_amount
from app.protocol import ChatRequest
from app.sampling import sampling_params, truncate
from app.state import AppState
from app.thinking import CLOSE, OPEN, Thinking
from app.tool_calls import Splitter
from app.tools import plan_answer
from engine.params import SamplingParams
from engine.request import GenerateRequest
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatGeneration:
    """A submitted conversation."""

    generation: Generation
    splitter: Callable[[], Splitter]
    """Makes the reader of one choice's text."""
    json_events: JsonEventPlan


async def submit_chat(
    state: AppState, request: ChatRequest, *, request_id: str, prompt_field: str
) -> ChatGeneration:
    """Check, prepare and submit one conversation.

    Args:
        prompt_field: what the request called its messages, to name it in errors.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    state.check(request)
    check_room(state.engine, choices=request.n or 1, priority=request.priority or 0)
    if request.continue_final_message and request.add_generation_prompt:
        raise bad_request(
            "add_generation_prompt must be false to continue the final message.", "add_generation_prompt"
        )
    plan = plan_answer(request, state.call_format)
    json_events = plan_json_events(request, plan.constraint, may_call=bool(plan.tools))
    logprobs = _wanted_logprobs(request)
    prompt = truncate(await state.encode_chat(request, plan.tools), request)
    if request.prompt_logprobs is not None:
        check_amount(len(prompt) * (1 + request.prompt_logprobs), "prompt_logprobs")
    constrained = plan.constraint is not None
    params = await _params(state, request, prompt, logprobs, constrained=constrained)
    # A template that leaves thinking out writes an empty thought itself.
    thinks = state.thinks and not _ends_with(prompt, CLOSE, state.engine.tokenizer)
    begun = thinks and _ends_with(prompt, OPEN, state.engine.tokenizer)
    grammar = await state.compile(plan.constraint)
    if grammar is not None and thinks:
        grammar = state.engine.compiler.after_thought(grammar, begun=begun)
    generate = GenerateRequest(
        prompt=prompt,
        params=params,
        choices=request.n or 1,
        grammar=grammar,
        namespace=request.cache_salt or "",
        priority=request.priority or 0,
    )
    try:
        generation = await Generation.submitted(
            state.engine, [generate], request_id=request_id, prompt_field=prompt_field
        )
    except ApiError as error:
        if error.detail.param == "max_tokens" and request.max_completion_tokens is not None:
            error.detail.param = "max_completion_tokens"
        raise
    if not (thinks or (state.thinks and grammar is None)):
        return ChatGeneration(generation, plan.splitter, json_events)
    return ChatGeneration(generation, lambda: Thinking(plan.splitter(), begun=begun), json_events)


async def _params(
    state: AppState, request: ChatRequest, prompt: list[int], logprobs: int | None, *, constrained: bool
) -> SamplingParams:
    read = partial(
        sampling_params,
        request,
        max_tokens=_max_tokens(request, max(1, state.engine.max_context - len(prompt))),
        logprobs=logprobs,
        engine=state.engine,
        constrained=constrained,
    )
    return await state.in_thread(read) if request.bad_words else read()


def _ends_with(prompt: list[int], text: str, tokenizer: Tokenizer) -> bool:
    """Whether the prompt's text ends with `text`, white space aside."""
    tail = b"".join(tokenizer.bytes_of(token_id, skip_special=False) for token_id in prompt[-16:])
    return tail.rstrip().endswith(text.encode())


def _wanted_logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    return None


def _max_tokens(request: ChatRequest, default: int) -> int:
    return request.max_completion_tokens or request.max_tokens or default
