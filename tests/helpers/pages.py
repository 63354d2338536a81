"""What a test needs of HTML: the images of a part in bytes, the page around parts."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sce_video.evaluation import Rows
from sce_video.pages.parts import Part


def data_uris(html: str) -> list[str]:
    """All ``data:`` URIs of a page, in order."""
    return re.findall(r"data:image/[a-z]+;base64,[A-Za-z0-9+/=]+", html)


def open_uri(uri: str) -> Image.Image:
    """The image of a ``data:`` URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def strip_frames(uri: str, count: int) -> list[np.ndarray]:
    """The frames (h, w, 3) of a strip of ``count`` frames side by side."""
    image = np.asarray(open_uri(uri).convert("RGB"))
    return np.split(image, count, axis=1)


def write_parts(path: Path, parts: Iterable[Part], script: str = "") -> str:
    """A page with parts, Plotly and all styles and scripts; returns its URI."""
    from plotly.offline import get_plotlyjs

    templates = files("sce_video.pages") / "templates"
    styles = [(templates / name).read_text() for name in ("theme.css", "parts.css")]
    scripts = [(templates / name).read_text() for name in ("feature_map.js", "parts.js")]
    body = "".join(f'<section id="{part.id}">{part.html}</section>' for part in parts)
    scripts = [get_plotlyjs(), *scripts, script]
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>parts</title>'
        f"<style>{''.join(styles)}</style><body>{body}"
        + "".join(f"<script>{one}</script>" for one in scripts)
    )
    return path.as_uri()


def make_rows(paths: list[str], labels: list[int] | None = None, seed: int = 0) -> Rows:
    """Random features (N, 8) of files."""
    features = np.random.default_rng(seed).normal(size=(len(paths), 8))
    labels = labels or [-1] * len(paths)
    numbers = torch.arange(len(paths))
    return Rows(torch.tensor(features).float(), torch.tensor(labels), numbers, paths)
