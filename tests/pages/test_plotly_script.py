"""Plotly inside a page: the library as installed, in 2 MB."""

from __future__ import annotations

import base64
import gzip
import re

import pytest

from sce_video.pages import parts as module
from sce_video.utils.errors import MissingPackageError


def test_the_script_holds_the_library_unchanged():
    plotly = pytest.importorskip("plotly.offline")
    script = module.plotly_script()
    (packed,) = re.findall(r'<script id="plotly-gzip" type="text/plain">([^<]+)<', script)
    assert gzip.decompress(base64.b64decode(packed)).decode() == plotly.get_plotlyjs()
    assert len(script) < 2_500_000 and "http" not in script.replace(packed, "")


def test_without_plotly_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install plotly"):
        module.plotly_script.__wrapped__()
