"""From an HTTP request's bytes to a checked value: size, media type, structure, types, in this order."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from app.errors import ApiError, bad_request, queue_full
from app.json_text import check_structure, error_path
from engine.stats import Stats

T = TypeVar("T", bound=msgspec.Struct)

_DISCARD_FACTOR = 4
"""A body up to this many times the limit is read to its end before it is refused: closing a connection
with unread data resets it, and the client would see that instead of the answer."""
_FREE = 1 << 16
"""So many bytes of a body need no room: a connection holds as much of one that is not read yet, and who fills
the room with large ones shuts out no ordinary request."""


class BodyRoom:
    """Memory for bodies that are being received, of all connections together: many may send slowly.

    Args:
        most: bytes.
        stats: counts what there was no room for.
    """

    def __init__(self, most: int, stats: Stats) -> None:
        self._left = most
        self._stats = stats

    def take(self, size: int) -> bool:
        """Whether there is room for `size` more bytes, the caller's until it gives them back."""
        if size > self._left:
            self._stats.rejected["bodies_full"] += 1
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


async def read_body(request: Request, limit: int, room: BodyRoom) -> bytes:
    """The request's body of at most `limit` bytes.

    Raises:
        ApiError: the body is too large (413), not JSON or compressed by its headers (415, 501), or there is
            no room for it (429).
        ClientDisconnect: the client left before it was complete.
    """
    _check_headers(request)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit * _DISCARD_FACTOR:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = taken = 0
    has_room = True
    try:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            more = max(0, size - _FREE) - taken
            has_room = has_room and (size > limit or room.take(more))
            if size > limit or not has_room:
                chunks.clear()
            else:
                taken += more
                chunks.append(chunk)
            if size > limit * _DISCARD_FACTOR or not message.get("more_body", False):
                break
    finally:
        room.give_back(taken)
    if size > limit:
        raise _too_large(limit)
    if not has_room:
        raise queue_full("too many request bodies are being received already", retry_after_s=1)
    return b"".join(chunks)


def _check_headers(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"The content type must be application/json, not {media_type!r}.",
            code="unsupported_media_type",
        )
    for encoding in _listed(request, "content-encoding"):
        if encoding != "identity":
            raise ApiError(
                415,
                f"The content encoding {encoding!r} is not supported.",
                code="unsupported_content_encoding",
            )
    for coding in _listed(request, "transfer-encoding"):
        if coding not in ("identity", "chunked"):
            raise ApiError(
                501,
                f"The transfer coding {coding!r} is not supported.",
                code="unsupported_transfer_coding",
                headers={"Connection": "close"},
            )


def _listed(request: Request, header: str) -> list[str]:
    """What a header lists, however many times it is sent."""
    items = ",".join(request.headers.getlist(header)).lower().split(",")
    return [item.strip() for item in items if item.strip()]


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than {limit} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def decode(body: bytes, type: type[T]) -> T:  # noqa: A002  # as msgspec names it
    """`body` as a `type`.

    Raises:
        ApiError: 400, naming the field where there is one.
    """
    if not body:
        raise bad_request("The request body is empty; a JSON object is needed.")
    fault = check_structure(body)
    if fault is not None:
        raise bad_request(fault)
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.ValidationError as error:
        param = error_path(body, error)
        message = str(error).partition(" - at `")[0]
        raise bad_request(f"{param}: {message}" if param else message, param) from None
    except msgspec.DecodeError as error:
        param = error_path(body, error)
        where = f" (in {param})" if param else ""
        raise bad_request(f"The body is not valid JSON: {error}{where}", param, "invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deep.") from None
