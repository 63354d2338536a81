"""mkdocs hook that hides the side bar of a page that is alone in its tab."""

from __future__ import annotations

from typing import Any


def on_page_context(context: dict[str, Any], page: Any, config: Any, nav: Any) -> dict[str, Any]:
    """Hide the side bar of pages without a section."""
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])
    return context
