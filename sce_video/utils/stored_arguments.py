"""Declares which arguments of a class a later step adopts from a checkpoint.

A resumed run, a test and a finetuning run need the checkpoint's network and views, whose config may
differ from the recipe. A class declares the arguments in the annotations of its constructor::

    def __init__(self, depth: Layers, base_channels: Channels = 64, frozen_stages: int = -1): ...

Here ``depth`` and ``base_channels`` are taken from a checkpoint, and ``frozen_stages`` is not. The
checkpoint may be untrusted, so each declaration limits the values.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Stored:
    """Limits of an argument that is taken from a checkpoint.

    Attributes:
        most: Largest number, or length of the longest text.
        least: Smallest number.
        is_width: Whether a number above 0 has to be a size of one of the checkpoint's weights.
        values: Largest number of values in a sequence.
        in_new_tasks: Whether a training run for another task that starts from the checkpoint also
            uses the argument. False for arguments that the task decides.
    """

    most: float = 1
    least: float = 1
    is_width: bool = False
    values: int = 1
    in_new_tasks: bool = True


class Compared:
    """Mark of text that a constructor only compares with words that it knows.

    It is never opened, imported or looked up in a registry, so an untrusted file may contain it.
    """


#: Text that is marked as :class:`Compared`.
Word = Annotated[str, Compared()]
#: Settings whose texts are marked as :class:`Compared`.
Words = Annotated[dict[str, Any], Compared()]
#: Number of blocks or layers of a network.
Layers = Annotated[int, Stored(1000)]
#: Width from which all others of a network follow.
Channels = Annotated[int, Stored(1024, is_width=True)]
#: Width of features or of a hidden layer.
Features = Annotated[int, Stored(2**14, is_width=True)]
#: Size of an embedding, or number of classes.
Outputs = Annotated[int, Stored(2**16, is_width=True)]
#: Number of prototypes, or of keys in a queue.
Entries = Annotated[int, Stored(2**20, is_width=True)]
#: Whether a network has a part, such as a normalisation.
Switch = Annotated[bool, Stored()]
#: Name of a variant of a network.
Variant = Annotated[str, Stored(32)]
#: Frames of a clip, or between two frames of a clip.
Frames = Annotated[int, Stored(4096)]
#: Seconds of a clip.
Seconds = Annotated[float, Stored(86400, least=1e-6)]
#: Side of a frame.
Pixels = Annotated[int, Stored(8192)]
#: Side of a frame, or a range of sides.
PixelRange = Annotated[int | tuple[int, int], Stored(8192, values=2)]


@dataclass(frozen=True)
class StoredArgument:
    """An argument of a constructor that is taken from a checkpoint.

    Attributes:
        limits: Declared limits.
        kinds: Types of a single value.
        default: Value that the constructor uses if none is given; ``inspect.Parameter.empty`` if
            the argument is required.
    """

    limits: Stored
    kinds: frozenset[type]
    default: Any

    def accepts(self, value: Any, widths: set[int]) -> bool:
        """Return whether an untrusted value is of the declared type and within the limits.

        Args:
            value: Value in the config of the checkpoint, which is JSON data.
            widths: Sizes of the checkpoint's weights.
        """
        limits = self.limits
        several = isinstance(value, list | tuple) and limits.values > 1
        values = value if several else (value,)
        if not 1 <= len(values) <= limits.values:
            return False
        return all(type(one) in self.kinds and _is_within(one, limits, widths) for one in values)


def _is_within(value: Any, limits: Stored, widths: set[int]) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        # A plus joins words, as in mean+absdiff.
        return value.replace("+", "_").isidentifier() and len(value) <= limits.most
    fits = value in widths or value == 0 or not limits.is_width
    return fits and limits.least <= value <= limits.most


def stored_arguments(part: Any) -> dict[str, StoredArgument]:
    """Return the arguments that a class declares to be taken from a checkpoint, by name."""
    return {
        name: StoredArgument(limits, _kinds(parameter.annotation), parameter.default)
        for name, parameter in constructor_parameters(part).items()
        for limits in _declared(parameter.annotation)
    }


def constructor_parameters(part: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor by name, with resolved annotations.

    A constructor with ``**kwargs`` hands them to its parent, whose parameters are included.
    Anything but a class has no parameters.
    """
    found: dict[str, inspect.Parameter] = {}
    for kind in part.__mro__ if inspect.isclass(part) else ():
        constructor = vars(kind).get("__init__")
        if constructor is object.__init__:
            break
        if constructor is None:
            continue
        try:
            parameters = inspect.signature(constructor).parameters
            hints = get_type_hints(constructor, include_extras=True)
        except (AttributeError, NameError, TypeError, ValueError):
            break  # written in C, or names that only type checkers import
        _, *own = parameters.values()  # without self
        for p in own:
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found.setdefault(p.name, p.replace(annotation=hints.get(p.name, Any)))
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def takes_words(hint: Any) -> bool:
    """Return whether an annotation declares words: :data:`Word`, or text of a checkpoint."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        declared = (Compared, Stored) if kind is str else Compared
        return any(isinstance(extra, declared) for extra in extras)
    return any(map(takes_words, get_args(hint)))


def _declared(hint: Any) -> list[Stored]:
    """Return the declaration in an annotation, alone or in a union with None; else nothing."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    extras = [extra for option in options for extra in getattr(option, "__metadata__", ())]
    return [extra for extra in extras if isinstance(extra, Stored)][:1]


def _kinds(hint: Any) -> frozenset[type]:
    """Return the types of a single value of an annotation; a float may be a whole number."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType, tuple, list, Sequence):
        return frozenset().union(*map(_kinds, arguments))
    return frozenset({int, float} if hint is float else {hint})
