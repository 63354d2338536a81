"""Declaration of the constructor arguments that a later step adopts from a checkpoint.

A resumed run, a test and a finetuning run need the checkpoint's network and views, whose config may
differ from the recipe. A class declares these arguments in the annotations of its constructor::

    def __init__(self, depth: Layers, base_channels: Channels = 64, frozen_stages: int = -1): ...

Here, ``depth`` and ``base_channels`` are adopted from a checkpoint, and ``frozen_stages`` is not.
The checkpoint may be untrusted, so each declaration limits the values.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Stored:
    """Limits of an argument that is adopted from a checkpoint.

    Attributes:
        most: Largest allowed number, or maximum length of text.
        least: Smallest allowed number.
        is_width: Whether a number above 0 must be a size of one of the checkpoint's weights.
        values: Maximum number of values in a sequence.
        in_new_tasks: Whether a training run for a different task that starts from the checkpoint
            also adopts the argument. False for arguments that depend on the task.
    """

    most: float = 1
    least: float = 1
    is_width: bool = False
    values: int = 1
    in_new_tasks: bool = True


class Compared:
    """Mark for text that a constructor only compares with known words.

    The text is never opened, imported or looked up, so an untrusted file may contain it.
    """


#: Config of a part that a registry builds: its ``type``, and arguments for its constructor
PartConfig = dict[str, Any]
#: Text that is marked as :class:`Compared`
Word = Annotated[str, Compared()]
#: Settings whose text values are marked as :class:`Compared`
Words = Annotated[dict[str, Any], Compared()]
#: Number of blocks or layers in a network
Layers = Annotated[int, Stored(1000)]
#: Width that determines all other widths of a network
Channels = Annotated[int, Stored(1024, is_width=True)]
#: Width of features or of a hidden layer
Features = Annotated[int, Stored(2**14, is_width=True)]
#: Size of an embedding, or number of classes
Outputs = Annotated[int, Stored(2**16, is_width=True)]
#: Number of prototypes, or of keys in a queue
Entries = Annotated[int, Stored(2**20, is_width=True)]
#: Whether a network has an optional part, such as a normalisation
Switch = Annotated[bool, Stored()]
#: Name of a network variant
Variant = Annotated[str, Stored(32)]
#: Number of frames in a clip, or distance from one frame of a clip to the next
Frames = Annotated[int, Stored(4096)]
#: Duration of a clip in seconds
Seconds = Annotated[float, Stored(86400, least=1e-6)]
#: Side of a frame in pixels
Pixels = Annotated[int, Stored(8192)]
#: Side of a frame in pixels, or a range of sides
PixelRange = Annotated[int | tuple[int, int], Stored(8192, values=2)]


@dataclass(frozen=True)
class StoredArgument:
    """A constructor argument that is adopted from a checkpoint.

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
        """Return whether an untrusted value has the declared type and lies within the limits.

        Args:
            value: Value in the checkpoint's config, which is JSON data.
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
        # Allow a plus, because it joins words in names of pools such as mean+absdiff.
        return value.replace("+", "_").isidentifier() and len(value) <= limits.most
    fits = value in widths or value == 0 or not limits.is_width
    return fits and limits.least <= value <= limits.most


def stored_arguments(part: Any) -> dict[str, StoredArgument]:
    """Return the arguments that a class declares to be adopted from a checkpoint, by name."""
    return {
        name: StoredArgument(limits, _kinds(parameter.annotation), parameter.default)
        for name, parameter in constructor_parameters(part).items()
        for limits in _declared(parameter.annotation)
    }


def constructor_parameters(part: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor by name, with resolved annotations.

    A constructor with ``**kwargs`` passes them to the parent class, so the parent's parameters are
    included. The result is empty for anything except a class.
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
            break  # written in C, or its annotations name types that only type checkers import
        _, *own = parameters.values()  # skip self
        for p in own:
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found.setdefault(p.name, p.replace(annotation=hints.get(p.name, Any)))
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def takes_words(hint: Any) -> bool:
    """Return whether an annotation is :data:`Word`, or text that is adopted from a checkpoint."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        declared = (Compared, Stored) if kind is str else Compared
        return any(isinstance(extra, declared) for extra in extras)
    return any(map(takes_words, get_args(hint)))


def _declared(hint: Any) -> list[Stored]:
    """Return the declaration in an annotation or in its union with None, or an empty list."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    extras = [extra for option in options for extra in getattr(option, "__metadata__", ())]
    return [extra for extra in extras if isinstance(extra, Stored)][:1]


def _kinds(hint: Any) -> frozenset[type]:
    """Return the annotated types of a single value. An int is accepted as a float."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType, tuple, list, Sequence):
        return frozenset().union(*map(_kinds, arguments))
    return frozenset({int, float} if hint is float else {hint})
