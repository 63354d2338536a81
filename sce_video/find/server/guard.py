"""Who may ask: the host, the token and the origin of every request, and the headers of answers."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Of every answer. The policy of the page itself, with its nonce, is set where it is rendered.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: What a browser says of a request that our own page makes, or that its user types.
_OWN = ("same-origin", "none")


class Guard:
    """ASGI middleware: passes requests of the user's own browser, refuses all others with 403.

    - ``Host`` must be this server's loopback address: another name that resolves to it (DNS
      rebinding) makes a page of somebody else part of our origin.
    - The token must be in the link (``/?token=``) or in the cookie that the link has set.
    - A request that changes or reads anything must come from our page: cookies of 127.0.0.1 are
      sent by pages of its other ports too.

    Args:
        app: The application.
        token: The secret in the link.
        port: On which the server listens.
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.cookie = cookie_name(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        reason = self._refusal(scope, Headers(scope=scope))
        app = self._app if not reason else JSONResponse({"error": reason}, status_code=403)
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        """Why a request is refused; empty if it is not."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return (
                "this page is only served as http://127.0.0.1 or http://localhost with the port in "
                "the printed link (a tunnel must use the same port at both ends)"
            )
        link = scope["path"] == "/" and scope["method"] == "GET"
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not (link and self._is_token(given)) and not self._is_token(self._cookie(headers)):
            return "open the link with its token, as sce-video search --serve has printed it"
        if not link:
            site = headers.get("sec-fetch-site", "none")
            origin = headers.get("origin")
            own = origin is None or origin in {f"http://{host}" for host in self._hosts}
            if site not in _OWN or not own or (scope["method"] == "POST" and origin is None):
                return "this request does not come from the search page"
        return ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8"), self._token.encode("utf-8"))

    def _cookie(self, headers: Headers) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel is not None else ""


def cookie_name(port: int) -> str:
    """Cookies are shared by all ports of a host: the name tells them apart."""
    return f"sce_video_{port}"
