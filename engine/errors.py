"""Errors the engine raises to whoever submits a request."""

from __future__ import annotations


class InvalidRequestError(ValueError):
    """The request can never be served as it is; `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class QueueFullError(RuntimeError):
    """The waiting queue is at its bound; `retry_after_s` is when a place should be free (seconds)."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineStoppedError(RuntimeError):
    """The engine is shutting down and takes no new request."""


class ConfigError(ValueError):
    """The configuration asks for something that cannot be had; the message names the field."""
