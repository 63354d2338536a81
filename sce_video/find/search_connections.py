"""Checks and limits of connections to the search page: who may send requests, and how many.

Every user of the machine can connect to the page. The token is known only after the whole head of a
request, so the number, time and memory of connections without a token are limited.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from sce_video.find.search_api import PREFIX
from sce_video.utils.html_template import render_template

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Seconds until the head of the first request has arrived.
HEAD_SECONDS = 10.0
#: Largest number of connections from one address without a request. A browser opens some in
#: advance.
MOST_OF_AN_ADDRESS = 32
#: Largest number of connections from all addresses without a request.
MOST_WAITING = 128
#: Largest request body in bytes that is held in memory. JSON with 100,000 rows has 1 MB.
MOST_BODY = 4 * 2**20
#: Seconds that a browser has to finish reading a video when the server ends.
_CLOSE_SECONDS = 1
#: Package with the templates of the page.
TEMPLATES = "sce_video.pages"
_TOO_LONG = f"the request has more than {MOST_BODY / 2**20:.0f} MB: send fewer rows or examples"
#: Address for uploads, whose body is written to a file.
_UPLOAD = f"{PREFIX}/upload"
#: Requests with a body that do not change anything. All others except GET are only for the page.
_READING = {f"{PREFIX}/{name}" for name in ("search", "rows", "missing", "upload")}
#: Headers of every response. The page sets its own policy, which contains a nonce.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LimitedProtocol(H11Protocol):
    """A connection that is closed unless it sends a request soon.

    If there are too many connections without a request, the oldest ones are closed, so that the
    page still answers while another program opens connections. A head may have at most 64 KB.
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
        """Address of the client."""
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        self._late.cancel()
        super().connection_lost(exc)

    def end_if_waiting(self) -> None:
        """Close the connection if no complete head of a request has arrived."""
        if self.cycle is None:
            self.transport.abort()


def server_config(app: Any) -> uvicorn.Config:
    """Return the settings of a server with these limits."""
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
    """Read the body of a request, and return a function that receives it again.

    Returns None if the sender has gone, or if the body exceeds ``most`` bytes. Such a body is read
    to its end but not kept, so that its sender gets the answer.
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
    first: list[Message] = [{"type": "http.request", "body": bytes(body)}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


#: Values of ``Sec-Fetch-Site`` for a request from our own page or from the address bar.
_OWN = ("same-origin", "none")


class Guard:
    """Middleware that passes requests of the user's own browser, and refuses all others with 403.

    - ``Host`` must be this server's loopback address. Another name that resolves to it (DNS
      rebinding) would make a foreign page part of our origin.
    - The token must be in the link (``/?token=``), in the cookie that the link has set or, for a
      program, in the header ``Authorization: Bearer TOKEN``.
    - A request with the cookie must come from our page, because pages on other ports of 127.0.0.1
      send this cookie, too.
    - A program may only read, unless ``writable``.
    """

    def __init__(self, app: Any, token: str, port: int, writable: bool = False) -> None:
        self._app = app
        self._token = token
        self._writable = writable
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.cookie = f"sce_video_{port}"  # all ports of a host share their cookies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        app, reason = self._app, self._refusal(scope, headers)
        if reason:
            shown = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
            app = _refused(403, reason, shown)
        elif scope["method"] not in ("GET", "HEAD") and scope["path"] != _UPLOAD:
            body = await read_body(receive, MOST_BODY)
            receive = receive if body is None else body
            app = app if body is not None else _refused(413, _TOO_LONG)
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Message, headers: Headers) -> str:
        """Return why a request is refused; empty if it is not."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return (
                "this page is only served as http://127.0.0.1 or http://localhost with the port in "
                "the printed link (a tunnel must use the same port at both ends)"
            )
        link = scope["path"] == "/" and scope["method"] == "GET"
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            morsel = None
        page = morsel is not None and self._is_token(morsel.value)
        # A page of another origin cannot set this header, because the browser asks first and gets a
        # refusal.
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        program = kind.lower() == "bearer" and self._is_token(bearer.strip())
        if not (page or program) and not (link and self._is_token(given)):
            return (
                "this page needs the token of its link. Open the link that sce-video search "
                "--serve printed in the terminal, which changes at each start"
            )
        if link:
            return ""
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        reads = scope["method"] in ("GET", "HEAD")
        own = origin is None or origin in {f"http://{host}" for host in self._hosts}
        if site not in _OWN or not own or not (reads or origin is not None or program):
            return "this request does not come from the search page"
        if not (reads or scope["path"] in _READING or page or self._writable):
            return "programs may only read: start the page with --writable to let them write labels"
        return ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8"), self._token.encode("utf-8"))


# A connection without a token is closed, since the server has a limited number of them.
_CLOSE = {"Connection": "close"}


def _refused(status: int, reason: str, shown: bool = False) -> Response:
    """Return the response to a program, or the page that a browser shows."""
    if not shown:
        return JSONResponse({"error": reason}, status_code=status, headers=_CLOSE)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    return HTMLResponse(
        _refused_html(reason), status, {**_CLOSE, "Content-Security-Policy": policy}
    )


@cache
def _refused_html(reason: str) -> str:
    return render_template(TEMPLATES, "search_refused.html", {"reason": reason})
