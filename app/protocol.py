"""What a client may send to the generating endpoints.

Every field may be null, which means absent; a field nobody declared is ignored, as OpenAI's clients
send some that say nothing to an open server. A field of type `Unsupported` is known and not
implemented: any value but a neutral one is refused by name, never silently dropped.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from app.errors import bad_request
from app.messages import Messages

_Meta = msgspec.Meta
_INT64 = 2**63 - 1

Tokens = Annotated[int, _Meta(ge=1, le=_INT64)]
Penalty = Annotated[float, _Meta(ge=-2, le=2)]
Probability = Annotated[float, _Meta(ge=0, le=1)]
TokenId = Annotated[int, _Meta(ge=0, le=_INT64)]
StopString = Annotated[str, _Meta(min_length=1, max_length=1024)]
Choices = Annotated[list[str], _Meta(min_length=1)]
MAX_TOP_LOGPROBS = 20


def neutral(*values: str) -> Any:
    """Values that ask for nothing, as JSON texts: in Python 1 equals True. null always is one."""
    return _Meta(extra={"neutral": {b"null", *(value.encode() for value in values)}})


Unsupported = Annotated[Any, neutral()]
UnsupportedFlag = Annotated[Any, neutral("false")]
UnsupportedList = Annotated[Any, neutral("[]")]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: UnsupportedFlag = None
    include_json_events: bool | None = None
    """Tell in each chunk which values of the answer's JSON it completed, and where they belong."""
    resumable: bool | None = None
    """Go on when the connection breaks off, and number the events: GET /v1/streams/{id} has the rest."""


class DrawingFields(msgspec.Struct, kw_only=True):
    """How tokens are drawn, what constrains them and what ends them: alike in all of OpenAI's APIs."""

    min_tokens: Annotated[int, _Meta(ge=0, le=_INT64)] | None = None
    temperature: Annotated[float, _Meta(ge=0)] | None = None
    top_p: Annotated[float, _Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, _Meta(ge=-1, le=_INT64)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, _Meta(ge=1e-3, le=1e3)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, _Meta(ge=-100, le=100)]], _Meta(max_length=1024)] | None
    ) = None
    seed: Annotated[int, _Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    stop: StopString | Annotated[list[StopString], _Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], _Meta(max_length=256)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, _Meta(ge=-1000, le=1000)] | None = None
    """The lower, the sooner; 0 if absent."""
    cache_salt: Annotated[str, _Meta(min_length=1)] | None = None
    """Prefixes are shared only between requests with the same salt."""

    ensure_complete: bool | None = None
    """End constrained output the shortest way when the token budget nears its end; true if absent."""
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None

    allowed_token_ids: Annotated[list[TokenId], _Meta(min_length=1)] | None = None
    bad_words: Annotated[list[StopString], _Meta(max_length=256)] | None = None
    truncate_prompt_tokens: Tokens | None = None
    """Keep that many of the prompt's last tokens."""

    user: str | None = None
    """Whose request it is, in the client's books: says nothing here."""
    guided_decoding_backend: str | None = None
    """Which of vLLM's engines enforces a constraint: says nothing here."""

    best_of: Annotated[Any, neutral("1", "1.0")] = None
    use_beam_search: UnsupportedFlag = None
    length_penalty: Annotated[Any, neutral("1", "1.0")] = None
    logits_processors: UnsupportedList = None
    spaces_between_special_tokens: Annotated[Any, neutral("true")] = None
    kv_transfer_params: Unsupported = None
    thinking_token_budget: Unsupported = None
    repetition_detection: Unsupported = None
    vllm_xargs: Annotated[Any, neutral("{}")] = None
    custom_params: Annotated[Any, neutral("{}")] = None
    stop_regex: Annotated[Any, neutral("[]", '""')] = None
    typical_p: Annotated[Any, neutral("1", "1.0")] = None
    repeat_penalty: Annotated[Any, neutral("1", "1.0")] = None
    mirostat: Annotated[Any, neutral("0")] = None
    dry_multiplier: Annotated[Any, neutral("0", "0.0")] = None
    xtc_probability: Annotated[Any, neutral("0", "0.0")] = None
    dynatemp_range: Annotated[Any, neutral("0", "0.0")] = None
    top_n_sigma: Annotated[Any, neutral("-1", "-1.0")] = None
    samplers: Unsupported = None
    no_stop_trim: UnsupportedFlag = None
    custom_logit_processor: Unsupported = None
    lora_path: Unsupported = None
    session_params: Unsupported = None


class SamplingFields(DrawingFields, kw_only=True):
    """Fields that chat and completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, _Meta(ge=1, le=128)] | None = None
    max_tokens: Tokens | None = None
    prompt_logprobs: Annotated[int, _Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    timings: bool | None = None
    """Tell with the answer, or in a last chunk without choices, what GET /v1/requests/{id} tells."""

    return_tokens_as_token_ids: UnsupportedFlag = None
    include_reasoning: Annotated[Any, neutral("true")] = None
    n_probs: Annotated[Any, neutral("0")] = None
    timings_per_token: UnsupportedFlag = None
    return_progress: UnsupportedFlag = None
    return_hidden_states: UnsupportedFlag = None
    logprob_token_ids: UnsupportedList = None


class JsonSchemaFormat(msgspec.Struct):
    name: Annotated[str, _Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any] | bool
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    """Of type structural_tag it has either `structures` and `triggers`, or `format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    """Constrained regions of the text: `begin`, the JSON `schema` of what follows, `end`."""
    triggers: list[str] | None = None
    """Texts that begin a region; everything else is free."""
    format: dict[str, Any] | None = None
    """A tree of formats, as xgrammar describes them."""


class Function(msgspec.Struct):
    name: Annotated[str, _Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    function: Function
    type: Literal["function"]


class NamedFunction(msgspec.Struct):
    name: str


class NamedToolChoice(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"]


class ChatRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Tokens | None = None
    """Wins over `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, _Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], _Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """Begin the assistant's answer; true if absent."""
    continue_final_message: bool | None = None
    """Go on with the last message instead of answering it."""

    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """As the two before it it says nothing here: every prefix is cached; `cache_salt` keeps them apart."""

    service_tier: Annotated[Any, neutral('"auto"', '"default"')] = None
    prompt_cache_retention: Annotated[Any, neutral('"in_memory"')] = None
    prompt_cache_options: Annotated[Any, neutral("{}")] = None
    separate_reasoning: Annotated[Any, neutral("true")] = None
    stream_reasoning: Annotated[Any, neutral("true")] = None
    media_io_kwargs: Annotated[Any, neutral("{}")] = None
    audio: Unsupported = None
    modalities: Annotated[Any, neutral('["text"]')] = None
    functions: UnsupportedList = None
    function_call: Annotated[Any, neutral('"none"')] = None
    web_search_options: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Annotated[Any, neutral('"none"')] = None
    verbosity: Annotated[Any, neutral('"medium"')] = None
    store: UnsupportedFlag = None
    moderation: Unsupported = None
    add_special_tokens: UnsupportedFlag = None
    echo: UnsupportedFlag = None
    chat_template: Unsupported = None
    documents: UnsupportedList = None
    mm_processor_kwargs: Unsupported = None


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, _Meta(ge=0, le=_INT64)] | None = None
    echo: bool | None = None
    """Give the prompt back before the completion; with `logprobs`, those of the prompt too."""
    add_special_tokens: bool | None = None
    """Add what the model wants around a text, such as BOS; true if absent."""
    logprobs: Annotated[int, _Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None

    suffix: Annotated[Any, neutral('""')] = None
    prompt_embeds: Unsupported = None
    tools: UnsupportedList = None


def refuse_unsupported(request: msgspec.Struct, within: str = "") -> None:
    """Refuse every known parameter that is not implemented, unless its value asks for nothing.

    Args:
        within: begins the names of parameters, of an object that is one itself.

    Raises:
        ApiError: 400 naming the first one.
    """
    for field, values in _neutral_values(type(request)):
        if msgspec.json.encode(getattr(request, field)) not in values:
            name = within + field
            raise bad_request(f"The parameter {name!r} is not supported.", name, "unsupported_parameter")


@cache
def _neutral_values(type_: type[msgspec.Struct]) -> list[tuple[str, set[bytes]]]:
    hints = get_type_hints(type_, include_extras=True)
    return [
        (name, meta.extra["neutral"])
        for name, hint in hints.items()
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, _Meta) and meta.extra and "neutral" in meta.extra
    ]
