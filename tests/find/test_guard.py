"""Requests that the server refuses, and the headers of those that it answers."""

import pytest
from helpers.search_page import PORT, TOKEN

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
