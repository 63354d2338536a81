"""Dataclasses built from data: a JSON file, a line of a log, a file of a sweep.

The annotations of a dataclass state the types of its fields, so that a shape is declared once and
no reader checks it by hand. :func:`read_record` refuses data of another shape, and
:func:`lenient_record` keeps what fits.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

#: Object in a JSON file, whose values are any JSON data.
JsonObject = dict[str, Any]
Record = TypeVar("Record")
_UNIONS = (Union, types.UnionType)
_SEQUENCES = (tuple, list, Sequence)
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, which takes long for the many rows of a log."""
    return get_type_hints(kind)


@dataclass(frozen=True)
class RecordLimits:
    """Largest sizes in an untrusted file.

    Attributes:
        entries: Largest length of a list.
        characters: Largest length of a text, or of any other value as text.
    """

    entries: int
    characters: int


def read_record(
    kind: type[Record], content: Any, where: str = "it", limits: RecordLimits | None = None
) -> Record:
    """Build a dataclass from an object whose keys are its fields.

    A field that is a dataclass, or a tuple of them, is built in the same way.

    Args:
        kind: The dataclass.
        content: The object.
        where: Name of the object in errors.
        limits: Largest sizes; None for no limits.

    Raises:
        ValueError: If the content is not an object, a field is unknown, a field without a default
            is missing, or a value has another type or is too large.
    """
    return _read(kind, content, where, "", limits)


def _read(kind: type[Record], content: Any, where: str, prefix: str, limits: Any) -> Record:
    """Do the work of :func:`read_record` for fields whose names in errors have a prefix."""
    if not isinstance(content, dict):
        raise ValueError(f"{where} must be an object, got {content!r:.60}")
    declared = {known.name: known for known in fields(kind)}  # type: ignore[arg-type]
    for name in sorted(map(str, content.keys() - declared.keys())):
        raise ValueError(
            f"{where} has the unknown field {name!r:.60}. The known fields are "
            f"{', '.join(declared)}"
        )
    for name, known in declared.items():
        if name not in content and known.default is known.default_factory is MISSING:
            raise ValueError(f"{where} lacks the field {name!r}")
    hints = _field_types(kind)  # type: ignore[arg-type]
    return kind(
        **{
            name: _checked(value, hints[name], f"{prefix}{name}", limits)
            for name, value in content.items()
        }
    )


def _checked(value: Any, hint: Any, where: str, limits: RecordLimits | None) -> Any:
    """Return a value as its field stores it; raise ValueError if the annotation forbids it."""
    options = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    if value is None and type(None) in options:
        return None
    main = options[0]
    if isinstance(main, type) and is_dataclass(main):
        return _read(main, value, where, f"{where}.", limits)
    if get_origin(main) is tuple and isinstance(value, list | tuple):
        if limits is not None and len(value) > limits.entries:
            raise ValueError(f"{where} must be a list of at most {limits.entries} entries")
        (item, *_) = get_args(main)
        places = (f"{where}[{n}]" if is_dataclass(item) else where for n in range(len(value)))
        return tuple(_checked(v, item, p, limits) for v, p in zip(value, places, strict=True))
    if not fits(value, hint):
        wanted = "an object" if (get_origin(main) or main) is dict else describe(hint)
        raise ValueError(f"{where} must be {wanted}, got {value!r:.60}")
    # Only a declared text or any value may be long; an object has the size of its file.
    if limits is not None and main in (str, Any) and len(str(value)) > limits.characters:
        at_most = f"{limits.characters} characters"
        words = f"must be text of at most {at_most}" if main is str else f"has more than {at_most}"
        raise ValueError(f"{where} {words}")
    return value


def lenient_record(kind: type[Record], row: Any) -> Record:
    """Build a dataclass from a row of a log, which may be damaged or of another version.

    Fields that the row lacks, or has with a value of another type, keep their defaults.
    """
    hints = _field_types(kind)  # type: ignore[arg-type]
    given = row if isinstance(row, Mapping) else {}
    names = [known.name for known in fields(kind)]  # type: ignore[arg-type]
    kept = {n: given[n] for n in names if n in given and fits(given[n], hints[n])}
    return kind(**kept)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type; True if the annotation leaves it open."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if hint in (None, type(None)):
        return value is None
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint in (bool, str, int, float):
        return isinstance(value, {str: str | Path, float: int | float}.get(hint, hint))
    if origin in _SEQUENCES:  # options and JSON give lists for tuples
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and arguments and Ellipsis not in arguments:
            return len(value) == len(arguments) and all(map(fits, value, arguments))
        return not arguments or all(fits(v, arguments[0]) for v in value)
    return isinstance(value, Mapping) if (origin or hint) in (dict, Mapping) else True


def describe(hint: Any) -> str:
    """Return an annotated type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(describe(option) for option in arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if hint in (None, type(None)):
        return "None"
    if origin is tuple and Ellipsis not in arguments:
        return f"{len(arguments)} values ({', '.join(map(describe, arguments))})"
    if origin in _SEQUENCES:
        return f"a list of values ({describe(arguments[0])})" if arguments else "a list"
    if (origin or hint) in (dict, Mapping):
        return "a dict"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def at(data: Any, path: str, kind: type | UnionType | None = None) -> Any:
    """Return the value at a path of keys, or None if there is none of the wanted type.

    No step of the path needs to exist or to be a dict, so this can read untrusted files and
    incomplete configs.

    Args:
        data: Nested dicts, or an mmengine config.
        path: Keys that are joined by dots: ``train_dataloader.dataset.ann_file``.
        kind: Type of the value; None for any. A switch is not a number.
    """
    for key in path.split("."):
        data = getattr(data, "_cfg_dict", data)  # the dict in an mmengine config
        data = data.get(key) if isinstance(data, Mapping) else None
    if kind is None or (isinstance(data, kind) and (kind is bool or not isinstance(data, bool))):
        return data
    return None
