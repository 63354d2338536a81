"""The site of the docs: builds strictly, has all of the interface, loads nothing from elsewhere."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.browser import browser_page
from helpers.run_tool import load

import sce_video
from sce_video import registry
from sce_video.commands.main import COMMANDS
from sce_video.models import losses

REPO = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; a warning of mkdocs (dead link, page outside the navigation) is an error."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=REPO, capture_output=True, text=True, timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def inventory(site: Path) -> set[str]:
    """Dotted names of all entries, from the Sphinx inventory (a zlib stream after four lines)."""
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(content).decode().splitlines()}


def named(name: str) -> object:
    """The object of a dotted name; None if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found
    return None


def registered() -> dict[str, object]:
    """All classes of this package that a config can name, by registry and name."""
    found = {}
    for kind in (x for x in vars(registry).values() if isinstance(x, registry.Registry)):
        kind.import_from_location()
        for name, part in kind.module_dict.items():
            if part.__module__.startswith("sce_video."):
                found[f"{kind.name} {name}"] = part
    return found


def test_the_interface_is_complete(site):
    shown = {id(named(name)) for name in inventory(site)}
    parts = registered()
    assert len(parts) > 60
    missing = [name for name, part in parts.items() if id(part) not in shown]
    # A function that is a command takes the fields of its options: both have an entry.
    for name in (name for pair in sce_video._COMMANDS.values() for name in pair):
        assert f"sce_video.{name}" in inventory(site), f"add sce_video.{name} to docs/api"
    public = {name for name in sce_video.__all__ if not name.startswith("_")} - {
        *sce_video._COMMANDS
    }
    missing += [name for name in public if id(getattr(sce_video, name)) not in shown]
    missing += [name for name in losses.__all__ if id(getattr(losses, name)) not in shown]
    assert not missing, f"add these to docs/api: {missing}"
    assert "sce_video.runs.pretrain.pretrain" in inventory(site)


def test_roles_of_docstrings_are_links_or_code(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    assert ":func:" not in text and ":class:" not in text and ":meth:" not in text
    assert "sce_video.datasets.transforms.PackVideo" in text


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    """Address of the site on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


PAGES = ("index", "start", "glossary", "how_it_works", "troubleshooting", "results", "api/methods")


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_load_nothing_from_elsewhere(served, width):
    """Nor do they log an error, or need to be scrolled sideways."""
    with browser_page(served, width=width, dark=width == 390) as page:
        for name in PAGES:
            page.goto(f"{served}/{name}.html", wait_until="load")
            broken = page.evaluate(
                "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
            )
            assert not broken
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_the_search_finds_a_message(served):
    with browser_page(served) as page:
        page.goto(f"{served}/index.html", wait_until="load")
        page.fill("input.md-search__input", "shared memory docker")
        # Again and again: on a busy machine the page may not listen yet when they are filled in.
        typed = 'document.querySelector("input.md-search__input").dispatchEvent(new Event("keyup"))'
        found = 'document.querySelector("a.md-search-result__link") !== null'
        page.wait_for_function(f"{typed} && {found}", polling=500)
        links = page.eval_on_selector_all("a.md-search-result__link", "x => x.map(a => a.href)")
        assert any("troubleshooting" in link for link in links)


def test_the_picture_of_the_step_is_that_of_its_script():
    script = load("../docs/scripts/step_figure")
    assert (REPO / "docs/images/step.svg").read_text() == script.drawing()


def test_the_reference_has_every_command_and_component(site):
    shown = (site / "api/commands.html").read_text()
    assert all(f'<h3 id="sce-video-{name}">' in shown for name in COMMANDS)
    for option in ("--method", "--min-length", "--group-pattern", "--short-side"):
        assert f"<code>{option}" in shown
    shown = (site / "api/components.html").read_text()
    names = [name.rpartition(" ")[2] for name in registered()]
    assert len(names) > 60 and [name for name in names if f"<code>{name}</code>" not in shown] == []
