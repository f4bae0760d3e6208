"""Noticing that the client hung up, whatever the server is doing for it at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from starlette.types import Receive


async def run_while_connected(work: Coroutine[None, None, None], receive: Receive) -> None:
    """Run `work`; cancel it when the client hangs up. The request's body must have been read.

    ASGI tells of a disconnect by a message, so somebody has to wait for it: the server neither cancels
    the application nor fails its sends.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.wait((task, watcher))
    if not task.cancelled():
        task.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
