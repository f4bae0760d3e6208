"""A server that refuses every request at once, for next to nothing: `python -m ops.refusing_server`.

Who measures a server on the machine that its clients run on measures them too. Clients that are sent here
instead cost what they cost there, and the server under test nothing.
"""

from __future__ import annotations

import asyncio

import httptools

_BODY = b'{"error": {"message": "refused"}}'
_HEAD = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n" % len(_BODY)


class _Refusing(asyncio.Protocol):
    """One connection. The method named on_... is called by `httptools`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(_HEAD + _BODY)


async def main() -> None:
    """Serve until the process is ended; says where on stdout."""
    server = await asyncio.get_running_loop().create_server(_Refusing, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
