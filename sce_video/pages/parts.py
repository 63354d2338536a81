"""Parts of a page: sections of HTML with a title, rendered from templates.

A page with parts includes ``parts.css`` in its head, and ``feature_map.js`` and ``parts.js`` at its
end. Parts load nothing and need no server.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sce_video.evaluation.random_weights import MEASURES, OTHERS, measure_of, sentences
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.html_template import render_template

_PACKAGE = "sce_video.pages"


@dataclass(frozen=True)
class Part:
    """Section of a page."""

    id: str  # only letters and hyphens, unique on its page
    title: str  # heading
    # HTML of the content without the heading. It is already escaped, so templates use ``|safe``.
    html: str
    first: bool = False  # whether it comes before a run's curves, because it matters most


def render_part(
    id: str, title: str, template: str, values: Mapping[str, object], first: bool = False
) -> Part:
    """Render a part from a template in ``pages/templates``, which escapes the values."""
    return Part(id, title, render_template(_PACKAGE, template, dict(values)), first)


def random_weights_part(row: Mapping[str, Any]) -> Part:
    """Return the part that compares a network with random weights, from a log row."""
    measure = measure_of(row)
    names = {"": "this network", **{f"_{name}": words for name, words in OTHERS.items()}}
    lines = [
        (
            words,
            "" if measure is None else f"{100 * row[measure + suffix]:.1f} %",
            f"{row['rank' + suffix]:.1f}",
        )
        for suffix, words in names.items()
        if f"rank{suffix}" in row
    ]
    values = {
        "sentences": [text[:1].upper() + text[1:] + "." for text in sentences(row)],
        "measure": "" if measure is None else MEASURES[measure],
        "lines": lines,
    }
    return render_part("random-weights", "Does it help?", "part_random_weights.html", values)


def sentence_part(id: str, title: str, sentence: str, first: bool = False) -> Part:
    """Return a part with a sentence that explains why there is nothing to show."""
    return render_part(id, title, "part_sentence.html", {"sentence": sentence}, first)


def label_name(label: int, class_names: Sequence[str]) -> str | None:
    """Return the name of a class, or its number if it has no name; None without a label."""
    if label < 0:
        return None
    return class_names[label] if label < len(class_names) else f"class {label}"


@cache
def plotly_script() -> str:
    """Return HTML that contains plotly.js for ``charts.js``.

    It is compressed from 4.8 MB to about 2 MB, as gzip in base64, and ``charts.js`` unpacks it.
    """
    packed = base64.b64encode(gzip.compress(plotly_library(), compresslevel=9, mtime=0))
    return f'<script id="plotly-gzip" type="text/plain">{packed.decode("ascii")}</script>\n'


def plotly_library() -> bytes:
    """Return the text of plotly.js (4.8 MB).

    Raises:
        MissingPackageError: If plotly is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MissingPackageError("the charts of the page need plotly: pip install plotly")
    # Read the file directly, because importing plotly takes almost a second.
    return (Path(spec.origin).parent / "package_data/plotly.min.js").read_bytes()
