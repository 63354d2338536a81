"""The package timm, imported with or without torchvision.

timm 1.0.31 always imports torchvision. ``timm.layers`` uses its class ``FrozenBatchNorm2d``, and
``timm.models`` uses constants from ``timm.data``, which also contains transforms and datasets. No
timm network needs any of this. A CPU build of torch is often installed without torchvision, and
PyPI's torchvision, which is built for CUDA, cannot be imported next to it. If torchvision cannot be
imported, stand-ins replace these modules while timm is imported, and are removed afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sce_video.utils.errors import MissingPackageError

#: Part of timm that needs torchvision, and its file of constants, which does not
_DATA = "timm.data"
_CONSTANTS = "constants.py"


class FrozenBatchNorm2d(nn.Module):
    """Stand-in for torchvision's class, which timm uses only on explicit request."""

    def __init__(self, *sizes: Any) -> None:
        raise NotImplementedError("FrozenBatchNorm2d belongs to torchvision. Install torchvision")


@lru_cache
def timm() -> Any:
    """Import the package timm.

    Raises:
        MissingPackageError: If timm is not installed or cannot be imported.
    """
    spec = find_spec("timm")
    folders = () if spec is None else spec.submodule_search_locations or ()
    if not folders:
        raise MissingPackageError(
            "networks of timm need the package timm. Run pip install 'sce-video[timm]', or next to "
            "a CPU build of torch pip install --no-deps timm"
        )
    try:
        if _imports_torchvision():
            return importlib.import_module("timm")
        with _stand_ins(Path(*folders, "data", _CONSTANTS)):
            return importlib.import_module("timm")
    except (AttributeError, ImportError, OSError) as error:
        raise MissingPackageError(f"the package timm cannot be imported: {error}") from error


def without_state(kind: type, needs_timm: bool = True) -> Any:
    """Make an empty object of a class whose state may contain timm layers.

    ``pickle`` calls this function before it restores the state, for which it imports the classes of
    the layers. In a worker process, timm is therefore imported like in any other process.

    Args:
        kind: The class.
        needs_timm: Whether the state of this object contains timm layers.

    Raises:
        MissingPackageError: If timm is not installed.
    """
    if needs_timm:
        timm()
    return object.__new__(kind)


def _imports_torchvision() -> bool:
    """Return whether torchvision can be imported next to this build of torch."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, OSError, RuntimeError):
        return False
    return True


@contextmanager
def _stand_ins(constants: Path) -> Iterator[None]:
    """Add stand-ins to ``sys.modules`` for the modules that timm imports but does not need."""
    ops = _module("torchvision.ops.misc")
    ops.FrozenBatchNorm2d = FrozenBatchNorm2d  # type: ignore[attr-defined]
    data = _module(_DATA)
    data.__dict__.update(_constants(constants))
    stand_ins = {
        "torchvision": _module("torchvision"),
        "torchvision.ops": _module("torchvision.ops"),
        "torchvision.ops.misc": ops,
        _DATA: data,
    }
    _remove("torchvision", _DATA)  # may be left from a failed import
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        _remove("torchvision", _DATA)


def _module(name: str) -> ModuleType:
    """Make an empty module that may contain submodules."""
    return module_from_spec(ModuleSpec(name, None, is_package=True))


def _constants(file: Path) -> dict[str, object]:
    """Return the constants of a timm module without importing its package."""
    spec = spec_from_file_location("timm_constants", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a module")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if name.isupper()}


def _remove(*packages: str) -> None:
    """Remove packages and their submodules from ``sys.modules``."""
    for name in list(sys.modules):
        if any(f"{name}.".startswith(f"{package}.") for package in packages):
            del sys.modules[name]
