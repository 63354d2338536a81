"""Declaration of a command's options, shared by the command line and Python.

The options of a command are a frozen dataclass that inherits from :class:`Options`. The annotation
of a field states the type of an option, and :func:`option` its default, range and help text.
:func:`sce_video.options.command_line.parse` builds the command line from this class, and
:func:`python_call` builds the Python function, so both make the same call with equal objects.

This package does not import torch or mmengine, so that errors in a command line are reported before
these libraries are loaded.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from sce_video.utils.records import describe, fits

T = TypeVar("T", bound="Options")
R = TypeVar("R")
D = TypeVar("D")


class OptionError(ValueError):
    """Error raised if an option's value or a combination of options is not allowed.

    ``str()`` writes the options as Python arguments.

    Args:
        sentence: Message with every option in braces: ``"{hours} must be above 0"``.
        got: Wrong value, which is added to the end of the message. Leave it out if the sentence
            needs no value.
    """

    def __init__(self, sentence: str, got: Any = MISSING) -> None:
        self._sentence = sentence
        self._end = "" if got is MISSING else f", got {got!r}"
        super().__init__(self.naming({}))

    def naming(self, names: dict[str, str]) -> str:
        """Return the message with the given names of the options.

        Args:
            names: Displayed name by field, for example ``{"start": "--from"}``. An option without
                an entry keeps the name of its field.
        """
        named = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[1]), self._sentence)
        return named + self._end


@dataclass(frozen=True)
class Spec:
    """Properties of an option that its annotation and default do not state.

    Args:
        help: Help text, without the default.
        flag: Name on the command line. None stands for ``--`` and the name of the field.
        positional: Whether the value is given without a flag.
        metavar: Placeholder for the value in the help, or a tuple with one for each value. None
            stands for N (integer), X (number) or the name of the field.
        choices: Allowed values, or None for any value. A ``Literal`` annotation has the same
            effect.
        least: Smallest allowed number.
        above: Number that every value must exceed.
        most: Largest allowed number.
        group: Title of the option's group in the help (:class:`Group`).
        alone: Value that is used if the flag has no value. None means that a value is required.
        none: Word on the command line that stands for None, for example ``auto``.
        words: Words that are accepted in addition to numbers. The annotation must include ``str``.
        problem: Function that describes what is wrong with a value, for example ``"must be ..."``,
            or returns None if the value is valid.
    """

    help: str
    flag: str | None = None
    positional: bool = False
    metavar: str | tuple[str, ...] | None = None
    choices: tuple[Any, ...] | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    group: str | None = None
    alone: Any = None
    none: str | None = None
    words: tuple[str, ...] = ()
    problem: Callable[[Any], str | None] | None = None


class _Spec(TypedDict, total=False):
    """Arguments of :class:`Spec`, all of them optional."""

    help: str
    flag: str
    positional: bool
    metavar: str | tuple[str, ...]
    choices: tuple[Any, ...]
    least: float
    above: float
    most: float
    group: str
    alone: Any
    none: str
    words: tuple[str, ...]
    problem: Callable[[Any], str | None]


def option(about: str | Spec, default: Any = MISSING, **more: Unpack[_Spec]) -> Any:
    """Declare an option of a dataclass.

    Args:
        about: Help text, or a declaration that several commands share.
        default: Default value. An option without a default is required.
        more: Other arguments of :class:`Spec`. They override a shared declaration.
    """
    spec = about if isinstance(about, Spec) else Spec(about)
    return field(default=default, metadata={"spec": replace(spec, **more)})


@dataclass(frozen=True)
class Group:
    """Options that the help lists together.

    Args:
        title: Heading above the options.
    """

    title: str

    def option(self, about: str | Spec, default: Any = MISSING, **more: Unpack[_Spec]) -> Any:
        """Declare an option of this group, with the arguments of :func:`option`."""
        more["group"] = self.title
        return option(about, default, **more)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of a command.

    A subclass defines its options as fields. It may override :meth:`check` to check combinations of
    options, after the type, choices and range of each option have been checked. Values are
    normalised so that equal options are equal objects: lists become tuples, paths become text,
    integers become floats if a float is declared, and a single value becomes a tuple if several
    are declared.

    Attributes:
        examples: Command lines shown at the end of the help.
        more: Text after the examples, such as exit statuses and pages of the documentation.
    """

    examples: ClassVar[tuple[str, ...]] = ()
    more: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for declared in fields(self):
            value = _plain(getattr(self, declared.name))
            if value is not None:
                kind = value_types(type(self))[declared.name]
                if kind.several and isinstance(value, str | int | float):
                    value = (value,)
                _check_value(type(self), declared, value)
                if kind.item is float:
                    value = _as_float(value)
            object.__setattr__(self, declared.name, value)
        self.check()

    def check(self) -> None:
        """Raise :class:`OptionError` if a combination of options is not allowed."""

    def exclude(self, *names: str) -> None:
        """Raise :class:`OptionError` if the user gave more than one of these options."""
        given = [f"{{{name}}}" for name in names if name in given_options(self)]
        if len(given) > 1:
            raise OptionError(f"{given[0]} cannot be combined with {given[1]}. Remove one of them")


def _plain(value: Any) -> Any:
    """Convert lists to tuples and paths to text."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return str(value) if isinstance(value, Path) else value


def _as_float(value: Any) -> Any:
    """Convert a number, or each of several numbers, to a float, and leave words unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_as_float, value))
    return float(value) if isinstance(value, int) else value


@dataclass(frozen=True)
class ValueType:
    """Type of an option's value.

    Args:
        item: Type of a single value: bool, int, float or str.
        several: Whether the option accepts several values.
        choices: Allowed values, or None for any value.
    """

    item: type
    several: bool = False
    choices: tuple[Any, ...] | None = None


def value_types(options: type[Options]) -> dict[str, ValueType]:
    """Return the type of every option in a class, derived from the annotations.

    Raises:
        TypeError: If an annotation is not a plain type, a ``Literal``, a tuple of one of these
            (``tuple[int, ...]``), or one of them or None.
    """
    if options not in _VALUE_TYPES:
        hints = get_type_hints(options)
        found = {f.name: _value_type(hints[f.name], spec_of(f), f.name) for f in fields(options)}
        _VALUE_TYPES[options] = found
    return _VALUE_TYPES[options]


#: Cache of :func:`value_types`. Reading annotations takes longer than checking values.
_VALUE_TYPES: dict[type[Options], dict[str, ValueType]] = {}


def _value_type(hint: Any, spec: Spec, name: str) -> ValueType:
    """Return the type of an option.

    Args:
        hint: Annotation of the option.
        spec: Other properties declared for the option.
        name: Name of the option, for the error.

    Raises:
        TypeError: If the annotation has none of the forms that :func:`value_types` lists.
    """
    hint = _main_type(hint, spec)
    several = get_origin(hint) is tuple
    item = _main_type(get_args(hint)[0], spec) if several else hint
    choices = spec.choices
    if get_origin(item) is Literal:
        choices = get_args(item)
        item = type(choices[0])
    if item not in (bool, int, float, str):
        raise TypeError(f"the option {name} has the unknown type {hint}")
    return ValueType(item, several, choices)


def _main_type(hint: Any, spec: Spec) -> Any:
    """Return the member of a union that is neither None nor the type of allowed words."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    others = (type(None), str) if spec.words else (type(None),)
    (main,) = (part for part in get_args(hint) if part not in others)
    return main


def spec_of(declared: Field) -> Spec:
    """Return the properties that :func:`option` has declared for a field."""
    return declared.metadata["spec"]


def flag_names(options: type[Options]) -> dict[str, str]:
    """Return the command-line name of every option in a class, by field."""
    named = {}
    for declared in fields(options):
        spec = spec_of(declared)
        shown = spec.metavar if isinstance(spec.metavar, str) else declared.name.upper()
        flag = spec.flag or "--" + declared.name.replace("_", "-")
        named[declared.name] = shown if spec.positional else flag
    return named


def _check_value(options: type[Options], declared: Field, value: Any) -> None:
    """Raise OptionError unless a value has the type, choices and range of its option."""
    kind, spec, name = value_types(options)[declared.name], spec_of(declared), declared.name
    if kind.several is not isinstance(value, tuple):
        wanted = "several values" if kind.several else "a single value"
        raise OptionError(f"{{{name}}} must be {wanted}", value)
    if isinstance(spec.metavar, tuple) and len(value) != len(spec.metavar):
        words = " ".join(spec.metavar)
        raise OptionError(f"{{{name}}} must be {len(spec.metavar)} values ({words})", value)
    for item in value if kind.several else (value,):
        _check_item(kind, spec, name, item)


def _check_item(kind: ValueType, spec: Spec, name: str, item: Any) -> None:
    """Raise OptionError unless one value has the type, choices and range of its option."""
    if isinstance(item, str) and item in spec.words:
        return
    if not fits(item, kind.item):
        if item != spec.alone:
            wanted = " or ".join([describe(kind.item), *map(repr, spec.words)])
            raise OptionError(f"{{{name}}} must be {wanted}", item)
    elif kind.choices is not None and item not in kind.choices:
        known = ", ".join(map(str, kind.choices))
        raise OptionError(f"{{{name}}} must be one of {known}", item)
    elif isinstance(item, int | float) and kind.item is not bool:
        _check_range(spec, name, item)
    problem = None if spec.problem is None else spec.problem(item)
    if problem is not None:
        raise OptionError(f"{{{name}}} {problem}", item)


def _check_range(spec: Spec, name: str, number: float) -> None:
    """Raise OptionError if a number is not finite or outside the range of its option."""
    least, above, most = spec.least, spec.above, spec.most
    bounds = [] if least is None else [f"at least {least:,}"]
    bounds += [] if above is None else [f"above {above:,}"]
    bounds += [] if most is None else [f"at most {most:,}"]
    low = (least is not None and number < least) or (above is not None and number <= above)
    high = most is not None and number > most
    if low or high or not math.isfinite(number):
        raise OptionError(f"{{{name}}} must be {' and '.join(bounds) or 'finite'}", number)


def chosen(kind: type[D], options: Any) -> D:
    """Build a dataclass from the options that have the same names as its fields.

    Args:
        kind: Dataclass to build. Fields without an option keep their defaults.
        options: Options of a command.
    """
    names = [known.name for known in fields(kind) if hasattr(options, known.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names})


def given_options(options: Options) -> dict[str, object]:
    """Return the options that differ from their defaults, by the name of their field."""
    values = {declared.name: getattr(options, declared.name) for declared in fields(options)}
    return {d.name: values[d.name] for d in fields(options) if values[d.name] != d.default}


def help_of(declared: Field) -> str:
    """Return an option's help text with its default, unless this is None, False or empty."""
    default, spec = declared.default, spec_of(declared)
    if default is None and spec.none is not None:
        default = spec.none
    if default is MISSING or default in (None, False, ()):
        return spec.help
    values = default if isinstance(default, tuple) else (default,)
    shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{spec.help} (default: {shown})"


def python_call(options: type[T], function: Callable[[T], R]) -> Callable[..., R]:
    """Return a Python function whose arguments are the options of a command.

    Positional options may be passed by position, and all others only by keyword. Alternatively, the
    function accepts a single object of the class ``options``.

    Args:
        options: Class of the options.
        function: Function that accepts an object of this class.
    """
    named = sorted(fields(options), key=lambda declared: not spec_of(declared).positional)
    parameters = inspect.Signature([_parameter(declared) for declared in named])

    def call(*args: Any, **given: Any) -> R:
        if len(args) == 1 and isinstance(args[0], options) and not given:
            return function(args[0])
        for name in given.keys() - parameters.parameters.keys():
            near = difflib.get_close_matches(name, parameters.parameters, 1)
            meant = f". Did you mean {near[0]}?" if near else ""
            raise TypeError(f"{function.__name__}() has no argument {name}{meant}")
        return function(options(**parameters.bind(*args, **given).arguments))

    call.__name__ = call.__qualname__ = function.__name__
    lines = [inspect.cleandoc(options.__doc__ or ""), "", "Args:"]
    lines += [f"    {declared.name}: {help_of(declared)}." for declared in named]
    call.__doc__ = "\n".join(lines)
    call.__signature__ = parameters  # type: ignore[attr-defined]
    return call


def _parameter(declared: Field) -> inspect.Parameter:
    """Convert an option to a parameter of a Python function."""
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD
        if spec_of(declared).positional
        else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if declared.default is MISSING else declared.default,
        annotation=declared.type,
    )
