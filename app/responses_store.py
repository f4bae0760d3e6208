"""The responses that are kept: a bounded number of them, and of whoever has most the least recently used
go first."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from app.caller import current_caller
from app.errors import ApiError
from app.generation import Generation
from app.messages import Message
from app.responses_wire import Response


@dataclass(slots=True)
class StoredResponse:
    """A response, and the conversation up to and with it."""

    response: Response
    messages: list[Message]
    nbytes: int
    """Of all requests and answers that led to it, as they came and went."""
    generation: Generation | None = None
    """While it is being made in the background."""
    tenant: str = field(default_factory=lambda: current_caller.get().tenant)
    """Whose it is: for others it does not exist."""


class ResponseStore:
    """Of one server; lost when it ends.

    Args:
        capacity: most responses that are kept.
        max_messages: most messages over all of them.
        max_bytes: most bytes over all of them.
    """

    def __init__(self, *, capacity: int, max_messages: int, max_bytes: int) -> None:
        self._capacity = capacity
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._num_messages = 0
        self._nbytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, in place of an earlier state of it."""
        self._drop(stored.response.id)
        self._stored[stored.response.id] = stored
        self._num_messages += len(stored.messages)
        self._nbytes += stored.nbytes
        while (weight := self._excess()) is not None:
            self._make_room(weight)

    def finish(self, response: Response, messages: list[Message], nbytes: int) -> Response:
        """Keep how a response in the background ended, and give it.

        One that was cancelled stays so, and one that is no longer kept is not kept again.
        """
        stored = self._stored.get(response.id)
        if stored is None:
            return response
        if stored.response.status == "in_progress":
            self.put(StoredResponse(response, messages, nbytes, tenant=stored.tenant))
            return response
        return stored.response

    def get(self, id_: str, param: str) -> StoredResponse:
        """Raises ApiError 404 where it is not, or no longer, kept."""
        stored = self._stored.get(id_)
        if stored is None or stored.tenant != current_caller.get().tenant:
            raise ApiError(404, f"There is no response {id_!r}.", param=param, code="response_not_found")
        self._stored.move_to_end(id_)
        return stored

    def delete(self, id_: str) -> None:
        """Forget a response; one that is being made ends."""
        stored = self.get(id_, "response_id")
        if stored.generation is not None:
            stored.generation.cancel()
        self._drop(id_)

    def run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run what makes a response in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _excess(self) -> Callable[[StoredResponse], int] | None:
        """What there is too much of, as the part that one response has in it; None if nothing is."""
        if len(self._stored) > self._capacity:
            return lambda stored: 1
        if self._num_messages > self._max_messages:
            return lambda stored: len(stored.messages)
        if self._nbytes > self._max_bytes:
            return lambda stored: stored.nbytes
        return None

    def _make_room(self, weight: Callable[[StoredResponse], int]) -> None:
        """Forget the response that was used longest ago, of whoever has the most."""
        used: Counter[str] = Counter()
        for stored in self._stored.values():
            used[stored.tenant] += weight(stored)
        ((greediest, _),) = used.most_common(1)
        self._drop(next(id_ for id_, stored in self._stored.items() if stored.tenant == greediest))

    def _drop(self, id_: str) -> None:
        stored = self._stored.pop(id_, None)
        if stored is not None:
            self._num_messages -= len(stored.messages)
            self._nbytes -= stored.nbytes
