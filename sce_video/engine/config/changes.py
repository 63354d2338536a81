"""Changes of a config: ``KEY=VALUE``, steps by name, and settings that stand at several places.

A recipe declares settings::

    settings = dict(frames=["train_dataloader.dataset.pipeline.RandomClips.num_frames",
                            "test_dataloader.dataset.pipeline.UniformClips.num_frames"])

so that ``frames=16`` changes training and evaluation alike. A recipe that inherits the declaration
and lacks a place, as a method without queue does, leaves that place out.
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
#: holds for everything below its path, unless a longer path has its own source.
Sources = dict[tuple[str, ...], str]


def set_source(sources: Sources, path: tuple[str, ...], source: str) -> None:
    """Note where a value comes from, and forget the sources of what it replaces."""
    for other in [other for other in sources if other[: len(path)] == path]:
        del sources[other]
    sources[path] = source


def source_of(sources: Sources, path: tuple[str, ...]) -> str | None:
    """Return the source of the value at a path; None if it is not known."""
    lengths = range(len(path), 0, -1)
    return next((sources[path[:n]] for n in lengths if path[:n] in sources), None)


def child(node: Any, part: str) -> Any:
    """What a dict or a list has under a key or a number; None where there is nothing."""
    if isinstance(node, dict | Config):
        return node.get(part)
    in_list = isinstance(node, list | tuple) and part.isdecimal() and int(part) < len(node)
    return node[int(part)] if in_list else None


def node_at(root: Any, path: Iterable[str]) -> Any:
    """What stands at a path of keys and numbers; None where there is nothing."""
    return reduce(child, path, root)


def numbered_path(root: Any, parts: Sequence[str]) -> tuple[str, ...]:
    """A path with numbers in place of the names of steps, as far as the config reaches.

    The parts of a name with scope, ``("sce_video", "RandomClips")``, become one; unknown and
    ambiguous names are left for :func:`step_index` to refuse.
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
    """A path of keys and numbers as text, with the names of steps where a name is unique."""
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
    """The index of an entry of the list at ``path``, given by number or by the name of its type.

    Raises:
        ValueError: no such number or name, or a name that several entries have; with entries and
            near names, or the numbers.
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
        f"{path} is a list of {len(steps)} entries{entries}; {part!r} is not the index of one"
        + (", nor the name of its type" if names else "")
        + (f"; did you mean {' or '.join(near)}?" if near else "")
    )


def read_config(path: str | Path, sources: Sources | None = None) -> Config:
    """Read a config file like ``Config.fromfile``, and change steps of inherited lists by name.

    Where a base has a list of typed dicts and a child config a dict, the keys of the dict are names
    (or numbers) of steps and its values are merged into them, at any level of ``_base_``.
    ``_delete_=True`` in a step replaces it at its position. Steps cannot be added this way.

    Args:
        path: The config file.
        sources: Is filled with the file that sets each value. It stays empty if the config imports
            its bases (``with read_base()``) instead of naming them.

    Raises:
        StepError: If a step has an unknown or ambiguous name, or is not a dict; names the file.
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
    """Values of a config file with what it inherits, the text of all files, and used variables."""

    values: dict[str, Any]
    text: str
    variables: dict[str, str]


def _read_with_bases(path: str, sources: Sources | None = None) -> _Content:
    """Read the bases of a config file, then the file, and merge its values into theirs.

    ``sources`` is filled as by :func:`read_config`.

    mmengine 0.10 does the same, but refuses a dict over a list ("cannot inherit from base"), and
    its functions that read files cannot be told to merge in another way.
    """
    if Config._is_lazy_import(path):
        raise ValueError(f"_base_ names {path}, which has imports. Inherit it by read_base().")
    path = os.path.abspath(os.path.expanduser(path))
    check_file_exist(path)
    if not path.endswith((".py", ".json", ".yaml", ".yml")):
        raise OSError("Only py/yml/yaml/json type are supported now!")
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
    """Path of a base that a config file names; the package of ``package::config``, or None.

    mmengine's own function needs ``pkg_resources``, which setuptools 81 removed, and fails for the
    configs of mmaction2 1.1, whose list of models it cannot read.
    """
    package, external, config = name.partition("::")
    if not external:
        return os.path.join(os.path.dirname(path), name), None
    if package == "sce_video":  # its recipes also lie in a checkout, and need no scope
        return str(recipes_folder() / config), None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{path} inherits from {package}, which is not installed")
    return os.path.join(os.path.dirname(spec.origin), ".mim", "configs", config), package


def _own_values(path: str, filled: str, inherited: ConfigDict) -> dict[str, Any]:
    """Values that a config file itself sets.

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
    """Note what a child config sets, before it is merged into its base."""
    text = read_text(file, errors="replace")
    # A file hands on whole lists and dicts of its bases: pipeline=_base_.train_pipeline.
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
    """Paths and values that a child config sets; those in a dict or step of its base one by one."""
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
    """All dicts and lists of a value with their paths, itself included."""
    if isinstance(node, dict | list | tuple):
        yield path, node
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _containers(value, (*path, str(key)))


def config_files(path: str | Path) -> list[str]:
    """A config file and all files that it is based on, each once."""
    files = [str(path)]
    for base in Config._get_base_files(str(path)):
        base_path, _ = _base_file(base, str(path))
        files += [file for file in config_files(base_path) if file not in files]
    return files


class StepError(ValueError):
    """A wrong step in a child config; the message begins with the file."""


def _resolve_steps(changes: dict, base: dict, path: tuple[str, ...]) -> dict:
    """The changes of a child config, every dict over a list of steps replaced by the new list."""
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
    """Make the changes of a child config in a step, given by its name or number."""
    where = ".".join(path)
    try:
        index = step_index(steps, step, where)
    except ValueError as error:
        raise StepError(f"{error}. To add or remove steps, give {where} as a list") from None
    if not isinstance(change, dict):
        raise StepError(f"{where}.{step} is a dict: give a dict of its changes, got {change!r}")
    if change.get("_delete_"):
        steps[index] = ConfigDict({k: v for k, v in change.items() if k != "_delete_"})
    else:
        change = _resolve_steps(change, steps[index], (*path, step))
        steps[index] = Config._merge_a_into_b(change, steps[index])


def _find(steps: Sequence, name: str) -> list[int]:
    """Indices of the entries whose type has this name; a scope counts where both have one."""
    scope, _, last = name.rpartition(".")
    typed = [(i, _type(step).rpartition(".")) for i, step in enumerate(steps)]
    named = [(i, own_scope) for i, (own_scope, _, own) in typed if name and own == last]
    return [i for i, own_scope in named if not scope or not own_scope or scope == own_scope]


def _type(step: Any) -> str:
    """The type of an entry, with its scope; "" where it has none."""
    kind = step.get("type") if isinstance(step, dict) else None
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")


def type_name(step: Any) -> str:
    """The name of an entry's type, without scope; "" where it has none."""
    return _type(step).rpartition(".")[2]


def parse_options(options: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """``["a.b=1", "c=[x,y]"]`` to ``{"a.b": 1, "c": ["x", "y"]}``; a dict stays what it is.

    Raises:
        ValueError: an option without "=" or with brackets that do not match.
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
    """The value of a typed text, as of mmengine's ``DictAction``.

    ``1e-3``, ``true`` and ``None`` are a number, a switch and None, ``a,b`` and ``[(1,2),c]`` are
    sequences, and any other text is itself, as is whatever stands in quotes: ``'2023'``.

    Raises:
        ValueError: brackets do not match.
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
    # mmengine removes spaces from plain text too: a path with spaces would not be found.
    return text.strip("'\"") if isinstance(value, str) else value


def available_settings(
    cfg: Config, known: Callable[[dict, tuple[str, ...]], Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """The places of every setting that the recipe declares and has, by name.

    With ``known`` (:func:`~sce_video.engine.config.check.known_keys`, whose import takes seconds)
    it also has what its classes take by default.
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
