"""Parses the text of a config as data, without executing it.

A checkpoint contains the text of its config, Python source as ``mmengine.Config.pretty_text``
writes it. mmengine's own readers execute such text. Since a checkpoint may come from an untrusted
source, only literals are read here from the syntax tree; anything else is an error.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

_MAX_CHARACTERS = 2**21
_NAMES = {"inf": float("inf"), "nan": float("nan")}  # as repr() writes them


class _NotDataError(ValueError):
    """A part of the text that is not plain data."""

    def __init__(self, node: ast.AST, what: str) -> None:
        super().__init__(f"line {getattr(node, 'lineno', '?')}: {what}")


def stored_config(stored: dict[str, Any], checkpoint: str | Path) -> dict[str, Any]:
    """The config in a checkpoint, parsed as data.

    Raises:
        ValueError: there is none, or it is not plain data.
    """
    meta = stored.get("meta")
    text = meta.get("cfg") if isinstance(meta, dict) else None
    if not text:
        raise ValueError(
            f"{checkpoint} contains no config (a converted file, or weights only): give the config "
            "file of its network (config=)"
        )
    return parse_config_text(text, str(checkpoint))


def parse_config_text(text: str, name: str) -> dict[str, Any]:
    """The values that a text assigns to names.

    Allowed are ``key = value`` lines whose values are numbers, strings, True, False, None, lists,
    tuples, sets, ``{...}`` and ``dict(key=value)``.

    Args:
        text: Python source.
        name: Source of the text, for messages.

    Returns:
        Values by name; a name assigned twice has its last value.

    Raises:
        ValueError: the text holds anything else; the message names the line. Nothing is executed.
    """
    if not isinstance(text, str):
        raise ValueError(f"the config of {name} must be text, got {type(text).__name__}")
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(
            f"the config text of {name} has {len(text)} characters, more than {_MAX_CHARACTERS}: "
            "that is not a config"
        )
    try:
        return dict(_assignment(statement) for statement in ast.parse(text).body)
    except _NotDataError as error:
        raise ValueError(
            f"the config text of {name} is not plain data and is not executed ({error}): give "
            "the config file"
        ) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the config text of {name} cannot be parsed: {error}") from None


def _assignment(statement: ast.stmt) -> tuple[str, Any]:
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        return statement.targets[0].id, _value(statement.value)
    raise _NotDataError(statement, f"{type(statement).__name__} instead of name = value")


def _value(node: ast.expr) -> Any:
    """The value of a literal."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Set):
        return {_hashable(item) for item in node.elts}
    if isinstance(node, ast.Dict):
        return _display(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _call(node, node.func.id)
    raise _NotDataError(node, f"a {type(node).__name__} is not a literal")


def _number(node: ast.expr) -> int | float:
    value = _value(node) if isinstance(node, ast.Constant | ast.Name) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NotDataError(node, "minus sign before something that is not a number")
    return value


def _hashable(node: ast.expr) -> Any:
    value = _value(node)
    try:
        hash(value)
    except TypeError:
        raise _NotDataError(node, f"a {type(value).__name__} cannot be a key") from None
    return value


def _display(node: ast.Dict) -> dict[Any, Any]:
    result = {}
    for key, item in zip(node.keys, node.values, strict=True):
        if key is None:
            raise _NotDataError(node, "** in a dict")
        result[_hashable(key)] = _value(item)
    return result


def _call(node: ast.Call, function: str) -> Any:
    """``dict(a=1)``, ``dict({...})`` and ``set()``, the only calls in the text of a config."""
    if function == "set" and not node.args and not node.keywords:
        return set()
    if function != "dict" or len(node.args) > 1 or (node.args and node.keywords):
        raise _NotDataError(node, f"a call of {function}")
    if node.args:
        if not isinstance(node.args[0], ast.Dict):
            raise _NotDataError(node, "dict() of something that is not {...}")
        return _display(node.args[0])
    result: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in result:
            raise _NotDataError(node, "** or a name given twice in dict()")
        result[keyword.arg] = _value(keyword.value)
    return result
