"""Import of all modules in a package, or of each of its names on first use."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def import_submodules(package_name: str, path: Iterable[str]) -> None:
    """Import the modules of a package in alphabetical order, so that their classes are registered.

    The ``__init__`` of the package calls ``import_submodules(__name__, __path__)``.
    """
    for module in pkgutil.iter_modules(path, prefix=f"{package_name}."):
        importlib.import_module(module.name)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports each of its names on first use.

    With it, importing a light module of the package does not import the heavy ones.

    Args:
        package: Name of the package.
        modules: Module inside the package for each public name.
    """

    def get(name: str) -> Any:
        if name not in modules:  # submodules are found by the import system
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get
