"""The settings of a training by the names of the paper, from the record of its checkpoint.

See :func:`~sce_video.engine.training_record.record_training` for the record. What it does not hold
is left out, or "unknown".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

UNKNOWN = "unknown"
_TEMPORAL = ("duration_jitter", "reverse_prob", "diff_prob")
#: Steps that decode one frame; the others name the number of frames of a clip.
_ONE_FRAME = "LoadImage"
_CROP = "RandomResizedCropClips"
#: Strength of a view's colour jitter as printed in tab:augmentations, and where none is given.
_STRENGTH = 0.5
#: The augmentation without colour jitter, whose strength means nothing.
_WEAK = "weak"


def settings_of(record: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, as in ``sce_video.published``: those of the model, its views and crops.

    Args:
        record: A record with all entries that older ones have, too.
    """
    parts, model = record.get("model_parts"), record["model"]
    settings = {**(record.get("model_defaults") or {}), **model, **(parts or {})}
    scheduled = (record.get("schedules") or {}).get("model")
    if isinstance(scheduled, dict):
        settings |= {name: _start(name, value) for name, value in scheduled.items()}
    views = [view for view in record["views"] if isinstance(view, dict)]
    return {
        **settings,
        "type": str(model.get("type", UNKNOWN)).rpartition(".")[2],
        "lambda_": _coefficients(settings.get("lambda_", UNKNOWN)),
        "predictor": UNKNOWN if parts is None else bool(settings.get("predictor")),
        "target_views": UNKNOWN if parts is None else _target_views(settings, record),
        "optimizer": _class_name(record.get("optimizer")) or UNKNOWN,
        **{name: next(_values(record, name, "RandomClips"), 0.0) for name in _TEMPORAL},
        "strength": tuple(view.get("strength", UNKNOWN) for view in views),
        "views": tuple(_name(view) for view in views),
        "area": _tuples(next(_values(record, "area", _CROP), UNKNOWN)),
        "local_sizes": _of_local_views(record, "local_size"),
        "local_areas": _of_local_views(record, "local_area"),
    }


def num_frames(record: dict[str, Any]) -> int | None:
    """Frames of a clip: an image is a clip of one."""
    one = any(_class_name(step) == _ONE_FRAME for step in record["pipeline"])
    return next(_values(record, "num_frames"), 1 if one else None)


def crop_size(record: dict[str, Any]) -> int | None:
    """Height and width of a random crop, pixels."""
    return next(_values(record, "size", _CROP, "RandomCropClips"), None)


def _values(record: dict[str, Any], key: str, *names: str) -> Iterator[Any]:
    """Values of an argument in the steps of the pipeline, or in those of these classes."""
    for step in record["pipeline"]:
        kind = _class_name(step)
        if kind and key in step and (not names or kind in names):
            yield step[key]


def _class_name(config: Any) -> str:
    """``SCE`` of ``type="sce_video.SCE"``; empty if there is none."""
    kind = config.get("type") if isinstance(config, dict) else None
    return "" if kind is None else str(kind).rpartition(".")[2]


def _start(name: str, value: Any) -> Any:
    """A number that follows a schedule: the target's momentum begins somewhere and ends at 1."""
    usual = isinstance(value, dict) and (value.get("name"), value.get("end")) == ("cosine", 1.0)
    return value.get("start", UNKNOWN) if name == "momentum" and usual else value


def _coefficients(value: Any) -> Any:
    """Lambda; free coefficients as a tuple unless they are SCE's (mu = eta = 1 - lambda)."""
    if not isinstance(value, list):
        return value
    numbers = [v for v in value if isinstance(v, int | float)]
    same = len(numbers) == len(value) == 3 and all(
        math.isclose(v, 1 - numbers[0], abs_tol=1e-9) for v in numbers[1:]
    )
    return numbers[0] if same else _tuples(value)


def _target_views(settings: dict[str, Any], record: dict[str, Any]) -> Any:
    """Indices of the views that are keys; those that the methods choose where none are named."""
    stated, symmetric = settings.get("target_views"), settings.get("symmetric")
    if stated is not None or not isinstance(symmetric, bool):
        return _tuples(stated)
    count = len(record["views"])
    return tuple(range(count - _num_local_views(record))) if symmetric else (count - 1,)


def _name(view: dict[str, Any]) -> str:
    """``strong``, with everything by which it differs from the augmentation of that name."""
    name = str(view.get("name", "unnamed"))
    other = {k: v for k, v in view.items() if k not in ("name", "strength")}
    if name != _WEAK and view.get("strength", _STRENGTH) != _STRENGTH:
        other["strength"] = view["strength"]
    return " ".join([name, *(f"{key}={value}" for key, value in other.items())])


def _of_local_views(record: dict[str, Any], key: str) -> tuple[Any, ...]:
    """An argument of the crops for each local view, from one value or a list."""
    count = _num_local_views(record)
    if not count:
        return ()
    value = _tuples(next(_values(record, key, _CROP), UNKNOWN))
    # An area is a pair itself.
    items = value if isinstance(value, tuple) else ()
    listed = items and (key == "local_size" or isinstance(items[0], tuple))
    return items if listed else (value,) * count


def _num_local_views(record: dict[str, Any]) -> int:
    """The last views of a sample, which are smaller."""
    count = next(_values(record, "num_local_views"), 0)
    return count if isinstance(count, int) and 0 <= count <= len(record["views"]) else 0


def _tuples(value: Any) -> Any:
    """Lists as tuples, so that a record compares equal with what is published."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
