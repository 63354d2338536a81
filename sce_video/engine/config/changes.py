"""Places in a config, and user-specified changes to the values there.

A place is a path of keys and numbers. In options and messages, an entry of a list is also selected
by the name of its type: ``pipeline.RandomClips.num_frames`` instead of ``pipeline.1.num_frames``.

A recipe declares the places of its settings::

    settings = dict(frames=["train_dataloader.dataset.pipeline.RandomClips.num_frames",
                            "test_dataloader.dataset.pipeline.UniformClips.num_frames"])

``frames=16`` then changes both training and evaluation. A recipe may inherit a declaration without
having all of its places, for example without the queue of another method. The missing places are
skipped.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

from mmengine.config import Config, DictAction

from sce_video.utils.records import at

# -- places --------------------------------------------------------------------------------------


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
    """Replace the names of list entries in a path by numbers, as far as the config reaches.

    A name with a scope, ``("sce_video", "RandomClips")``, becomes one entry. Unknown and ambiguous
    names are kept, because :func:`step_index` refuses them with a message.
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
    """Format a path as text, in which unique names replace the numbers of list entries."""
    names = []
    node = root
    for part in path:
        step = child(node, part)
        unique = isinstance(node, list | tuple) and len(_find(node, type_name(step))) == 1
        names.append(type_name(step) if unique else part)
        node = step
    return ".".join(names)


def walk_dicts(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Yield a node and all dicts below it, in order, with their paths."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from walk_dicts(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from walk_dicts(value, (*path, str(i)))


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield single values, plain lists and empty dicts with their paths of keys and numbers."""
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
    """Find an entry of the list at ``path`` by its number or by the name of its type.

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
            f"{path}: {part!r} is ambiguous, because the entries "
            f"{' and '.join(map(str, found))} have this type. Use a number, {path}.{found[0]}"
        )
    names = {i: type_name(step) for i, step in enumerate(steps) if type_name(step)}
    entries = f" ({', '.join(f'{i}: {name}' for i, name in names.items())})" if names else ""
    near = difflib.get_close_matches(part, sorted(set(names.values())), 3)
    raise ValueError(
        f"{path} is a list of {len(steps)} entries{entries}. {part!r} is not the index of an entry"
        + (" and not the type of one" if names else "")
        + (f". Did you mean {' or '.join(near)}?" if near else "")
    )


def _find(steps: Sequence, name: str) -> list[int]:
    """Return the indices of entries whose type has this name, and this scope if both state one."""
    scope, _, last = name.rpartition(".")
    typed = [(i, _type(step).rpartition(".")) for i, step in enumerate(steps)]
    named = [(i, own_scope) for i, (own_scope, _, own) in typed if name and own == last]
    return [i for i, own_scope in named if not scope or not own_scope or scope == own_scope]


def _type(step: Any) -> str:
    """Return the type of an entry with its scope, or "" if it has none."""
    kind = child(step, "type")
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")


def type_name(step: Any) -> str:
    """Return the name of an entry's type without its scope, or "" if it has none."""
    return _type(step).rpartition(".")[2]


# -- values --------------------------------------------------------------------------------------


def parse_options(options: Sequence[str] | Mapping[str, Any]) -> dict[str, object]:
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
                f"a config option is KEY=VALUE, like train_cfg.max_epochs=100, got {option!r}"
            )
        try:
            parsed[key] = parse_value(text)
        except ValueError as error:
            raise ValueError(f"{error} in the config option {option!r}") from None
    return parsed


def parse_value(text: str) -> Any:
    """Parse a value that was typed on the command line, like mmengine's ``DictAction``.

    ``1e-3``, ``true`` and ``None`` become a number, a boolean and None. ``a,b`` and ``[(1,2),c]``
    become sequences. Any other text, and text in quotes such as ``'2023'``, is kept.

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
        raise ValueError("the brackets do not match") from error
    # mmengine would also remove spaces, so a path that contains spaces would not be found.
    return text.strip("'\"") if isinstance(value, str) else value


def available_settings(
    cfg: Config, known: Callable[[dict, tuple[str, ...]], Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the places of each setting that a recipe declares and contains, by name.

    Args:
        cfg: Config of the recipe.
        known: :func:`~sce_video.engine.config.check.known_keys`, with which a setting may also be a
            class argument that the recipe leaves at its default. It takes seconds to import.
            Without it, a place must be in the recipe.
    """

    def has(place: str) -> bool:
        *parents, last = numbered_path(cfg, place.split("."))
        node = node_at(cfg, parents)
        if not isinstance(node, dict | Config):
            return False
        if last in node or known is None:
            return last in node
        accepted = known(node, tuple(parents))
        return accepted is not None and last in accepted.keys

    declared = at(cfg, "settings", dict) or {}
    found = {name: tuple(filter(has, places)) for name, places in declared.items()}
    return {name: places for name, places in found.items() if places}
