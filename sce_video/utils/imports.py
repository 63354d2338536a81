"""Import all modules of a package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_submodules(package_name: str, path: Iterable[str]) -> None:
    """Import the modules of a package in alphabetical order, so that their classes are registered.

    Called by the package's own ``__init__``: ``import_submodules(__name__, __path__)``.

    Args:
        package_name: Full name of the package.
        path: Its ``__path__``.
    """
    for module in pkgutil.iter_modules(path, prefix=f"{package_name}."):
        importlib.import_module(module.name)
