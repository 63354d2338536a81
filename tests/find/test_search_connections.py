"""Access to the search page: limits of connections and bodies, and requests that are refused."""

import asyncio
import http.client
import json
import socket

import pytest
from helpers.search_page import PORT, TOKEN

from sce_video.find import search_connections
from sce_video.find.search_connections import MOST_BODY, MOST_OF_AN_ADDRESS, read_body

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


def connect(served, source="127.0.0.1"):
    host, port = served.origin.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), 60, (source, 0))
    made.sendall(b"GET / HTTP/1.1\r\nHost: ")  # half a head
    return made


def ended(connection):
    """Whether the server has ended a connection, which it does within a minute."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def ask(served, method="GET", path="/api/v1/videos", body=None, headers=HEADERS):
    connection = http.client.HTTPConnection(served.origin.removeprefix("http://"), timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.getheader("connection"), answer.read()


def test_many_connections_without_a_request_end_the_oldest(served):
    """Of one address; those of another, and requests, are served."""
    other = connect(served, "127.0.0.2")
    idle = [connect(served) for _ in range(300)]
    try:
        assert ask(served)[0] == 200
        assert all(map(ended, idle[: -MOST_OF_AN_ADDRESS - 1]))
        for connection in (other, idle[-1]):
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
    finally:
        for connection in (other, *idle):
            connection.close()


def test_a_head_that_does_not_arrive_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr(search_connections, "HEAD_SECONDS", 0.1)
    with connect(served) as late:
        assert ended(late)


def test_a_refused_request_ends_its_connection(served):
    """Otherwise anybody could keep connections by requests without a token."""
    status, connection, content = ask(served, headers={})
    assert (status, connection) == (403, "close") and "token" in json.loads(content)["error"]
    assert ask(served)[1] is None, "others are kept"


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_long_body_is_refused_and_not_kept(served, in_parts):
    """With a length in its head, and without one."""
    body = b" " * (5 * MOST_BODY)
    given = (body[i : i + 2**16] for i in range(0, len(body), 2**16)) if in_parts else body
    status, _, content = ask(served, "POST", "/api/v1/search", given)
    assert status == 413
    assert json.loads(content)["error"].startswith("the request has more than 4 MB. Send fewer")


def test_a_body_of_many_rows_is_read(client):
    rows = list(range(10**7, 10**7 + 100_000))
    answer = client.post("/api/v1/label", json={"rows": rows, "label": "x"})
    assert answer.status_code == 404 and "no row 10000000" in answer.json()["error"]


@pytest.mark.parametrize("sizes", [[0], [7], [3, 0, 4], [8], [4, 4], [4, 4, 4]])
def test_a_body_is_received_again(sizes):
    sent = [
        {"type": "http.request", "body": b"x" * size, "more_body": i < len(sizes) - 1}
        for i, size in enumerate(sizes)
    ]
    sent.append({"type": "http.disconnect"})

    async def receive():
        return sent.pop(0)

    async def read():
        again = await read_body(receive, 7)
        return None if again is None else [await again(), await again()]

    found = asyncio.run(read())
    if sum(sizes) > 7:
        assert found is None
    else:
        whole = {"type": "http.request", "body": b"x" * sum(sizes)}
        assert found == [whole, {"type": "http.disconnect"}]


def test_a_sender_that_has_gone_has_no_body():
    async def receive():
        return {"type": "http.disconnect"}

    assert asyncio.run(read_body(receive, 7)) is None


# -- refused requests, and the headers of answers ------------------------------------------

ORIGIN = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def stranger(client):
    """A client without cookie."""
    return type(client)(client.app, base_url=ORIGIN)


def test_without_a_token_nothing_is_answered(stranger):
    for path in (
        "/",
        "/api/v1/videos",
        "/api/v1/thumb/0",
        "/api/v1/video/0",
        "/static/search_page.js",
        "/nothing",
    ):
        answer = stranger.get(path)
        assert answer.status_code == 403 and "token" in answer.json()["error"]
        assert stranger.get(path, params={"token": "wrong"}).status_code == 403
    assert stranger.get("/api/v1/videos", params={"token": TOKEN}).status_code == 403, (
        "only the page"
    )
    assert stranger.post("/api/v1/undo", headers={"origin": ORIGIN}).status_code == 403
    wrong = {"cookie": f"sce_video_{PORT}=wr\xf6ng".encode()}
    assert stranger.get("/", headers=wrong).status_code == 403


def test_a_browser_without_a_token_is_shown_a_sentence(stranger):
    """Programs get JSON, also from the same address."""
    accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = stranger.get("/", headers=accept)
    assert page.status_code == 403 and page.headers["content-type"].startswith("text/html")
    assert "This page needs the token of its link. Open the link that sce-video search" in page.text
    assert "script" not in page.headers["content-security-policy"]
    for path, headers in (("/", {}), ("/api/v1/videos", {"accept": "application/json"})):
        assert "token" in stranger.get(path, headers=headers).json()["error"]


def test_the_link_sets_a_cookie_that_scripts_cannot_read(stranger):
    answer = stranger.get("/", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stranger.get("/api/v1/videos").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "", "[::1]"])
def test_another_host_name_is_refused(client, host):
    """DNS rebinding: a page of evil.example, whose name now resolves to 127.0.0.1."""
    answer = client.get("/api/v1/videos", headers={"host": host})
    assert answer.status_code == 403 and "http://127.0.0.1" in answer.json()["error"]
    assert client.get("/", params={"token": TOKEN}, headers={"host": host}).status_code == 403


def test_localhost_is_the_same_host(client):
    client.cookies.set(f"sce_video_{PORT}", TOKEN, domain="localhost.local")
    assert client.get("/api/v1/videos", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_pages_are_refused(client, headers):
    """The cookie is sent by pages of other ports of 127.0.0.1, too."""
    for answer in (
        client.post("/api/v1/label", json={"rows": [0], "label": "x"}, headers=headers),
        client.get("/api/v1/video/0", headers=headers),
    ):
        assert answer.status_code == 403 and "does not come from" in answer.json()["error"]


def test_a_post_needs_an_origin(client):
    del client.headers["origin"]
    assert client.post("/api/v1/undo").status_code == 403
    assert client.get("/api/v1/videos").status_code == 200


def test_headers_of_answers(client):
    for path in ("/", "/api/v1/videos", "/nothing", "/api/v1/thumb/99", "/static/theme.css"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in headers["content-security-policy"]
    policies = [client.get("/").headers["content-security-policy"] for _ in range(2)]
    assert policies[0] != policies[1] and "nonce-" in policies[0], "a nonce for every page"
    scripts = policies[0].split("script-src")[1].split(";")[0]
    assert "'self'" not in scripts and "unsafe-inline" not in scripts and "http" not in scripts
