"""Who sent the HTTP request that the running task belongs to, and what follows from it for the engine.

It is a context variable, set once in front of all routes and read where all of them submit, so that no
endpoint can forget it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from engine.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class Caller:
    """One key's holder, or anyone where no key is needed."""

    namespace: str = ""
    """Of cached prefixes; "" is shared by all."""

    def own(self, request: GenerateRequest) -> GenerateRequest:
        """The request as this caller's."""
        if not self.namespace:
            return request
        # A key's id holds no slash, so no salt reaches another key's prefixes.
        return replace(request, namespace=f"{self.namespace}/{request.namespace}")


current_caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039  # it is frozen
