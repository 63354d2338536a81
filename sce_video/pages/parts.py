"""Parts of a page: pieces of HTML with a title, rendered from templates.

From ``templates/``, a page includes ``part.html`` per part, ``parts.css`` in its head, and
``feature_map.js`` and ``parts.js`` at its end. Parts load nothing and need no server.
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
    """A piece of a page."""

    id: str  # unique on its page: letters and hyphens
    title: str  # heading
    # Without the heading. What it shows of others (file names, class names) is escaped, so a
    # template inserts it with ``|safe``.
    html: str
    first: bool = False  # whether it precedes a run's curves, because it is the run's purpose


def render_part(
    id: str, title: str, template: str, values: dict[str, Any], first: bool = False
) -> Part:
    """Return the part that a template in ``pages/templates`` renders; values are escaped."""
    return Part(id, title, render_template(_PACKAGE, template, values), first)


def random_weights_part(row: Mapping[str, Any]) -> Part:
    """Compare the trained network with random weights, from a log row of kind ``random``."""
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
        "measure": MEASURES.get(measure or "", ""),
        "lines": lines,
    }
    return render_part("random-weights", "Does it help?", "part_random_weights.html", values)


def sentence_part(id: str, title: str, sentence: str, first: bool = False) -> Part:
    """Return a part with only a sentence, which explains why there is nothing to show."""
    return render_part(id, title, "part_sentence.html", {"sentence": sentence}, first)


def label_name(label: int, class_names: Sequence[str]) -> str | None:
    """Return the name of a class, its number if it has none; None for no label."""
    if label < 0:
        return None
    return class_names[label] if label < len(class_names) else f"class {label}"


@cache
def plotly_script() -> str:
    """Return HTML with the library for ``charts.js``, which unpacks it; the page loads nothing.

    It is gzip in base64, about 2 MB, because its text has 4.8 MB.
    """
    packed = base64.b64encode(gzip.compress(plotly_library(), compresslevel=9, mtime=0))
    return f'<script id="plotly-gzip" type="text/plain">{packed.decode("ascii")}</script>\n'


def plotly_library() -> bytes:
    """Return the text of plotly.js, 4.8 MB, for a server.

    Raises:
        MissingPackageError: If plotly is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MissingPackageError("the charts of the page need plotly: pip install plotly")
    # Read as a file, since the import of plotly takes most of a second.
    return (Path(spec.origin).parent / "package_data/plotly.min.js").read_bytes()
