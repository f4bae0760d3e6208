"""The engine requests behind one HTTP request, seen as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from app.caller import current_caller
from app.errors import cancelled, from_engine, server_error, timed_out, unavailable
from app.request_report import RequestReport, report_of
from app.slices import in_slices
from engine.engine import Engine
from engine.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from engine.request import GenerateRequest, Request
from engine.stream import Update


def check_room(engine: Engine, *, choices: int = 1, priority: int = 0) -> None:
    """Refuse what the queue has no room for before any work is spent on its prompt.

    Raises:
        ApiError: 429.
    """
    try:
        engine.check_room(current_caller.get().claim(choices=choices, priority=priority))
    except QueueFullError as error:
        raise from_engine(error) from None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of all prompts and all choices; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Generation:
    """One or more submitted prompts. Leaving it as a context manager aborts what is unfinished.

    Choice c of prompt p has the index `p * choices + c` in all updates, as in OpenAI's completions.
    """

    def __init__(self, engine: Engine, *, request_id: str) -> None:
        self.request_id = request_id
        self._engine = engine
        self._choices = 1
        self._requests: list[Request] = []
        self._is_cancelled = False

    @classmethod
    async def submitted(
        cls, engine: Engine, prompts: Iterable[GenerateRequest], *, request_id: str, prompt_field: str
    ) -> Self:
        """Submit prompts, in slices: a thousand of them take tens of milliseconds.

        Args:
            prompt_field: what the request calls its prompt, to name it in errors.

        Raises:
            ApiError: the engine refuses one of the prompts; none of them is left in it.
        """
        generation = cls(engine, request_id=request_id)
        try:
            async for prompt in in_slices(prompts):
                generation._submit(prompt)
        except (InvalidRequestError, QueueFullError, EngineStoppedError) as error:
            generation.abort()
            if isinstance(error, InvalidRequestError) and error.param == "prompt":
                error.param = prompt_field
            raise from_engine(error) from None
        except BaseException:
            generation.abort()
            raise
        return generation

    def _submit(self, prompt: GenerateRequest) -> None:
        own = current_caller.get().own(prompt)
        self._choices = own.choices
        self._requests.append(self._engine.submit(own, request_id=f"{self.request_id}-{len(self._requests)}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @property
    def num_choices(self) -> int:
        return self._choices * len(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        """One for each prompt."""
        return self._requests

    @property
    def unread(self) -> int:
        """Bytes of output that nobody has taken yet, estimated."""
        return sum(request.stream.nbytes for request in self._requests)

    def abort(self) -> None:
        for request in self._requests:
            self._engine.abort(request)

    def cancel(self) -> None:
        """Abort it at its client's wish; who still reads is told so."""
        self._is_cancelled = True
        self.abort()

    def usage(self) -> Usage:
        """What was used so far."""
        prompt = sum(request.prompt_tokens for request in self._requests)
        completion = sum(request.completion_tokens for request in self._requests)
        cached = sum(request.cached_tokens for request in self._requests)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached),
        )

    def report(self) -> RequestReport:
        """What has happened so far."""
        return report_of(self.request_id, self._requests)

    async def updates(self) -> AsyncGenerator[list[Update], None]:
        """Updates as they come, until every choice has finished.

        Raises:
            ApiError: a choice failed, or the client or the server ended it.
        """
        stream = self._requests[0].stream if len(self._requests) == 1 else self._merged()
        async for updates in stream:
            self._check(updates)
            yield updates

    async def pass_on(self, tell: Callable[[list[Update]], bool]) -> None:
        """Have updates told as they come, without a switch to this task for each, until `tell` gives False or
        every choice has finished. Not for several prompts: nothing is told of them this way.

        Raises:
            ApiError: as for `updates`.
        """
        if len(self._requests) > 1:
            return
        stream = self._requests[0].stream
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure: Exception | None = None

        def take() -> None:
            nonlocal failure
            if over.done():
                return
            try:
                updates = stream.take()
                self._check(updates)
                goes_on = tell(updates)
            except Exception as error:  # noqa: BLE001  whatever it is, it is the task's
                failure, goes_on = error, False
            if stream.is_over or not goes_on:
                over.set_result(None)

        take()
        with stream.listening(take):
            await over
        if failure is not None:
            raise failure

    def _check(self, updates: list[Update]) -> None:
        """Raise what says that a choice ended before its time, if one did."""
        for update in updates:
            if update.finish_reason is not None:
                self._check_end(update)

    def _check_end(self, ended: Update) -> None:
        if ended.finish_reason == "error":
            raise server_error(f"The generation failed: {ended.error}.")
        if ended.finish_reason == "timeout":
            raise timed_out(f"The request was ended: {ended.error}.")
        if ended.finish_reason == "abort" and self._is_cancelled:
            raise cancelled()
        if ended.finish_reason == "abort":
            raise unavailable("The server ended the request to shut down.", retry_after_s=1)

    async def _merged(self) -> AsyncGenerator[list[Update], None]:
        # One place in the queue: what is not taken yet waits, merged, in each request's own stream.
        queue: asyncio.Queue[list[Update] | None] = asyncio.Queue(1)

        async def pump(request: Request, offset: int) -> None:
            async for updates in request.stream:
                for update in updates:
                    update.index += offset
                await queue.put(updates)
            await queue.put(None)

        pumps = [
            asyncio.create_task(pump(request, index * self._choices))
            for index, request in enumerate(self._requests)
        ]
        try:
            ended = 0
            while ended < len(pumps):
                updates = await queue.get()
                if updates is None:
                    ended += 1
                else:
                    yield updates
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
