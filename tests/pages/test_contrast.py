"""The contrast of every text colour on every surface of the pages, by WCAG 2.2 (AA: 4.5)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

LEAST = 4.5
SURFACES = ("--paper", "--card", "--band")
CSS = {
    file.name: re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
    for package in ("pages", "reporting")
    for file in (files("sce_video") / package / "templates").iterdir()
    if file.name.endswith(".css")
}


def rgb(text: str) -> list[float]:
    """#rgb, #rgba or #rrggbb as 0 to 1; a transparent colour lies on white."""
    text = text.removeprefix("#")
    text = "".join(2 * c for c in text) if len(text) < 6 else text
    *colour, alpha = (int((text + "ff")[i : i + 2], 16) / 255 for i in (0, 2, 4, 6))
    return [alpha * c + 1 - alpha for c in colour]


def contrast(first: str, second: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05) of the relative luminances."""
    linear = [
        [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
        for colour in (first, second)
    ]
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
    return (light + 0.05) / (dark + 0.05)


def themes(name: str) -> dict[str, dict[str, str]]:
    """The variables of a file, or of the theme that it is used with, by day and by night."""
    text = CSS[name] if ":root" in CSS[name].partition("@media print")[0] else CSS["theme.css"]
    light, dark, *_ = (
        dict(re.findall(r"(--[\w-]+):\s*(#\w+)", root))
        for root in re.findall(r":root\s*\{([^}]*)\}", text)
    )
    return {"light": light, "dark": {**light, **dark}}


def drawn(text: str, theme: dict[str, str]) -> list[str]:
    """The colours that a declaration stands for; ``--colour`` is one of the palette."""
    name = re.fullmatch(r"var\((--[\w-]+)\)", text)
    if name is None:
        return [text] if text.startswith("#") else []
    colour = r"--c\d" if name[1] == "--colour" else re.escape(name[1])
    return [theme[v] for v in theme if re.fullmatch(colour, v)]


@pytest.mark.parametrize("name", sorted(CSS))
@pytest.mark.parametrize("light", ["light", "dark"])
def test_all_text_can_be_read(name, light):
    theme = themes(name)[light]
    surfaces = [theme[surface] for surface in SURFACES if surface in theme]
    low = []
    for selector, body in re.findall(r"([^{}]*)\{([^{}]*)\}", CSS[name]):
        rule = dict(re.findall(r"(?:^|[;\s])(color|background):\s*([^;]+?)\s*(?=;|$)", body))
        behind = drawn(rule.get("background", ""), theme) or surfaces
        for text in drawn(rule.get("color", ""), theme):
            low += [(selector, text, b) for b in behind if contrast(text, b) < LEAST]
    palette = [value for name, value in theme.items() if re.fullmatch(r"--c\d", name)]
    low += [("palette", c, b) for c in palette for b in surfaces if contrast(c, b) < LEAST]
    assert not low


def test_no_text_is_faded():
    """Opacity lowers contrast too: only shapes and buttons that do nothing have it."""
    pattern = r"([^{}]*)\{[^{}]*opacity:\s*0?\.\d[^{}]*\}"
    faded = [rule.strip() for css in CSS.values() for rule in re.findall(pattern, css)]
    shapes = re.compile(r"\bi(:not\(.player\))?$|\.span$|:disabled$")
    assert [rule for rule in faded if not shapes.search(rule)] == []
