"""The user's own modules, which ``--import MODULE`` names.

They register methods, networks, datasets and other parts for configs and checkpoints. A module is
imported only if it is named on the command line, or in the environment that a command sets for its
child processes. A file never causes an import. If a checkpoint or ``run.json`` names modules, the
command shows the names, and the user decides.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sce_video.utils.errors import UserError

#: Environment variable through which a command passes its modules to its child processes
_ENVIRONMENT = "SCE_VIDEO_IMPORT"
_OPTION = "--import"
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,9}", re.ASCII)
#: Maximum number of recorded modules to list in a message, because the record may be untrusted
_MOST_NAMED = 10
#: Modules that this command names, in their order
_given: list[str] = []
#: For each module that any command of this process has named, the modules that it imported
_imported: dict[str, set[str]] = {}
#: Modules that config files, which are programs, name in ``custom_imports``
_of_configs: dict[str, None] = {}


@dataclass(frozen=True)
class OwnRecipe:
    """A user-defined recipe.

    Attributes:
        file: Config file.
        command: Command that chooses its settings, ``pretrain`` or ``finetune``.
    """

    file: Path
    command: str


#: User-defined recipes by name (:func:`sce_video.engine.recipes.register_recipe`)
own_recipes: dict[str, OwnRecipe] = {}


class OwnPartsError(UserError, ImportError):
    """Error for a module of ``--import`` that is missing, fails or registers nothing."""


@contextmanager
def own_imports(argv: Sequence[str] | None) -> Iterator[list[str]]:
    """Import the modules on a command line, and yield its other words.

    Processes that are started inside the block receive the modules through their environment.

    Args:
        argv: Words of the command line; None for ``sys.argv[1:]``.

    Raises:
        OwnPartsError: If a module cannot be imported, or registers nothing.
    """
    before = os.environ.get(_ENVIRONMENT)
    names, words = _divide(sys.argv[1:] if argv is None else argv)
    names = [*dict.fromkeys([*filter(None, (before or "").split(",")), *names])]
    for name in names:
        _import_part(name)
    if names:
        os.environ[_ENVIRONMENT] = ",".join(names)
    outer = [*_given]
    _given[:] = names
    try:
        yield words
    finally:
        _given[:] = outer
        if before is None:
            os.environ.pop(_ENVIRONMENT, None)
        else:
            os.environ[_ENVIRONMENT] = before


def _divide(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules on a command line, and its other words."""
    names, words, rest = [], [], iter(argv)
    for word in rest:
        option, equals, value = word.partition("=")
        if option != _OPTION:
            words.append(word)
        else:
            names.append(value if equals else next(rest, ""))
    return names, words


def _import_part(name: str) -> None:
    """Import a module that the user named; raises OwnPartsError."""
    if _MODULE.fullmatch(name) is None or name.endswith(".py"):
        advice = f". Write {_OPTION} {name[:-3]}" if _MODULE.fullmatch(name[:-3]) else ""
        raise OwnPartsError(f"{_OPTION} needs the name of a module, got {name!r}{advice}")
    if name in _imported:
        return
    here = os.getcwd()
    if not {"", here} & {*sys.path}:
        # Append the folder at the end, so that its files do not hide installed packages.
        sys.path.append(here)
    before, known = _registrations(), _registering()
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise OwnPartsError(f"{_OPTION} {name}: {_reason(name, error)}") from error
    if _registrations() == before and not any(_belongs(own, name) for own in known):
        raise OwnPartsError(
            f"{_OPTION} {name}: this module registers nothing. Decorate its classes with "
            "@MODELS.register_module(), or with another registry of sce_video.registry "
            "(docs/extend.md)"
        )
    _imported[name] = _registering() - known


def _reason(name: str, error: BaseException) -> str:
    """Explain in one line why a module could not be imported."""
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and _belongs(name, missing):
        return (
            f"there is no module {missing} on the Python path or in {os.getcwd()}. Change to its "
            "folder, or add the folder to PYTHONPATH"
        )
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if len(places) > 1 else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
        error = SyntaxError(error.msg)
    text = str(error).partition("\n")[0]
    return f"it raises {type(error).__name__}{': ' * bool(text)}{text}{where}"


def _belongs(name: str, package: str) -> bool:
    """Return whether a module is a package itself or a module inside it."""
    return name == package or name.startswith(f"{package}.")


def _registry() -> Any:
    """Return the module of the registries, or None. Importing it would import mmengine."""
    return sys.modules.get("sce_video.registry")


def _registrations() -> int:
    """Count the user-defined parts that are registered."""
    registry = _registry()
    return len(own_recipes) + (0 if registry is None else registry.count_own_parts())


def _registering() -> set[str]:
    """Return the modules that define registered parts and do not belong to this package."""
    registry = _registry()
    return set() if registry is None else {part.module for part in registry.own_parts()}


def imported_classes(kind: str) -> dict[str, type]:
    """Return the user-defined classes in a registry by name, without importing the registries.

    Args:
        kind: Name of the registry, for example ``dataset`` or ``metric``.
    """
    registry = _registry()
    return {} if registry is None else registry.own_classes(kind)


@dataclass(frozen=True)
class OwnModules:
    """The user's own modules, to be imported in another process.

    Attributes:
        named: Modules of ``--import``.
        others: Modules that a program imported itself, or a config file by ``custom_imports``. The
            modules of a notebook may exist only in its process.
    """

    named: tuple[str, ...]
    others: tuple[str, ...]

    def load(self) -> None:
        """Import the modules in this process.

        Raises:
            ImportError: If a module of ``--import`` is missing here.
        """
        for name in self.named:
            importlib.import_module(name)
        for name in self.others:
            with suppress(ImportError):
                importlib.import_module(name)


def own_modules() -> OwnModules:
    """Return the modules that have registered user-defined parts in this process."""
    others = named_modules({*_registering(), *_of_configs})[len(_given) :]
    return OwnModules(tuple(_given), tuple(others))


def note_custom_imports(modules: str | Iterable[str]) -> None:
    """Record modules that a config file has imported, so that other processes import them, too."""
    _of_configs.update(dict.fromkeys([modules] if isinstance(modules, str) else modules))


def named_modules(modules: Iterable[str]) -> list[str]:
    """Return the modules of ``--import``, followed by the given modules that these do not import.

    The program ``__main__`` is left out, because no other process can import it.
    """
    indirect = {"__main__"}.union(*(_imported[given] for given in _given))
    others = sorted({*modules} - indirect)
    return [*_given, *(name for name in others if not any(_belongs(name, g) for g in _given))]


def advise_imports(recorded: object, user: str = "The training") -> str:
    """Return a sentence about the ``--import`` options that a command lacks, or an empty text.

    Args:
        recorded: Modules that a file records for its training. The record may be untrusted, so
            everything except names of modules is left out.
        user: Subject of the sentence, which used the modules.
    """
    names = recorded if isinstance(recorded, list) else []
    named = [n for n in names[:_MOST_NAMED] if isinstance(n, str) and _MODULE.fullmatch(n)]
    present = named_modules({*_registering(), *_of_configs})
    lacking = [name for name in named if not any(_belongs(name, given) for given in present)]
    options = " ".join(f"{_OPTION} {name}" for name in lacking)
    if not lacking:
        return ""
    return f"{user} used {options}. If you trust this code, add the same, or import it in Python"
