"""Parts of a user's own in tests: the files of the documentation, and registries as before."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.page_commands import blocks

from sce_video import registry
from sce_video.utils import own_parts

REPO = Path(__file__).resolve().parents[2]


def page_files(*pages: Path) -> dict[str, str]:
    """Return the Python blocks of pages that begin with their file name, by name."""
    files: dict[str, str] = {}
    for page in pages:
        for block in blocks(page, "python"):
            name = re.match(r"# (my_\w+\.py)\n", block)
            if name:
                assert name[1] not in files, f"two blocks are called {name[1]}"
                files[name[1]] = block
    return files


@contextmanager
def registries_restored(folder: Path) -> Iterator[None]:
    """Forget afterwards what the block registers, and the modules of a folder."""
    registries = [v for v in vars(registry).values() if isinstance(v, registry.ChildRegistry)]
    for one in registries:
        one.import_from_location()  # a class of the package is registered once per process
    tables = [vars(one)[name] for one in registries for name in ("_module_dict", "_forced")]
    tables += [own_parts.own_recipes, own_parts._imported]
    before, modules, path = [dict(table) for table in tables], set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)
        for name in set(sys.modules) - modules:
            if folder in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
                del sys.modules[name]
        sys.path[:] = path
