"""One value of nested dicts, such as a config, a checkpoint's record or a file of results."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any


def at(data: Any, path: str, kind: type | UnionType | None = None) -> Any:
    """Return the value at a path of keys, or None if there is none of the wanted type.

    Nothing on the way needs to exist or to be a dict, so an untrusted file can be read by it, and a
    config that leaves parts out.

    Args:
        data: Nested dicts, or a config of mmengine.
        path: Keys that are joined by dots: ``train_dataloader.dataset.ann_file``.
        kind: Type of the value; None for any. A switch is not a number.
    """
    for key in path.split("."):
        data = getattr(data, "_cfg_dict", data)  # the dict in a config of mmengine
        data = data.get(key) if isinstance(data, Mapping) else None
    if kind is None or (isinstance(data, kind) and (kind is bool or not isinstance(data, bool))):
        return data
    return None
