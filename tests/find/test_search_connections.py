"""Limits of connections and bodies: idle and half requests, long JSON, refused requests."""

import asyncio
import http.client
import json
import socket

import pytest
from helpers.search_page import TOKEN

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
