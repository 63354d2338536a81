"""Import all modules of a package, or each name of it when it is asked for."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def import_submodules(package_name: str, path: Iterable[str]) -> None:
    """Import the modules of a package in alphabetical order, so that their classes are registered.

    Called by the package's own ``__init__``: ``import_submodules(__name__, __path__)``.
    """
    for module in pkgutil.iter_modules(path, prefix=f"{package_name}."):
        importlib.import_module(module.name)


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that imports each name when it is asked for.

    So a light module of a package (options, paths) needs none of the heavy ones that the package
    lists. What its ``__init__`` (``file``) imports under ``if TYPE_CHECKING:`` says where each name
    is, for type checkers and for this function.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    module_of = {alias.name: node.module for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if module_of.get(name) in (None, package):  # a sub-module is found by the import system
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(str(module_of[name])), name)

    return get
