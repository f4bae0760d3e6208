"""Who sent the HTTP request that the running task belongs to, and what follows from it for the engine.

It is a context variable, set once in front of all routes and read where all of them submit, so that no
endpoint can forget it.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass, replace

from starlette.datastructures import Headers

from app.errors import bad_request
from engine.config import Config
from engine.queue_limits import Claim
from engine.request import GenerateRequest

QUEUE_TIMEOUT = "x-queue-timeout"
REQUEST_TIMEOUT = "x-request-timeout"


@dataclass(frozen=True, slots=True)
class Caller:
    """One key's holder, or anyone where no key is needed."""

    namespace: str = ""
    """Of cached prefixes; "" is shared by all."""
    tenant: str = ""
    most_urgent: int | None = None
    """The lowest priority it can have."""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None

    def own(self, request: GenerateRequest) -> GenerateRequest:
        """The request as this caller's."""
        return replace(
            request,
            # A key's id holds no slash, so no salt reaches another key's prefixes.
            namespace=f"{self.namespace}/{request.namespace}" if self.namespace else request.namespace,
            tenant=self.tenant,
            priority=self._urgency(request.priority),
            queue_timeout_s=self.queue_timeout_s,
            timeout_s=self.timeout_s,
        )

    def claim(self, *, choices: int, priority: int) -> Claim:
        """What a request of this caller's wants of the queue, before its prompt is known."""
        return Claim(
            tenant=self.tenant,
            choices=choices,
            priority=self._urgency(priority),
            queue_timeout_s=self.queue_timeout_s,
        )

    def _urgency(self, priority: int) -> int:
        return priority if self.most_urgent is None else max(priority, self.most_urgent)


current_caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  # it is frozen


def read_deadlines(headers: Headers, config: Config) -> None:
    """Give the current caller the deadlines its headers ask for (seconds), or the server's shorter ones.

    Raises:
        ApiError: 400; a header is not a positive number.
    """
    current_caller.set(
        replace(
            current_caller.get(),
            queue_timeout_s=_shorter(headers, QUEUE_TIMEOUT, config.queue_timeout),
            timeout_s=_shorter(headers, REQUEST_TIMEOUT, config.request_timeout),
        )
    )


def _shorter(headers: Headers, name: str, limit_s: float) -> float | None:
    text = headers.get(name)
    if text is None:
        return limit_s or None
    try:
        wanted_s = float(text) if "_" not in text else 0.0
    except ValueError:
        wanted_s = 0.0
    if not 0 < wanted_s < math.inf:
        raise bad_request(f"The header {name} must be a positive number of seconds, not {text!r}.", name)
    return min(wanted_s, limit_s) if limit_s else wanted_s
