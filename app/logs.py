"""What is logged, and how: lines for people, or a JSON object a line. Prompts on request, answers never."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from app.request_info import RequestInfo

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

_log = logging.getLogger("radish.request")

current_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the HTTP request that the running task belongs to."""


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    """How log records are written."""
    if form == "json":
        return JsonFormatter()
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, request_id, then the record's
    own fields (`extra={"fields": {...}}`) and the traceback, where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request_id.get()
        if request_id is not None:
            line["request_id"] = request_id
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_request(info: RequestInfo, tokenizer: Tokenizer | None = None) -> None:
    """Tell of an API request that is over.

    Args:
        tokenizer: given if its prompts are to be told as well, without their special tokens. Decoding long
            ones takes milliseconds.
    """
    if not info.path.startswith("/v1/") or not _log.isEnabledFor(logging.INFO):
        return
    seconds = time.monotonic() - info.started
    fields: dict[str, Any] = {
        "method": info.method,
        "path": info.path,
        "status": info.status,
        "seconds": round(seconds, 6),
    }
    told = ""
    if info.trace_id is not None:
        fields["trace_id"] = info.trace_id
    if info.generation is not None:
        usage = info.generation.usage()
        reasons = [
            sequence.finish_reason for request in info.generation.requests for sequence in request.sequences
        ]
        fields |= {
            "response_id": info.generation.request_id,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish_reasons": reasons,
        }
        if tokenizer is not None:
            fields["prompts"] = [tokenizer.decode(request.prompt) for request in info.generation.requests]
        ends = (
            f"{count} x {reason}" if count > 1 else f"{reason}" for reason, count in Counter(reasons).items()
        )
        told = f", {usage.prompt_tokens} + {usage.completion_tokens} tokens, {', '.join(ends)}"
        told += "".join(f" {prompt!r}" for prompt in fields.get("prompts", ()))
    status = "gone" if info.status is None else info.status
    # A path may hold any character, and is no way to write lines into the log.
    path = "".join(char if char.isprintable() else repr(char)[1:-1] for char in info.path)
    _log.info("%s %s %s %.3f s%s", info.method, path, status, seconds, told, extra={"fields": fields})
