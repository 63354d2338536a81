"""Plotly inside a self-contained page."""

from __future__ import annotations

import base64
import gzip
import importlib.util
from functools import cache
from pathlib import Path

from sce_video.utils.errors import MissingPackageError

_LOADER = """
window.plotlyReady = (async () => {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old for the charts: it has no DecompressionStream");
  }
  const packed = document.getElementById("plotly-gzip").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.appendChild(script);
  return window.Plotly;
})();
window.plotlyReady.catch((error) => {
  for (const place of document.querySelectorAll(".plot")) place.textContent = String(error.message);
});
"""


@cache
def plotly_script() -> str:
    """HTML that makes ``Plotly`` available without a network, about 2 MB.

    The page gets a promise ``plotlyReady`` of the library. The library is in it as gzip in base64,
    which the browser unpacks, since its text is 4.8 MB.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    packed = base64.b64encode(gzip.compress(plotly_library(), compresslevel=9, mtime=0))
    kept = f'<script id="plotly-gzip" type="text/plain">{packed.decode("ascii")}</script>'
    return f"{kept}\n<script>{_LOADER}</script>\n"


def plotly_library() -> bytes:
    """The text of plotly.js, 4.8 MB, as a server serves it.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise MissingPackageError("the charts of the page need plotly: pip install plotly")
    # Read as a file, since the import of plotly takes most of a second.
    return (Path(spec.origin).parent / "package_data/plotly.min.js").read_bytes()
