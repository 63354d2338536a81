"""Dataclasses built from data, such as a JSON file, a line of a log or the file of a sweep.

The annotations of a dataclass state the types of its fields, so the shape of data is declared once
and not checked by hand. :func:`read_record` refuses data with a different shape, and
:func:`lenient_record` keeps the fields that fit.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

#: Object in a JSON file. Its values may be any JSON data.
JsonObject = dict[str, Any]
Record = TypeVar("Record")
_UNIONS = (Union, types.UnionType)
_SEQUENCES = (tuple, list, Sequence)
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


@cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields. They are cached for the many rows of a log."""
    return get_type_hints(kind)


@dataclass(frozen=True)
class RecordLimits:
    """Maximum sizes of values in an untrusted file.

    Attributes:
        entries: Maximum length of a list.
        characters: Maximum length of text, or of any other value that is converted to text.
    """

    entries: int
    characters: int


def read_record(
    kind: type[Record], content: Any, where: str = "it", limits: RecordLimits | None = None
) -> Record:
    """Build a dataclass from an object whose keys are its fields.

    A field that is a dataclass, or a tuple of dataclasses, is built in the same way.

    Args:
        kind: The dataclass.
        content: The object.
        where: Name of the object in errors.
        limits: Maximum sizes of values; None for no limits.

    Raises:
        ValueError: If the content is not an object, a field is unknown, a field without a default
            is missing, or a value has the wrong type or is too large.
    """
    return _read(kind, content, where, "", limits)


def _read(kind: type[Record], content: Any, where: str, prefix: str, limits: Any) -> Record:
    """Build a dataclass like :func:`read_record`. In errors, field names have a prefix."""
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
    """Convert a value to the type of its field, or raise ValueError if it does not fit."""
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
    # Limit only text and values of any type, because the size of an object is limited by its file.
    if limits is not None and main in (str, Any) and len(str(value)) > limits.characters:
        at_most = f"{limits.characters} characters"
        words = f"must be text of at most {at_most}" if main is str else f"has more than {at_most}"
        raise ValueError(f"{where} {words}")
    return value


def lenient_record(kind: type[Record], row: Any) -> Record:
    """Build a dataclass from a row of a log, which may be damaged or from another version.

    Fields that are missing or have a value of the wrong type keep their defaults.
    """
    hints = _field_types(kind)  # type: ignore[arg-type]
    given = row if isinstance(row, Mapping) else {}
    names = [known.name for known in fields(kind)]  # type: ignore[arg-type]
    kept = {n: given[n] for n in names if n in given and fits(given[n], hints[n])}
    return kind(**kept)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type. Other annotations allow any value."""
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
    if origin in _SEQUENCES:  # options and JSON may contain lists instead of tuples
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and arguments and Ellipsis not in arguments:
            return len(value) == len(arguments) and all(map(fits, value, arguments))
        return not arguments or all(fits(v, arguments[0]) for v in value)
    return isinstance(value, Mapping) if (origin or hint) in (dict, Mapping) else True


def describe(hint: Any) -> str:
    """Describe an annotated type in words."""
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
    """Return the value at a path of keys, or None if there is no value of the requested type.

    The steps of the path need not exist or be dicts, so this function can read untrusted files and
    incomplete configs.

    Args:
        data: Nested dicts, or an mmengine config.
        path: Keys joined by dots, for example ``train_dataloader.dataset.ann_file``.
        kind: Type of the value; None for any. A bool does not count as a number.
    """
    for key in path.split("."):
        data = getattr(data, "_cfg_dict", data)  # get the dict inside an mmengine config
        data = data.get(key) if isinstance(data, Mapping) else None
    if kind is None or (isinstance(data, kind) and (kind is bool or not isinstance(data, bool))):
        return data
    return None
