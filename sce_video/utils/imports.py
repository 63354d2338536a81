"""Importing every module of a package, so that what they register is found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_submodules(name: str, path: Iterable[str]) -> None:
    """Import all modules directly inside a package: ``import_submodules(__name__, __path__)``."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{name}.{module.name}")
