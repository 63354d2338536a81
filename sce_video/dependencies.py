"""Check that the required packages are installed, in versions that work together.

Only metadata is read. Nothing is imported, so a broken package cannot prevent the message.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from packaging.version import Version

_INSTALL = "pip install -c requirements/constraints.txt"
#: Maintained fork of mmengine, which has the same module name.
_FORK = "onedl-mmengine"


def installed_version(*names: str) -> Version | None:
    """Return the version of the first installed distribution among these names, or None."""
    for name in names:
        try:
            return Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def dependency_problems(
    version_of: Callable[..., Version | None] = installed_version,
    has_module: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return a sentence with advice for each package that is missing or known to be broken.

    Args:
        version_of: Function that does the same as :func:`installed_version`, for tests.
        has_module: Function that returns whether the file of a dotted module name exists; None
            searches the installed packages.
    """
    has_module = has_module or _module_exists
    problems = []
    required = {
        "torch": ("torch==2.13.0", ("torch",)),
        "mmengine": ("mmengine==0.10.7", ("mmengine", "mmengine-lite", _FORK)),
        "PyAV": ("av==18.1.0", ("av",)),
        "OpenCV": ("opencv-python", ("opencv-python", "opencv-python-headless")),
    }
    versions = {name: version_of(*aliases) for name, (_, aliases) in required.items()}
    for name, (pin, _) in required.items():
        if versions[name] is None:
            problems.append(f"{name} is not installed. Run {_INSTALL} '{pin}'")

    torch, mmaction = versions["torch"], version_of("mmaction2")
    if torch is not None and torch < Version("2.6"):
        problems.append(f"torch {torch} is older than 2.6. Run {_INSTALL} 'torch==2.13.0'")
    if mmaction is not None:
        if mmaction < Version("1.1"):
            problems.append(
                f"mmaction2 {mmaction} is older than 1.1. Run {_INSTALL} mmaction2==1.1.0"
            )
        elif mmaction >= Version("1.2") and not has_module("mmaction.models.localizers.drn"):
            problems.append(
                f"the wheel of mmaction2 {mmaction} lacks mmaction/models/localizers/drn and "
                f"cannot be imported. Run {_INSTALL} mmaction2==1.1.0, or install it from source"
            )
        mmcv = version_of("mmcv", "mmcv-lite")
        highest = Version("2.2.0") if mmaction >= Version("1.2") else Version("2.1.0")
        if mmcv is None or not Version("2.0.0rc4") <= mmcv < highest:
            problems.append(
                f"mmaction2 {mmaction} needs mmcv from 2.0.0rc4 to below {highest}, but "
                f"{mmcv or 'none'} is installed. Run {_INSTALL} mmcv-lite==2.0.1"
            )
    return problems


@lru_cache
def mmaction_installed() -> bool:
    """Return whether mmaction2 is installed. Only configs that name its components need it."""
    return _module_exists("mmaction")


def check_dependencies() -> None:
    """Check the installed packages, and warn about slow combinations.

    Raises:
        ImportError: If a package is missing or broken. The message lists all problems with advice.
    """
    problems = dependency_problems()
    if problems:
        raise ImportError("sce_video cannot run here:\n" + "\n".join(f"- {p}" for p in problems))
    torch = installed_version("torch")
    if torch is not None and (torch.major, torch.minor) == (2, 9):
        warnings.warn(
            "torch 2.9 with cuDNN below 9.15 computes 3D convolutions in bf16 wrongly, or several "
            "times slower. Use torch 2.10 or later",
            stacklevel=3,
        )


def _module_exists(name: str) -> bool:
    top, *rest = name.split(".")
    loaded = top in sys.modules
    spec = getattr(sys.modules[top], "__spec__", None) if loaded else importlib.util.find_spec(top)
    if spec is None:
        return False
    if not rest:
        return True
    folders = [Path(location, *rest) for location in spec.submodule_search_locations or []]
    return any(f.is_dir() or f.with_suffix(".py").is_file() for f in folders)
