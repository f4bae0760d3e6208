"""From the wire's sampling fields to `SamplingParams`, with OpenAI's and vLLM's defaults."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from msgspec.structs import replace

from app.errors import bad_request
from app.protocol import SamplingFields
from engine.engine import Engine
from engine.params import SamplingParams
from engine.tokenizer import Tokenizer

_MOST_BAD_TOKENS = 8192
"""Of all bad words: each step compares them with the end of the output."""


def sampling_params(
    request: SamplingFields,
    *,
    max_tokens: int,
    logprobs: int | None,
    engine: Engine,
    constrained: bool,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Parameters of one prompt's choices; a seed is drawn where none was given.

    Many bad words take milliseconds to tokenise.

    Args:
        constrained: whether a grammar decides too which tokens are possible.
        prompt_logprobs: wanted, beside those that the request asks for by that name.

    Raises:
        ApiError: 400, naming the field.
    """
    vocab_size = engine.vocab_size
    if len(request.allowed_token_ids or ()) > vocab_size:
        raise bad_request(f"allowed_token_ids has more than {vocab_size} ids.", "allowed_token_ids")
    check_ids("logit_bias", request.logit_bias or (), vocab_size)
    check_ids("stop_token_ids", request.stop_token_ids or (), vocab_size)
    check_ids("allowed_token_ids", request.allowed_token_ids or (), vocab_size)
    for field in ("allowed_token_ids", "bad_words"):
        if constrained and getattr(request, field):
            raise bad_request(f"{field} cannot be combined with a constraint or a required tool call.", field)
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs are not available in a stream.", "prompt_logprobs")
    wanted = [count for count in (request.prompt_logprobs, prompt_logprobs) if count is not None]
    stop = request.stop or ()
    return SamplingParams(
        max_tokens=_budget(request, max_tokens),
        min_tokens=request.min_tokens or 0,
        temperature=_or(request.temperature, 1.0),
        top_k=max(request.top_k or 0, 0),
        top_p=_or(request.top_p, 1.0),
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias or {},
        seed=_seed(request),
        logprobs=logprobs,
        prompt_logprobs=max(wanted, default=None),
        allowed_token_ids=frozenset(request.allowed_token_ids or ()),
        bad_words=_bad_words(request.bad_words or [], engine.tokenizer),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos or False,
        include_stop_str_in_output=request.include_stop_str_in_output or False,
        skip_special_tokens=request.skip_special_tokens is not False,
        ensure_complete=request.ensure_complete is not False,
    )


def of_another_prompt(params: SamplingParams, request: SamplingFields, max_tokens: int) -> SamplingParams:
    """The same for one more prompt of the request, without the work of reading it again.

    Raises:
        ApiError: 400, naming the field.
    """
    return replace(params, max_tokens=_budget(request, max_tokens), seed=_seed(request))


def _budget(request: SamplingFields, max_tokens: int) -> int:
    if (request.min_tokens or 0) > max_tokens:
        raise bad_request(
            f"min_tokens ({request.min_tokens}) is above max_tokens ({max_tokens}).", "min_tokens"
        )
    return max_tokens


def _seed(request: SamplingFields) -> int:
    return secrets.randbits(63) if request.seed is None else request.seed


def truncate(prompt: list[int], request: SamplingFields) -> list[int]:
    """The prompt, of which `truncate_prompt_tokens` keeps only the end."""
    return prompt if request.truncate_prompt_tokens is None else prompt[-request.truncate_prompt_tokens :]


def _bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as a text begins with it, and as it follows a space.

    Raises:
        ApiError: 400, they have too many tokens.
    """
    spellings = [spelling for word in words for spelling in (word.lstrip(" "), " " + word.lstrip(" "))]
    encoded = [tokenizer.encode(text, add_special=False, parse_special=False) for text in spellings]
    different = tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
    if sum(map(len, different)) > _MOST_BAD_TOKENS:
        raise bad_request(f"bad_words have more than {_MOST_BAD_TOKENS} tokens.", "bad_words")
    return different


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def check_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    """Raises ApiError 400 where one is outside the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(f"{field}: token id {token_id} is not in [0, {vocab_size}).", field)
