"""Reading of config files with inheritance, in which a child config may change single list steps.

mmengine merges dicts over dicts only. A pipeline, however, is a list, and repeating it to change a
single number would hide the change. Here, a child config may therefore contain a dict where its
base contains a list of typed dicts. While files are read, the source of each value can be recorded.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mmengine
from mmengine.config import Config, ConfigDict
from mmengine.config.utils import RemoveAssignFromAST
from mmengine.utils import check_file_exist, import_modules_from_strings

from sce_video.engine.config.changes import child, numbered_path, step_index, type_name
from sce_video.engine.recipes import recipes_folder
from sce_video.utils.files import read_text
from sce_video.utils.own_parts import note_custom_imports
from sce_video.utils.records import at


class StepError(ValueError):
    """Error for a wrong step in a child config. The message begins with the file's name."""


# -- sources of values ---------------------------------------------------------------------------


#: The file or option that sets each config value, by the value's path. A source applies to
#: everything below its path, unless a longer path has its own source.
Sources = dict[tuple[str, ...], str]


def set_source(sources: Sources, path: tuple[str, ...], source: str) -> None:
    """Record the source of a value, and discard the sources of the values that it replaces."""
    for other in [other for other in sources if other[: len(path)] == path]:
        del sources[other]
    sources[path] = source


def source_of(sources: Sources, path: tuple[str, ...]) -> str | None:
    """Return the source of the value at a path; None if it is not known."""
    lengths = range(len(path), 0, -1)
    return next((sources[path[:n]] for n in lengths if path[:n] in sources), None)


# -- reading a file and its bases ----------------------------------------------------------------


def read_config(path: str | Path, sources: Sources | None = None) -> Config:
    """Read a config file like ``Config.fromfile``, and change steps of inherited lists by name.

    A child config may contain a dict where a base contains a list of typed dicts. The keys of the
    dict are names or numbers of steps, and its values are merged into these steps. This works at
    any level of ``_base_``. ``_delete_=True`` in a step replaces it at its position. To add or
    remove steps, the child config must contain the whole list.

    Args:
        path: The config file.
        sources: Dict to be filled with the file that sets each value. It stays empty if the config
            imports its bases (``with read_base()``) instead of naming them.

    Raises:
        StepError: If a step's name is unknown or ambiguous, or its value is not a dict. The message
            names the file.
    """
    path = str(path)
    if Config._is_lazy_import(path):  # inherits with Python imports, without merging dicts
        try:
            return Config.fromfile(path)
        except ModuleNotFoundError as error:
            if error.name != "pkg_resources":
                raise
            raise ImportError(
                f"{path} inherits from another package with read_base(), for which mmengine needs "
                "pkg_resources. Run pip install 'setuptools<81'"
            ) from error
    content = _read_with_bases(path, sources)
    if imports := at(content.values, "custom_imports"):
        try:
            import_modules_from_strings(**imports)
        except ImportError as error:
            hint = "Add the folder of the module to PYTHONPATH, or name the module with --import"
            raise ImportError(f"custom_imports={imports}: {error}. {hint}") from error
        note_custom_imports(imports["imports"])
    return Config(content.values, content.text, path, content.variables)


@dataclass
class _Content:
    """Values of a config file and its bases, the text of all files, and the variables they use."""

    values: dict[str, object]
    text: str
    variables: dict[str, str]


def _read_with_bases(path: str, sources: Sources | None = None) -> _Content:
    """Read the bases of a config file, then the file itself, and merge its values into the bases.

    mmengine 0.10 does the same, but it refuses a dict over a list ("cannot inherit from base"), and
    its functions that read files do not let a caller change how they merge.
    """
    if Config._is_lazy_import(path):
        raise ValueError(
            f"_base_ names {path}, which contains imports. Inherit from it with read_base() instead"
        )
    path = os.path.abspath(os.path.expanduser(path))
    check_file_exist(path)
    if not path.endswith((".py", ".json", ".yaml", ".yml")):
        raise OSError(f"only .py, .json, .yaml and .yml files can be read as a config, got {path}")
    inherited, texts = ConfigDict(), []
    # In a copy of the file, fill in {{fileDirname}} and {{$VARIABLE:default}}, and use placeholders
    # for {{_base_.name}}, whose values are known only after the bases are read.
    with tempfile.TemporaryDirectory() as folder:
        filled = str(Path(folder, f"config{Path(path).suffix}"))
        Config._substitute_predefined_vars(path, filled)
        variables = Config._substitute_env_variables(filled, filled)
        placeholders = Config._pre_substitute_base_vars(filled, filled)
        for name in Config._get_base_files(filled):
            base_path, scope = _base_file(name, path)
            base = _read_with_bases(base_path, sources)
            if twice := inherited.keys() & base.values.keys():
                raise KeyError(f"Duplicate key is not allowed among bases. Duplicate keys: {twice}")
            inherited.update(Config._dict_to_config_dict(base.values, scope))
            texts.append(base.text)
            variables.update(base.variables)
        values = _own_values(path, filled, inherited)
    if notice := values.pop("_deprecation_", None):
        warnings.warn(f"The config file {path} is deprecated: {notice}", DeprecationWarning, 2)
    values = Config._substitute_base_vars(values, placeholders, inherited)
    values.pop("_base_", None)
    if sources is not None:
        _note_file(sources, path, values, inherited)
    try:
        values = Config._merge_a_into_b(_resolve_steps(values, inherited, ()), inherited)
    except StepError as error:
        raise StepError(f"{path}: {error}") from None
    values = {key: value for key, value in values.items() if not key.startswith("__")}
    texts.append(f"{path}\n{read_text(path)}")
    return _Content(values, "\n".join(texts), variables)


def _base_file(name: str, path: str) -> tuple[str, str | None]:
    """Return the path of a config's base and, if it is given as ``package::config``, the package.

    mmengine's own function needs ``pkg_resources``, which setuptools 81 removed. It also fails for
    the configs of mmaction2 1.1, because it cannot read their list of models.
    """
    package, external, config = name.partition("::")
    if not external:
        return os.path.join(os.path.dirname(path), name), None
    if package == "sce_video":  # our recipes may be in a checkout, and they need no scope
        return str(recipes_folder() / config), None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{path} inherits from {package}, which is not installed")
    return os.path.join(os.path.dirname(spec.origin), ".mim", "configs", config), package


def _own_values(path: str, filled: str, inherited: ConfigDict) -> dict[str, object]:
    """Return the values that a config file itself sets, without the values of its bases.

    Args:
        path: The file.
        filled: Copy of the file, with values in place of its variables.
        inherited: Values of the bases, which the file may use as ``_base_``.
    """
    if not path.endswith(".py"):
        return mmengine.load(filled)
    tree = ast.parse(read_text(filled))
    names: dict[str, object] = {"_base_": inherited}
    exec(compile(RemoveAssignFromAST("_base_").visit(tree), path, "exec"), names)
    return {
        name: value
        for name, value in names.items()
        if name != "_base_"
        and not name.startswith("__")
        and not isinstance(value, FunctionType | ModuleType)
    }


def config_files(path: str | Path) -> list[str]:
    """Return a config file and all files that it is based on, without duplicates."""
    files = [str(path)]
    for base in Config._get_base_files(str(path)):
        base_path, _ = _base_file(base, str(path))
        files += [file for file in config_files(base_path) if file not in files]
    return files


# -- changes of single steps ---------------------------------------------------------------------


def _resolve_steps(changes: dict, base: dict, path: tuple[str, ...]) -> dict:
    """Complete a child config's changes: a dict over a list of steps becomes the whole new list."""
    resolved = dict(changes)
    for key, value in changes.items():
        below, here = child(base, key), (*path, str(key))
        if not isinstance(value, dict) or _replaces(value):
            continue
        if isinstance(below, dict):
            resolved[key] = _resolve_steps(value, below, here)
        elif isinstance(below, list | tuple) and any(map(type_name, below)):
            merged = list(below)
            for step, change in value.items():
                _merge_into_step(merged, str(step), change, here)
            resolved[key] = type(below)(merged)
    return resolved


def _replaces(change: Any) -> bool:
    """Return whether a dict replaces its base instead of being merged into it."""
    return bool(child(change, "_delete_"))


def _merge_into_step(steps: list, step: str, change: Any, path: tuple[str, ...]) -> None:
    """Apply a child config's changes to the step with this name or number."""
    where = ".".join(path)
    try:
        index = step_index(steps, step, where)
    except ValueError as error:
        stop = "" if str(error).endswith("?") else "."
        raise StepError(f"{error}{stop} To add or remove steps, give {where} as a list") from None
    if not isinstance(change, dict):
        raise StepError(f"{where}.{step} is a dict. Give a dict of its changes, got {change!r}")
    if _replaces(change):
        steps[index] = ConfigDict({k: v for k, v in change.items() if k != "_delete_"})
    else:
        change = _resolve_steps(change, steps[index], (*path, step))
        steps[index] = Config._merge_a_into_b(change, steps[index])


# -- recording the file of each value ------------------------------------------------------------


def _note_file(sources: Sources, file: str, changes: dict, base: dict) -> None:
    """Record what a child config sets. The config has not been merged into its base yet."""
    text = read_text(file, errors="replace")
    # A file may reuse whole lists and dicts of its bases, as in pipeline=_base_.train_pipeline.
    variables = {
        name: base[name]
        for name in re.findall(r"\b_base_\.(\w+)", text)
        if isinstance(child(base, name), dict | list | tuple)
    }
    for path, value in _set_values(changes, base, ()):
        set_source(sources, path, file)
        for below, node in _containers(value, path):
            for name in (name for name, of_base in variables.items() if node == of_base):
                copied = [other for other in sources if other[0] == name]
                sources |= {(*below, *other[1:]): sources[other] for other in copied}


def _set_values(
    changes: dict, base: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and values that a child config sets, down to single values in base dicts."""
    for key, value in changes.items():
        in_list = isinstance(base, list | tuple)
        (number, *_) = numbered_path(base, str(key).split(".")) if in_list else (str(key),)
        below, here = child(base, number), (*path, number)
        mergeable = isinstance(below, dict) or (
            isinstance(below, list | tuple) and any(map(type_name, below))
        )
        if mergeable and isinstance(value, dict) and not _replaces(value):
            yield from _set_values(value, below, here)
        else:
            yield here, value


def _containers(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all dicts and lists in a value with their paths, including the value itself."""
    if isinstance(node, dict | list | tuple):
        yield path, node
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _containers(value, (*path, str(key)))
