"""The helper itself: what it must not let pass."""

from __future__ import annotations

import pytest
from helpers.browser import browser_page


def write(path, script):
    path.write_text(f"<!doctype html><title>page</title><script>{script}</script>")
    return path.as_uri()


def test_a_quiet_page_passes(tmp_path):
    with browser_page() as page:
        page.goto(write(tmp_path / "a.html", "document.title = 'read'"))
        assert page.title() == "read"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("console.error('broken')", "console errors.*broken"),
        ("throw new Error('thrown')", "console errors.*thrown"),
        ("new Image().src = 'http://127.0.0.1:9/x.png'", "leave the page.*9/x.png"),
    ],
)
def test_errors_and_requests_fail(tmp_path, script, message):
    with pytest.raises(AssertionError, match=message), browser_page() as page:
        page.goto(write(tmp_path / "a.html", script))
        page.wait_for_timeout(200)
