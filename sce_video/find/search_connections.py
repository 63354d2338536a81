"""Limits of what connections to the search page may take: their number, time, and memory.

Every user of the machine can connect to the page. The token is seen only after a whole head of a
request, so that connections without one are limited here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

#: Seconds until the head of the first request has arrived.
HEAD_SECONDS = 10.0
#: Connections of one address without a request at most. A browser opens some in advance.
MOST_OF_AN_ADDRESS = 32
#: Connections of all addresses without a request at most.
MOST_WAITING = 128
#: Bytes of a request's body that is held in memory: JSON with 100,000 rows has 1 MB.
MOST_BODY = 4 * 2**20
_CLOSE_SECONDS = 1  # for a browser that is still reading a video


class LimitedProtocol(H11Protocol):
    """A connection that is ended unless it sends a request soon.

    The oldest ones without a request are also ended when there are too many, so that the page
    answers while another program opens connections. The head has 64 KB at most.
    """

    _numbers = itertools.count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit, and end older connections that wait."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.number = next(self._numbers)
        self._late = self.loop.call_later(HEAD_SECONDS, self.end_if_waiting)
        found = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.cycle is None]
        waiting = sorted(found, key=lambda connection: connection.number)
        own = [connection for connection in waiting if connection.host == self.host]
        for old in {*own[:-MOST_OF_AN_ADDRESS], *waiting[:-MOST_WAITING]}:
            old.transport.abort()

    @property
    def host(self) -> str:
        """Address of the other side."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit."""
        self._late.cancel()
        super().connection_lost(exc)

    def end_if_waiting(self) -> None:
        """End the connection if no head of a request has been complete."""
        if self.cycle is None:
            self.transport.abort()


def server_config(app: Any) -> uvicorn.Config:
    """The settings of a server with these limits."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        backlog=MOST_OF_AN_ADDRESS,  # these are accepted before any of them can be ended
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )


async def read_body(receive: Receive, most: int) -> Receive | None:
    """Read the body of a request, and return what receives it again.

    Returns None for a longer body, which is read to its end without being kept, so that its sender
    gets the answer; and if the sender has gone.
    """
    body, size, more = bytearray(), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        size += len(message.get("body", b""))
        body += message.get("body", b"") if size <= most else b""
        more = message.get("more_body", False)
    if size > most:
        return None
    first: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": bytes(body)}]

    async def again() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return again
