"""Recipes by name, from the configs of a checkout or an installed package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sce_video.utils.own_parts import OwnRecipe, own_recipes

_PACKAGE = Path(__file__).resolve().parents[1]
#: OpenMMLab's folder for the configs and tools in a wheel. setup.py copies ours there.
_IN_WHEEL = ".mim"
#: Suffix of the recipes that ``sce-video pretrain`` completes.
_FOLDER_RECIPE = "_r3d18_folder_small"
#: Recipe of SCE with the paper's views, for clips of the paper's size.
LARGE_RECIPE = "sce_r3d18_folder"
#: Recipe that distils an image network into a video network.
STUDENT_RECIPE = "distill_efficientnet_lite0_folder"
#: Recipe that ``sce-video finetune`` completes.
FINETUNING = "r3d18_folder"
#: Recipe that ``sce-video finetune`` completes for a linear classifier on frozen features.
FROZEN_FEATURES = "frozen_folder"
#: Commands that complete recipes.
_COMMANDS = ("pretrain", "finetune")


def shipped_folder() -> Path:
    """Return the folder with ``configs`` and ``tools``, in the checkout or the installed package.

    Raises:
        FileNotFoundError: If neither folder exists.
    """
    for folder in (_PACKAGE.parent, _PACKAGE / _IN_WHEEL):
        if (folder / "configs/_base_").is_dir():
            return folder
    raise FileNotFoundError(f"the package in {_PACKAGE} contains no recipes. Install it again")


def recipes_folder() -> Path:
    """Return ``configs`` in :func:`shipped_folder`."""
    return shipped_folder() / "configs"


def recipe_names() -> dict[str, Path]:
    """Return the files of all recipes by name, including those of :func:`register_recipe`."""
    return {**_shipped_recipes(), **{name: own.file for name, own in own_recipes.items()}}


@cache
def _shipped_recipes() -> dict[str, Path]:
    """Return the files of the shipped recipes by name, which is the file name without ``.py``."""
    folder = recipes_folder()
    parts = {path: set(path.relative_to(folder).parts) for path in sorted(folder.rglob("*.py"))}
    # The files in these two folders are sweeps and parts of recipes.
    return {path.stem: path for path, of in parts.items() if not of & {"_base_", "sweeps"}}


def methods() -> dict[str, str]:
    """Return the name of each method's recipe for a folder of videos, by the method's name.

    The name of a recipe from :func:`register_recipe` is also the name of its method.
    """
    names = [name for name in sorted(_shipped_recipes()) if name.endswith(_FOLDER_RECIPE)]
    shipped = {name.removesuffix(_FOLDER_RECIPE): name for name in names}
    return shipped | {name: name for name in _own_names("pretrain")}


def finetunings() -> list[str]:
    """Return the names of the recipes that ``finetune`` accepts, the shipped one first."""
    return [FINETUNING, *_own_names("finetune")]


def _own_names(command: str) -> list[str]:
    """Return the names of the user's own recipes that a command accepts."""
    return [name for name, own in own_recipes.items() if own.command == command]


def register_recipe(name: str, file: str | Path, command: str = "pretrain") -> None:
    """Add a recipe of your own, for ``sce-video pretrain --method NAME``.

    Commands find it if they import the module that calls this function (``--import MODULE``).

    Args:
        name: Name of the recipe: lower-case letters, digits and ``_``.
        file: Its config file, which may inherit a shipped recipe:
            ``_base_ = "sce_video::simclr/simclr_r3d18_folder_small.py"``.
        command: Command that uses the recipe: ``pretrain``, or ``finetune`` for ``sce-video
            finetune --recipe NAME``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the name contains other characters or is taken, or the command is unknown.
    """
    if command not in _COMMANDS:
        raise ValueError(
            f"the recipe {name!r} is for {command!r}, but recipes work only with "
            f"{' and '.join(_COMMANDS)}. Give one of these commands"
        )
    path = Path(file).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"the file {path} of the recipe {name!r} does not exist")
    if re.fullmatch(r"[a-z][a-z0-9_]*", name, re.ASCII) is None:
        raise ValueError(
            "the name of a recipe may contain only lower-case letters, digits and '_', got "
            f"{name!r}"
        )
    own = OwnRecipe(path, command)
    if own_recipes.get(name) == own:  # the same module is imported again
        return
    if name in methods() or name in recipe_names():
        raise ValueError(f"there is already a recipe {name!r}. Choose another name for {path}")
    own_recipes[name] = own


def find_recipe(config: str | Path) -> Path:
    """Find the file of a config by a path, a path below ``configs``, or the name of a recipe.

    ``my.py``, ``configs/sce/sce_r3d18_folder.py`` and ``sce_r3d18_folder`` are found, the second
    also with an installed package, where this folder does not exist. An existing file takes
    precedence.

    Raises:
        FileNotFoundError: If there is no such config. The message lists similar names.
    """
    path = Path(config)
    if path.is_file():
        return path
    if path.parts[:1] == ("configs",):
        shipped = recipes_folder().joinpath(*path.parts[1:])
        if shipped.is_file():
            return shipped
    named = recipe_names()
    if len(path.parts) == 1 and path.name.removesuffix(".py") in named:
        return named[path.name.removesuffix(".py")]
    raise FileNotFoundError(
        f"there is neither a config file {config} nor a recipe of this "
        f"name{_similar(path.stem, named)}"
    )


def find_sweep(sweep: str | Path) -> Path:
    """Find the file of a sweep by a path, or by its name in ``configs/sweeps``.

    Raises:
        FileNotFoundError: If there is no such sweep. The message lists similar names.
    """
    path = Path(sweep)
    known = {other.stem: other for other in (recipes_folder() / "sweeps").glob("*.py")}
    if path.is_file():
        return path
    if path.parts[:-1] in ((), ("configs", "sweeps")) and path.stem in known:
        return known[path.stem]
    raise FileNotFoundError(f"there is no sweep {sweep}{_similar(path.stem, known)}")


def _similar(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 3)
    return f"; similar names: {', '.join(near)}" if near else ""
