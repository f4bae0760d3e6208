"""What all handlers of one application share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import msgspec
from starlette.requests import Request

from app.bodies import BodyRoom, decode, read_body
from app.caller import current_caller
from app.errors import ApiError, bad_request, from_template, queue_full, shutting_down, unavailable
from app.messages import plain_messages
from app.protocol import ChatRequest, DrawingFields, SamplingFields, refuse_unsupported
from app.responses_store import ResponseStore
from app.stream_store import StreamStore
from app.structured import FieldConstraint, refuse_unknown_constraints
from app.templates import ChatTemplate, TemplateError
from app.thinking import OPEN
from app.tool_calls import CALL_FORMATS
from engine.config import Config
from engine.engine import Engine
from grammars.base import Grammar, GrammarError
from grammars.compiler import CompilerClosedError
from grammars.spec import Constraint
from grammars.turns import TooMuchWaitsError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T", bound=msgspec.Struct)

_MOST_RESPONSES = 1024
_MOST_STREAMS = 256
_MOST_MESSAGES = 32 * 1024
"""Of all responses that are kept to be retrieved or gone on from."""
_RESPONSES_BYTES = 256 << 20
"""Of the requests and answers behind them."""
_BODIES = 64
"""Of the largest size that may be in the middle of being received."""
_INLINE_BYTES = 64 * 1024
"""A body up to this size is decoded on the loop: that takes less than the way to another thread and back."""


class AppState:
    """The engine and everything requests are prepared with. What may take long runs in threads of its own."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.engine = engine
        self.config = config
        self.model_name = config.served_model_name or engine.model_name
        self.started_at = int(time.time())
        self.draining = asyncio.Event()
        """Set once the server was told to stop."""
        self.responses = ResponseStore(
            capacity=_MOST_RESPONSES, max_messages=_MOST_MESSAGES, max_bytes=_RESPONSES_BYTES
        )
        self.streams = StreamStore(capacity=_MOST_STREAMS, retention_s=config.resume_timeout)
        self._body_room = BodyRoom(_BODIES * (config.max_body << 20), engine.stats)
        tokenizer = engine.tokenizer
        self._template = ChatTemplate(tokenizer)
        template = tokenizer.chat_template or ""
        self.thinks = OPEN in template or "reasoning_content" in template
        """Whether the model may begin its answers with what it thinks."""
        form = config.tool_call_format
        if form == "auto":
            form = "mistral" if "[TOOL_CALLS]" in template else "json"
        self.call_format = CALL_FORMATS[form]
        self._longest_token = max(map(len, (*tokenizer.token_bytes, *tokenizer.special_tokens)))
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="radish-prepare")

    def close(self) -> None:
        self.streams.close()
        self._threads.shutdown(cancel_futures=True)

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self.engine.is_ready and not self.draining.is_set()

    def check_ready(self) -> None:
        """Raises ApiError 503 unless new requests are taken."""
        if not self.is_ready:
            why = "A step of the engine hangs." if self.engine.is_stuck else "The server is shutting down."
            raise unavailable(why, retry_after_s=self.config.drain_timeout)

    async def read_body(self, request: Request) -> bytes:
        """See `app.bodies.read_body`."""
        return await read_body(request, self.config.max_body << 20, self._body_room)

    async def decode(self, body: bytes, type_: type[_T]) -> _T:
        """See `app.bodies.decode`."""
        if len(body) <= _INLINE_BYTES:
            return _decode(body, type_)
        return await self.in_thread(_decode, body, type_)

    def check(self, request: SamplingFields) -> None:
        """What any generating request has to fulfil.

        Raises:
            ApiError: 404 for another model's name, 400 for a parameter that is not supported here.
        """
        self.check_model(request.model)
        refuse_unsupported(request)
        if request.stream_options is not None:
            if not request.stream:
                raise bad_request("stream_options needs stream to be true.", "stream_options")
            refuse_unsupported(request.stream_options, within="stream_options.")

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 unless `name` is the served model's."""
        if name != self.model_name:
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this server has {self.model_name!r}.",
                param="model",
                code="model_not_found",
            )

    async def encode_chat(self, request: ChatRequest, tools: list[dict[str, Any]]) -> list[int]:
        """The prompt of a conversation in which `tools` are shown to the model.

        Raises:
            ApiError: 400; too long, or refused by the chat template.
        """
        messages = plain_messages(request.messages)
        self._check_length((message["content"] for message in messages), "messages")
        try:
            return await self.in_thread(
                self._template.encode,
                messages,
                tools=tools,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final_message=request.continue_final_message or False,
                kwargs=request.chat_template_kwargs,
                check=lambda text: self._check_length((text,), "messages"),  # tools are in it by now
            )
        except TemplateError as error:
            raise from_template(error) from None

    async def encode_text(self, text: str, *, field: str = "prompt", add_special: bool) -> list[int]:
        """The ids of a plain text, in which special tokens are written as their text.

        Args:
            field: what the request calls it, to name it in errors.
            add_special: add what the model wants around a text.

        Raises:
            ApiError: 400; too long.
        """
        self._check_length((text,), field)
        return await self.in_thread(
            self.engine.tokenizer.encode, text, add_special=add_special, parse_special=True
        )

    async def compile(self, wanted: FieldConstraint | None) -> Grammar | None:
        """The grammar of a constraint.

        Raises:
            ApiError: 400; it cannot be enforced. 429; too many of this caller's wait to be compiled.
        """
        if wanted is None:
            return None
        try:
            return await self.grammar(wanted.constraint)
        except GrammarError as error:
            raise wanted.refusal(error) from None

    async def grammar(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint.

        Raises:
            GrammarError: it cannot be enforced.
            ApiError: 429; too many constraints of this caller wait to be compiled. 503; the server stopped.
        """
        caller = current_caller.get()
        try:
            return await self.engine.compiler.compile(
                constraint, namespace=caller.namespace, owner=caller.tenant
            )
        except TooMuchWaitsError as error:
            self.engine.stats.rejected["compiler_full"] += 1
            raise queue_full(str(error), retry_after_s=1) from None
        except CompilerClosedError:
            raise shutting_down() from None

    def _check_length(self, texts: Iterable[str], field: str) -> None:
        """Refuse what cannot fit whatever its tokens are, before any work is spent on it.

        That holds for what will be cut as well: all of it would be tokenised first.
        """
        size = sum(len(text.encode()) for text in texts)
        least = size // self._longest_token
        limit = self.engine.max_context
        if least > limit:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, you requested at least "
                f"{least} tokens, for the prompt has {size} bytes. Please reduce its length.",
                field,
                "context_length_exceeded",
            )

    async def in_thread(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call what takes more than a few milliseconds off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))


def _decode(body: bytes, type_: type[_T]) -> _T:
    request = decode(body, type_)
    if isinstance(request, DrawingFields):
        refuse_unknown_constraints(body, request)
    return request
