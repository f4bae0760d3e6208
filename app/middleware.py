"""Around every request: its id, and the error nobody foresaw."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from contextvars import copy_context
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import server_error
from app.logs import current_request_id, log_request
from app.request_info import RequestInfo
from engine.tokenizer import Tokenizer

_log = logging.getLogger("radish.app")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestContext:
    """Gives every response an `x-request-id`, the client's own if it sent a reasonable one, and the
    milliseconds that passed until its headers were sent. Turns an unexpected exception into a logged 500
    in the API's error shape. Logs every API request when it is over.

    Args:
        tokenizer: given if the prompts are to be logged.
    """

    def __init__(self, app: ASGIApp, tokenizer: Tokenizer | None = None) -> None:
        self._app = app
        self._tokenizer = tokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        info = RequestInfo(request_id, scope["method"], scope["path"])
        scope["radish"] = info
        current_request_id.set(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-processing-ms"] = str(round((time.monotonic() - info.started) * 1000))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            if info.status is not None:
                raise
            _log.exception("request %s failed", request_id)
            await server_error("Internal error.").response()(scope, receive, send_with_id)
        finally:
            self._log(info)

    def _log(self, info: RequestInfo) -> None:
        if self._tokenizer is None:
            log_request(info)
        else:
            log = partial(copy_context().run, log_request, info, self._tokenizer)
            asyncio.get_running_loop().run_in_executor(None, log)
