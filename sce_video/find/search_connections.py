"""Access control of the search page: who may send requests, and how many connections may wait.

Every user of the machine can connect to the server. A client proves that it has the token only at
the end of a request's head, so number, time and memory of connections before that are limited.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any

import uvicorn
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from sce_video.find.search_api import PREFIX
from sce_video.utils.html_template import render_template

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Seconds within which the head of the first request must arrive.
HEAD_SECONDS = 10.0
#: Largest number of waiting connections from one address. A browser opens some in advance.
MOST_OF_AN_ADDRESS = 32
#: Largest number of waiting connections from all addresses.
MOST_WAITING = 128
#: Largest request body in bytes that is held in memory. JSON with 100,000 rows takes 1 MB.
MOST_BODY = 4 * 2**20
#: Seconds for which a stopping server waits for browsers that are still reading a video.
_CLOSE_SECONDS = 1
#: Package that contains the templates of the page.
TEMPLATES = "sce_video.pages"
_TOO_LONG = f"the request has more than {MOST_BODY / 2**20:.0f} MB. Send fewer rows or examples"
#: Address for uploads, which are written to a file instead of being held in memory.
_UPLOAD = f"{PREFIX}/upload"
#: POST requests that change nothing. Programs may send any others only with ``--writable``.
_READING = {f"{PREFIX}/{name}" for name in ("search", "rows", "missing", "upload")}
#: Headers of every response. The page replaces the policy with one that contains a nonce.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LimitedProtocol(H11Protocol):
    """Connection that is closed unless it sends a request soon.

    If too many connections wait without a request, the oldest ones are closed, so the page still
    responds while another program opens connections. A head may have at most 64 KB.
    """

    _numbers = itertools.count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit, and close the oldest waiting connections if there are too many."""
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
        """Address of the client."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._late.cancel()
        super().connection_lost(exc)

    def end_if_waiting(self) -> None:
        """Close the connection if no complete request head has arrived."""
        if self.cycle is None:
            self.transport.abort()


def server_config(app: Any) -> uvicorn.Config:
    """Return the settings of a server that applies these limits."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        backlog=MOST_OF_AN_ADDRESS,  # the loop accepts this many before it can close any
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )


async def read_body(receive: Receive, most: int) -> Receive | None:
    """Read the body of a request, and return a function that receives the body again.

    Return None if the client has disconnected, or if the body has more than ``most`` bytes. A long
    body is read to its end without keeping it, because only then does the client read a response.
    """
    body, size = bytearray(), 0
    try:
        async for part in Request({"type": "http"}, receive).stream():
            size += len(part)
            body += part if size <= most else b""
    except ClientDisconnect:
        return None
    if size > most:
        return None
    first: list[Message] = [{"type": "http.request", "body": bytes(body)}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


#: Values of ``Sec-Fetch-Site`` for requests from our own page or from the address bar.
_OWN = ("same-origin", "none")


class Guard:
    """Middleware that refuses requests with status 403 unless they are the user's own.

    - ``Host`` must be the loopback address of this server. If other names were accepted, a foreign
      page whose name resolves to this address (DNS rebinding) would belong to our origin.
    - The token must be in the link (``/?token=``), in the cookie that the link has set or, for a
      program, in the header ``Authorization: Bearer TOKEN``.
    - A request with the cookie must come from our page, because a browser also sends the cookie for
      pages on other ports of 127.0.0.1.
    - A program may only read, unless ``writable`` is set.
    """

    def __init__(self, app: Any, token: str, port: int, writable: bool = False) -> None:
        self._app = app
        self._token = token
        self._writable = writable
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.cookie = f"sce_video_{port}"  # contains the port, as all ports share cookies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not served
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        app, reason = self._app, self._refusal(request)
        if reason:
            shown = request.method == "GET" and "text/html" in request.headers.get("accept", "")
            app = _refused(403, reason, shown)
        elif request.method not in ("GET", "HEAD") and scope["path"] != _UPLOAD:
            body = await read_body(receive, MOST_BODY)
            receive = receive if body is None else body
            app = app if body is not None else _refused(413, _TOO_LONG)
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> str:
        """Return the reason for refusing a request; empty to let it pass."""
        headers, path = request.headers, request.scope["path"]
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return (
                "this page is only served at http://127.0.0.1 or http://localhost with the port of "
                "the printed link. A tunnel must use the same port at both ends"
            )
        link = path == "/" and request.method == "GET"
        page = self._is_token(request.cookies.get(self.cookie, ""))
        # A page from another origin cannot send this header, because its browser would first ask
        # this server for permission, which is refused.
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        program = kind.lower() == "bearer" and self._is_token(bearer.strip())
        if not (
            page or program or (link and self._is_token(request.query_params.get("token", "")))
        ):
            return (
                "this page needs the token of its link. Open the link that sce-video search "
                "--serve has printed in the terminal. It changes with every start"
            )
        if link:
            return ""
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        reads = request.method in ("GET", "HEAD")
        own = origin is None or origin in {f"http://{host}" for host in self._hosts}
        if site not in _OWN or not own or not (reads or origin is not None or program):
            return "this request does not come from the search page"
        if not (reads or path in _READING or page or self._writable):
            return (
                "programs may only read. To let them write labels, serve the page with --writable"
            )
        return ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8"), self._token.encode("utf-8"))


# Close refused connections, because the number of connections is limited.
_CLOSE = {"Connection": "close"}


def _refused(status: int, reason: str, shown: bool = False) -> Response:
    """Return an error as JSON for a program, or as a page that a browser shows."""
    if not shown:
        return JSONResponse({"error": reason}, status_code=status, headers=_CLOSE)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    return HTMLResponse(
        _refused_html(reason), status, {**_CLOSE, "Content-Security-Policy": policy}
    )


@cache
def _refused_html(reason: str) -> str:
    return render_template(TEMPLATES, "search_refused.html", {"reason": reason})
