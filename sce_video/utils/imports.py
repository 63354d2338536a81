"""Import all modules of a package, so that their classes register themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_submodules(name: str, path: Iterable[str]) -> None:
    """Import every module directly inside a package; call it with ``__name__`` and ``__path__``."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{name}.{module.name}")
