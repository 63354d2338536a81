"""A page in headless Chromium that fails a test on console errors and on requests to elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_LOCAL = ("file:", "data:", "blob:", "about:")


def browser_executable() -> str:
    """Chromium of this machine; skips the test if there is none, or no playwright."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("SCE_VIDEO_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), 0)
    if not found:
        pytest.skip("no Chromium: install it (Debian: apt-get install chromium)")
    return str(found)


@contextmanager
def browser_page(
    origin: str | None = None,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    touch: bool = False,
    refused: int | None = None,
) -> Iterator[Any]:
    """A playwright page; at its end no console error and no request elsewhere has happened.

    Args:
        origin: Of a local server whose requests are allowed, such as ``http://127.0.0.1:8000``.
        width: Of the window, pixels (a phone: 390).
        height: Likewise.
        dark: Whether the user prefers dark colours.
        touch: Whether the device has a touch screen.
        refused: Status of answers that the test provokes, which the console calls errors.
    """
    executable = browser_executable()
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    left: list[str] = []

    def note_request(request: Any) -> None:
        allowed = (*_LOCAL, origin + "/") if origin else _LOCAL
        if not request.url.startswith(allowed):
            left.append(request.url)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                has_touch=touch,
            )
            page.set_default_timeout(90_000)  # several browsers may share two cores
            page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", note_request)
            yield page
        finally:
            browser.close()
    assert not left, f"requests that leave the page: {left}"
    errors = [text for text in errors if refused is None or f"status of {refused}" not in text]
    assert not errors, f"console errors: {errors}"


def low_contrast(page: Any, least: float = 4.5) -> list[str]:
    """All visible text of a page that has less contrast than WCAG 2.2 asks for (AA)."""
    script = Path(__file__).with_name("low_contrast.js").read_text(encoding="utf-8")
    return page.evaluate(script, least)
