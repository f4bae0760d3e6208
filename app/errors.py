"""The one shape of every error a client sees, and which status stands for which failure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from app.templates import TemplateArgumentError, TemplateError
from engine.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from grammars.base import GrammarError

MAX_RETRY_AFTER_S = 120
"""OpenAI's clients do not wait longer than this: a larger value would mean no retry at all."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class ApiError(Exception):
    """A failure to be told to the client: an HTTP status before the response starts, an event after."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002  # the wire's name
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        # A message may quote input that came around the JSON decoder (a path, a header).
        message = message.encode("utf-8", "replace").decode()
        self.detail = ErrorDetail(message=message, type=type, param=param, code=code)
        self.headers = dict(headers or {})

    def encode(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.detail))

    def response(self) -> Response:
        return Response(self.encode(), self.status, self.headers, media_type="application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request can never succeed as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, retry_after_s: float) -> ApiError:
    """503: this server takes no new request."""
    return ApiError(
        503, message, type="server_error", code="service_unavailable", headers=retry_after(retry_after_s)
    )


def shutting_down() -> ApiError:
    """503: the server was told to stop before the request got anywhere."""
    return unavailable("The server is shutting down.", retry_after_s=1)


def queue_full(message: str, *, retry_after_s: float) -> ApiError:
    """429: too much waits already."""
    return ApiError(
        429, message, type="rate_limit_error", code="queue_full", headers=retry_after(retry_after_s)
    )


def cancelled() -> ApiError:
    """409: who began it has ended it meanwhile."""
    return ApiError(409, "The request was cancelled.", code="cancelled")


def timed_out(message: str) -> ApiError:
    """504: a deadline of the request passed."""
    return ApiError(504, message, type="server_error", code="deadline_exceeded", headers=retry_after(1))


def server_error(message: str) -> ApiError:
    """500: the request was right and this server failed it."""
    return ApiError(500, message, type="server_error", code="internal_error")


def from_engine(error: InvalidRequestError | QueueFullError | EngineStoppedError) -> ApiError:
    """What an error of `Engine.submit` means to a client."""
    match error:
        case InvalidRequestError():
            return bad_request(error.message, error.param, error.code)
        case QueueFullError():
            return queue_full(str(error), retry_after_s=error.retry_after_s)
        case EngineStoppedError():
            return shutting_down()


def from_grammar(error: GrammarError, param: str) -> ApiError:
    """A constraint that cannot be enforced: `param` is the field it came in."""
    return bad_request(str(error), param, "unsupported_constraint")


def from_template(error: TemplateError) -> ApiError:
    """Messages the model's chat template refuses, or a variable that it cannot be given."""
    if isinstance(error, TemplateArgumentError):
        return bad_request(f"{error}.", f"chat_template_kwargs.{error.name}")
    return bad_request(f"The chat template refused the messages: {error}", "messages")


def retry_after(seconds: float) -> dict[str, str]:
    """The header that says when to come again."""
    seconds = min(max(seconds, 0.001), MAX_RETRY_AFTER_S)
    return {"Retry-After": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
