"""The engine without a server: the same scheduler, prefix tree and grammars, in a thread of this process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from engine.batch import Float32
from engine.config import Config
from engine.embedding import unit_vector
from engine.engine import Engine
from engine.load import load_engine
from engine.params import SamplingParams
from engine.request import GenerateRequest, Request
from engine.stream import FinishReason, TokenLogprob, Update
from grammars.outlines_types import constraint_of
from grammars.spec import Constraint

Prompt = str | list[int]
"""Text, in which special tokens are written as their text; or token ids."""

_T = TypeVar("_T")
_W = TypeVar("_W")


@dataclass(frozen=True, slots=True)
class Output:
    """One choice of one prompt."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: list[TokenLogprob]
    """One entry a token where `SamplingParams.logprobs` asks for them."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprob]
    """Of all tokens of the prompt but the first, where `SamplingParams.prompt_logprobs` asks for them."""
    cached_tokens: int
    """Tokens of the prompt whose KV was found in the prefix tree."""


class LLM:
    """A model in this process, for scripts. Safe to use from several threads; close it, or use it in `with`.

    Args:
        model: directory or GGUF file; None is the model that is shipped.
        settings: further fields of `Config`.

    Raises:
        ModelError, ConfigError: as `load_engine`.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        # Steps are as large as they may be, unless asked otherwise: throughput is what counts here.
        config = Config(model=model, **{"step_aim": 0.0, **settings})
        self._start(load_engine(config, lambda stage, fraction: None))

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Of an engine that is not started yet."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        output_type: Any = None,
        choices: int = 1,
    ) -> list[Output]:
        """Complete prompts together; blocks until all are done.

        Args:
            prompts: one or several.
            params: of all prompts, or of each; 16 tokens of each if absent. Equal seeds give equal texts.
            output_type: a type that Outlines knows, `dict` for any JSON object, or a `Constraint`. What comes
                out is exactly of it, unless it is cut off.
            choices: outputs of each prompt.

        Returns:
            The outputs, the choices of the first prompt first.

        Raises:
            InvalidRequestError: a prompt is empty or does not fit.
            GrammarError: the output type cannot be enforced.
            RuntimeError: a generation failed.
        """
        given = _listed(prompts)
        each = [params or _DEFAULT] * len(given) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(given):
            raise ValueError(f"there are {len(given)} prompts and {len(each)} params")
        return self._wait(self._generate(given, each, output_type, choices))

    def embed(self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None) -> list[Float32]:
        """The model's hidden state at each prompt's last token; blocks until all are done.

        Args:
            prompts: one or several.
            dimensions: keep the first so many numbers of each; None keeps all.

        Returns:
            float32 [dimensions] of length 1, one a prompt.

        Raises:
            InvalidRequestError: a prompt is empty or does not fit.
            RuntimeError: it failed.
        """
        return self._wait(self._embed(_listed(prompts), dimensions))

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, output_type: Any = None
    ) -> AsyncIterator[Update]:
        """What a prompt's completion says, as it comes. Leaving the iteration ends the generation.

        Raises:
            As `generate`.
        """
        request = await self._elsewhere(self._submit(prompt, params or _DEFAULT, output_type, 1))
        updates = aiter(request.stream)
        try:
            while (news := await self._elsewhere(_next(updates))) is not None:
                for update in news:
                    yield _checked(update)
        finally:
            await self._elsewhere(self._abort(request))

    def close(self) -> None:
        """End what is running and give the model's memory back. Does nothing twice."""
        if self._thread.is_alive():
            self._wait(self._engine.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="radish-engine", daemon=True)
        self._thread.start()
        self._wait(engine.start())

    def _wait(self, work: Coroutine[None, None, _T]) -> _T:
        """Run `work` on the engine's loop and block until it is done."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _elsewhere(self, work: Coroutine[None, None, _T]) -> asyncio.Future[_T]:
        """Run `work` on the engine's loop, to be awaited on the caller's."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _generate(
        self, prompts: list[Prompt], params: list[SamplingParams], output_type: Any, choices: int
    ) -> list[Output]:
        async def one(wanted: tuple[Prompt, SamplingParams]) -> list[Output]:
            request = await self._submit(*wanted, output_type, choices)
            try:
                return await _collect(request)
            finally:
                self._engine.abort(request)

        wanted = zip(prompts, params, strict=True)
        return [output for outputs in await self._together(one, wanted, choices) for output in outputs]

    async def _embed(self, prompts: list[Prompt], dimensions: int | None) -> list[Float32]:
        async def one(prompt: Prompt) -> Float32:
            wanted = GenerateRequest(
                prompt=self._ids_of(prompt), params=SamplingParams(max_tokens=0), purpose="embed"
            )
            request = self._engine.submit(wanted, request_id=f"offline-{next(self._ids)}")
            try:
                await _collect(request)
            finally:
                self._engine.abort(request)
            assert request.embedding is not None
            return unit_vector(request.embedding, dimensions)

        return await self._together(one, prompts, 1)

    async def _together(
        self, work: Callable[[_W], Coroutine[None, None, _T]], items: Iterable[_W], places_each: int
    ) -> list[_T]:
        """Do `work` for every item, for as many at once as the queue has places for.

        The first that fails ends all others, and its error is raised.
        """
        places = asyncio.Semaphore(max(1, self._engine.config.max_waiting // places_each))

        async def one(item: _W) -> _T:
            async with places:
                return await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in items]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _abort(self, request: Request) -> None:
        self._engine.abort(request)

    async def _submit(
        self, prompt: Prompt, params: SamplingParams, output_type: Any, choices: int
    ) -> Request:
        engine = self._engine
        grammar = None
        if output_type is not None:
            grammar = await engine.compiler.compile(_constraint(output_type))
        wanted = GenerateRequest(prompt=self._ids_of(prompt), params=params, choices=choices, grammar=grammar)
        return engine.submit(wanted, request_id=f"offline-{next(self._ids)}")

    def _ids_of(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._engine.tokenizer.encode(prompt, add_special=True, parse_special=True)
        return prompt


_DEFAULT = SamplingParams(max_tokens=16)


def _constraint(output_type: Any) -> Constraint:
    if isinstance(output_type, Constraint):
        return output_type
    return Constraint(kind="json_object") if output_type is dict else constraint_of(output_type)


def _listed(prompts: Any) -> list[Prompt]:
    """One prompt (a text, or a list of ids) or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], int) else items


async def _next(updates: AsyncIterator[list[Update]]) -> list[Update] | None:
    with suppress(StopAsyncIteration):
        return await anext(updates)
    return None


async def _collect(request: Request) -> list[Output]:
    whole = [Update(index=index) for index in range(len(request.sequences))]
    async for updates in request.stream:
        for update in updates:
            whole[update.index].merge(_checked(update))
    return [_output(request, update) for update in whole]


def _output(request: Request, update: Update) -> Output:
    assert update.finish_reason is not None
    return Output(
        text=update.text,
        token_ids=update.token_ids,
        finish_reason=update.finish_reason,
        stop_reason=update.stop_reason,
        logprobs=update.logprobs,
        prompt_token_ids=request.prompt,
        prompt_logprobs=request.prompt_logprobs,
        cached_tokens=request.cached_tokens,
    )


def _checked(update: Update) -> Update:
    if update.finish_reason in ("error", "abort"):
        raise RuntimeError(f"the generation failed: {update.error or 'the engine was stopped'}")
    return update
