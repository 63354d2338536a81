"""The command line of a class of options (:mod:`sce_video.options.declare`)."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from sce_video.options.declare import (
    OptionError,
    Options,
    Spec,
    flag_names,
    help_of,
    spec_of,
    value_types,
)

T = TypeVar("T", bound=Options)


class Parser(argparse.ArgumentParser):
    """A parser whose one-line errors suggest the option that the user probably meant."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Return the arguments, or exit with status 2 if there is an unknown one."""
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            word = next((word for word in rest if word.startswith("-")), rest[0]).partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, 1)
            problem = "there is no option" if word.startswith("-") else "unexpected argument"
            self.error(f"{problem} {word}{f'. Did you mean {near[0]}?' if near else ''}")
        return given

    def add_import(self) -> None:
        """Add ``--import`` to the help. Its modules are imported before the line is parsed."""
        self.add_argument(
            "--import",
            metavar="MODULE",
            action="append",
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help=(
                "Python module to import first, which registers your own methods, networks or "
                "other classes. The option can be repeated (docs/extend.md)"
            ),
        )

    def error(self, message: str) -> Any:
        """Print the message and exit. If an argument is missing, print the usage first.

        Raises:
            ValueError: If the value of an option is not allowed.
        """
        found = re.fullmatch(r"argument (\S+): (must .+)", message, re.DOTALL)
        if found:
            raise ValueError(f"{found[1]} {found[2]}")
        if message.startswith("the following arguments are required"):
            self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help)\n")


def parse(options: type[T], argv: Sequence[str] | None = None) -> T:
    """Parse a command line into an object of a class of options.

    Args:
        options: Class of the options. Its docstring is the description in the help.
        argv: Words of the command line; None for ``sys.argv[1:]``.

    Raises:
        ValueError: If a value or a combination of options is not allowed. The message names the
            options as flags.
    """
    return read(parser_of(options), options, argv)


def read(
    parser: Parser,
    options: type[T],
    argv: Sequence[str] | None,
    stated: Mapping[str, Any] | None = None,
) -> T:
    """Parse a command line like :func:`parse`, with a parser from :func:`parser_of`.

    Args:
        parser: Parser of the options.
        options: Class of the options.
        argv: Words of the command line; None for ``sys.argv[1:]``.
        stated: Values of the options that the command line does not have.
    """
    given = vars(parser.parse_args(argv))
    try:
        return options(**{**(stated or {}), **given})
    except OptionError as error:
        raise ValueError(error.naming(flag_names(options))) from None


def parser_of(
    options: type[Options], prog: str | None = None, left_out: Collection[str] = ()
) -> Parser:
    """Build the parser for a class of options.

    Args:
        options: Class of the options.
        prog: Name of the command in the usage and in errors; None for the name of the process.
        left_out: Options that the command line does not have.
    """
    shown = [declared for declared in fields(options) if declared.name not in left_out]
    examples = "\n".join(["examples:", *(f"  {line}" for line in options.examples)])
    parser = Parser(
        prog=prog,
        usage=f"%(prog)s {_usage(options, shown)}",
        description=inspect.cleandoc(options.__doc__ or ""),
        epilog=f"{examples}\n\n{options.more}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,  # the dataclass contains the defaults
    )
    parser.add_argument("-h", "--help", action="help", help="show this message and exit")
    parser.add_import()
    groups: dict[str | None, Any] = {None: parser}
    for declared in shown:
        spec = spec_of(declared)
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group)
        _add(groups[spec.group], options, declared)
    return parser


#: Placeholders for numbers in the help. For text, argparse uses the name of the option.
_PLACEHOLDERS = {int: "N", float: "X"}


def _add(container: Any, options: type[Options], declared: Field) -> None:
    """Add an option to a parser or to one of its groups."""
    kind, spec = value_types(options)[declared.name], spec_of(declared)
    required = declared.default is MISSING
    settings: dict[str, Any] = {"help": help_of(declared).replace("%", "%%")}
    if kind.item is bool:
        switch = declared.default is False
        settings["action"] = "store_true" if switch else argparse.BooleanOptionalAction
    else:
        settings |= {
            "type": _reader(kind.item, spec),
            "choices": kind.choices,
            "metavar": spec.metavar or (None if kind.choices else _PLACEHOLDERS.get(kind.item)),
        }
        if isinstance(spec.metavar, tuple):
            settings["nargs"] = len(spec.metavar)
        elif kind.several:
            settings["nargs"] = "+" if required or not spec.positional else "*"
            if not spec.positional:
                settings["action"] = "extend"  # --track wandb --track mlflow sets both
        elif spec.alone is not None or (spec.positional and not required):
            settings |= {"nargs": "?", "const": spec.alone}
    if spec.positional:
        container.add_argument(declared.name, **settings)
    else:
        names = [flag_names(options)[declared.name]]
        container.add_argument(*names, dest=declared.name, required=required, **settings)


def _usage(options: type[Options], shown: Sequence[Field]) -> str:
    """Return the usage line after the command: positional and required options, and the rest."""
    words = []
    for declared in sorted(shown, key=lambda declared: not spec_of(declared).positional):
        spec, name = spec_of(declared), flag_names(options)[declared.name]
        required = declared.default is MISSING
        if spec.positional:
            words.append(name if required else f"[{name}]")
        elif required:
            words += [name, str(spec.metavar or declared.name.upper())]
    return " ".join([*words, "[options]"])


def _reader(item: type, spec: Spec) -> Callable[[str], Any]:
    """Return the function that converts a word of the command line to a value.

    Args:
        item: Type of the value.
        spec: Properties of the option, with the words that stand for None or for themselves.
    """
    words = [*spec.words, *(() if spec.none is None else (spec.none,))]

    def read(text: str) -> Any:
        if text in words or item is str:
            return None if text == spec.none else text
        try:
            return item(text)
        except ValueError:
            what = "a whole number" if item is int else "a number"
            what = " or ".join([what, *map(repr, words)])
            raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None

    return read
