"""Changes of a config: ``KEY=VALUE``, steps by name, and settings with several places.

A recipe declares settings::

    settings = dict(frames=["train_dataloader.dataset.pipeline.RandomClips.num_frames",
                            "test_dataloader.dataset.pipeline.UniformClips.num_frames"])

so that ``frames=16`` changes training and evaluation alike. If a recipe inherits the declaration
but lacks one of the places, for example the queue of another method, that place is skipped.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mmengine
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.config.utils import RemoveAssignFromAST
from mmengine.utils import check_file_exist, import_modules_from_strings

from sce_video.engine.recipes import recipes_folder
from sce_video.utils.files import read_text
from sce_video.utils.own_parts import note_custom_imports

#: The file or option that sets each value of a config, by the path of keys and numbers. A source
#: applies to everything below its path, unless a longer path has its own source.
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


def child(node: Any, part: str) -> Any:
    """Return the entry of a dict or list at a key or number, or None if there is none."""
    if isinstance(node, dict | Config):
        return node.get(part)
    in_list = isinstance(node, list | tuple) and part.isdecimal() and int(part) < len(node)
    return node[int(part)] if in_list else None


def node_at(root: Any, path: Iterable[str]) -> Any:
    """Return the value at a path of keys and numbers, or None if there is none."""
    return reduce(child, path, root)


def numbered_path(root: Any, parts: Sequence[str]) -> tuple[str, ...]:
    """Replace the names of steps in a path by numbers, as far as the config reaches.

    A name with a scope, ``("sce_video", "RandomClips")``, becomes one entry. Unknown and ambiguous
    names are left for :func:`step_index` to refuse.
    """
    numbered: list[str] = []
    node, rest = root, list(parts)
    while rest:
        part = rest.pop(0)
        if isinstance(node, list | tuple) and not part.isdecimal():
            if rest and not _find(node, part) and _find(node, f"{part}.{rest[0]}"):
                part = f"{part}.{rest.pop(0)}"
            found = _find(node, part)
            part = str(found[0]) if len(found) == 1 else part
        numbered.append(part)
        node = child(node, part)
    return tuple(numbered)


def named_path(root: Any, path: Sequence[str]) -> str:
    """Format a path of keys and numbers as text, with the names of steps that are unique."""
    names = []
    node = root
    for part in path:
        step = child(node, part)
        unique = isinstance(node, list | tuple) and len(_find(node, type_name(step))) == 1
        names.append(type_name(step) if unique else part)
        node = step
    return ".".join(names)


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield single values, plain lists and empty dicts by their paths of keys and numbers."""
    items: Any = ()
    if isinstance(node, dict):
        items = node.items()
    elif isinstance(node, list) and any(isinstance(value, dict) for value in node):
        items = enumerate(node)
    if not items:
        yield path, node
    for key, value in items:
        yield from leaves(value, (*path, str(key)))


def step_index(steps: Sequence, part: str, path: str) -> int:
    """Return the index of an entry of the list at ``path`` by its number or by its type's name.

    Raises:
        ValueError: If the number or name does not exist, or several entries share the name. The
            message lists the entries and similar names.
    """
    if part.isdecimal() and int(part) < len(steps):
        return int(part)
    found = _find(steps, part)
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{path}: {part!r} is ambiguous, the entries {' and '.join(map(str, found))} have this "
            f"type: use a number, {path}.{found[0]}"
        )
    names = {i: type_name(step) for i, step in enumerate(steps) if type_name(step)}
    entries = f" ({', '.join(f'{i}: {name}' for i, name in names.items())})" if names else ""
    near = difflib.get_close_matches(part, sorted(set(names.values())), 3)
    raise ValueError(
        f"{path} is a list of {len(steps)} entries{entries}. {part!r} is not the index of an entry"
        + (" and not the type of one" if names else "")
        + (f". Did you mean {' or '.join(near)}?" if near else "")
    )


def read_config(path: str | Path, sources: Sources | None = None) -> Config:
    """Read a config file like ``Config.fromfile``, and change steps of inherited lists by name.

    If a base contains a list of typed dicts and the child config a dict, the dict's keys are names
    (or numbers) of steps, and its values are merged into these steps, at any level of ``_base_``.
    ``_delete_=True`` in a step replaces it at its position. Steps cannot be added this way.

    Args:
        path: The config file.
        sources: Filled with the file that sets each value. It stays empty if the config imports
            its bases (``with read_base()``) instead of naming them.

    Raises:
        StepError: If a step's name is unknown or ambiguous, or its value is not a dict. The message
            names the file.
    """
    path = str(path)
    if Config._is_lazy_import(path):  # inherits by Python's import, without merging dicts
        try:
            return Config.fromfile(path)
        except ModuleNotFoundError as error:
            if error.name != "pkg_resources":
                raise
            raise ImportError(
                f"{path} inherits from another package by read_base(), for which mmengine needs "
                "pkg_resources. Run pip install 'setuptools<81'"
            ) from error
    content = _read_with_bases(path, sources)
    if imports := content.values.get("custom_imports"):
        try:
            import_modules_from_strings(**imports)
        except ImportError as error:
            hint = "Add the folder of the module to PYTHONPATH, or name the module by --import."
            raise ImportError(f"custom_imports={imports}: {error}. {hint}") from error
        note_custom_imports(imports["imports"])
    return Config(content.values, content.text, path, content.variables)


@dataclass
class _Content:
    """Values of a config file and its bases, the text of all files, and the variables used."""

    values: dict[str, Any]
    text: str
    variables: dict[str, str]


def _read_with_bases(path: str, sources: Sources | None = None) -> _Content:
    """Read the bases of a config file, then the file, and merge its values into theirs.

    ``sources`` is filled in the same way as by :func:`read_config`.

    mmengine 0.10 does the same, but refuses a dict over a list ("cannot inherit from base"), and
    its functions that read files cannot be told to merge in another way.
    """
    if Config._is_lazy_import(path):
        raise ValueError(f"_base_ names {path}, which has imports. Inherit it by read_base().")
    path = os.path.abspath(os.path.expanduser(path))
    check_file_exist(path)
    if not path.endswith((".py", ".json", ".yaml", ".yml")):
        raise OSError(f"only .py, .json, .yaml and .yml files can be read as a config, got {path}")
    inherited, texts = ConfigDict(), []
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
    """Return the path of a config's base, and the package if it is given as ``package::config``.

    mmengine's own function needs ``pkg_resources``, which setuptools 81 removed. It also fails for
    the configs of mmaction2 1.1, because it cannot read their list of models.
    """
    package, external, config = name.partition("::")
    if not external:
        return os.path.join(os.path.dirname(path), name), None
    if package == "sce_video":  # recipes also exist in a checkout, and need no scope
        return str(recipes_folder() / config), None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{path} inherits from {package}, which is not installed")
    return os.path.join(os.path.dirname(spec.origin), ".mim", "configs", config), package


def _own_values(path: str, filled: str, inherited: ConfigDict) -> dict[str, Any]:
    """Return the values that a config file sets itself.

    Args:
        path: The file.
        filled: Copy of the file in which the variables are replaced by their values.
        inherited: Values of the bases, which the file may use as ``_base_``.
    """
    if not path.endswith(".py"):
        return mmengine.load(filled)
    tree = ast.parse(read_text(filled))
    names: dict[str, Any] = {"_base_": inherited}
    exec(compile(RemoveAssignFromAST("_base_").visit(tree), path, "exec"), names)
    return {
        name: value
        for name, value in names.items()
        if name != "_base_"
        and not name.startswith("__")
        and not isinstance(value, FunctionType | ModuleType)
    }


def _note_file(sources: Sources, file: str, changes: dict, base: dict) -> None:
    """Record what a child config sets before it is merged into its base."""
    text = read_text(file, errors="replace")
    # A file may reuse whole lists and dicts of its bases: pipeline=_base_.train_pipeline.
    variables = {
        name: base[name]
        for name in re.findall(r"\b_base_\.(\w+)", text)
        if isinstance(base.get(name), dict | list | tuple)
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
    """Yield paths and values that a child config sets, including single values in base dicts."""
    for key, value in changes.items():
        in_list = isinstance(base, list | tuple)
        (number, *_) = numbered_path(base, str(key).split(".")) if in_list else (str(key),)
        below, here = child(base, number), (*path, number)
        mergeable = isinstance(below, dict) or (
            isinstance(below, list | tuple) and any(map(type_name, below))
        )
        if mergeable and isinstance(value, dict) and not value.get("_delete_"):
            yield from _set_values(value, below, here)
        else:
            yield here, value


def _containers(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all dicts and lists in a value with their paths, including the value itself."""
    if isinstance(node, dict | list | tuple):
        yield path, node
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _containers(value, (*path, str(key)))


def config_files(path: str | Path) -> list[str]:
    """Return a config file and all files that it is based on, without duplicates."""
    files = [str(path)]
    for base in Config._get_base_files(str(path)):
        base_path, _ = _base_file(base, str(path))
        files += [file for file in config_files(base_path) if file not in files]
    return files


class StepError(ValueError):
    """Wrong step in a child config. The message begins with the file name."""


def _resolve_steps(changes: dict, base: dict, path: tuple[str, ...]) -> dict:
    """Return a child config's changes with each dict over a list of steps made a full list."""
    resolved = dict(changes)
    for key, value in changes.items():
        below, here = base.get(key), (*path, str(key))
        if not isinstance(value, dict) or value.get("_delete_"):
            continue
        if isinstance(below, dict):
            resolved[key] = _resolve_steps(value, below, here)
        elif isinstance(below, list | tuple) and any(map(type_name, below)):
            merged = list(below)
            for step, change in value.items():
                _merge_into_step(merged, str(step), change, here)
            resolved[key] = type(below)(merged)
    return resolved


def _merge_into_step(steps: list, step: str, change: Any, path: tuple[str, ...]) -> None:
    """Apply a child config's changes to one step, given by its name or number."""
    where = ".".join(path)
    try:
        index = step_index(steps, step, where)
    except ValueError as error:
        stop = "" if str(error).endswith("?") else "."
        raise StepError(f"{error}{stop} To add or remove steps, give {where} as a list") from None
    if not isinstance(change, dict):
        raise StepError(f"{where}.{step} is a dict: give a dict of its changes, got {change!r}")
    if change.get("_delete_"):
        steps[index] = ConfigDict({k: v for k, v in change.items() if k != "_delete_"})
    else:
        change = _resolve_steps(change, steps[index], (*path, step))
        steps[index] = Config._merge_a_into_b(change, steps[index])


def _find(steps: Sequence, name: str) -> list[int]:
    """Return the indices of entries whose type has this name, and this scope if both state one."""
    scope, _, last = name.rpartition(".")
    typed = [(i, _type(step).rpartition(".")) for i, step in enumerate(steps)]
    named = [(i, own_scope) for i, (own_scope, _, own) in typed if name and own == last]
    return [i for i, own_scope in named if not scope or not own_scope or scope == own_scope]


def _type(step: Any) -> str:
    """Return the type of an entry with its scope, or "" if it has none."""
    kind = step.get("type") if isinstance(step, dict) else None
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")


def type_name(step: Any) -> str:
    """Return the name of an entry's type without its scope, or "" if it has none."""
    return _type(step).rpartition(".")[2]


def parse_options(options: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``["a.b=1", "c=[x,y]"]`` to ``{"a.b": 1, "c": ["x", "y"]}``, and copy a dict.

    Raises:
        ValueError: If an option has no "=" or has unbalanced brackets.
    """
    if isinstance(options, Mapping):
        return dict(options)
    parsed = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ValueError(
                f"a config option is KEY=VALUE, like train_cfg.max_epochs=100; got {option!r}"
            )
        try:
            parsed[key] = parse_value(text)
        except ValueError as error:
            raise ValueError(f"{error} in the config option {option!r}") from None
    return parsed


def parse_value(text: str) -> Any:
    """Parse a value as it is typed on the command line, like mmengine's ``DictAction``.

    ``1e-3``, ``true`` and ``None`` become a number, a boolean and None. ``a,b`` and ``[(1,2),c]``
    become sequences. Any other text is kept, and so is text in quotes: ``'2023'``.

    Raises:
        ValueError: If the brackets are unbalanced.
    """
    if text[:1] in ("'", '"'):
        with suppress(ValueError, SyntaxError):
            quoted = ast.literal_eval(text)
            if isinstance(quoted, str):
                return quoted
    try:
        value = DictAction._parse_iterable(text)
    except AssertionError as error:
        raise ValueError("brackets do not match") from error
    # mmengine also removes spaces from plain text, so a path with spaces would not be found.
    return text.strip("'\"") if isinstance(value, str) else value


def available_settings(
    cfg: Config, known: Callable[[dict, tuple[str, ...]], Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the places of every setting that the recipe declares and contains, by name.

    With ``known`` (:func:`~sce_video.engine.config.check.known_keys`, which takes seconds to
    import), arguments that classes accept but the recipe leaves at their defaults also count.
    """

    def has(place: str) -> bool:
        *parents, last = numbered_path(cfg, place.split("."))
        node = node_at(cfg, parents)
        if not isinstance(node, dict | Config) or last in node or known is None:
            return isinstance(node, dict | Config) and last in node
        taken = known(node, tuple(parents))
        return taken is not None and last in taken.keys

    declared = (cfg.get("settings") or {}).items()
    found = {name: tuple(place for place in places if has(place)) for name, places in declared}
    return {name: places for name, places in found.items() if places}
