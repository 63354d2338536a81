"""``sce-video prepare``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields

from sce_video.options.command_line import Parser, parser_of, read
from sce_video.options.data_commands import (
    DATA_SETS,
    GENERATED,
    TRANSFER_NAMES,
    DigitsOptions,
    PrepareOptions,
    ToyActionsOptions,
    check_name,
    options_left_out,
)
from sce_video.utils.command import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the dataset whose name comes first, and return 1 if --strict finds a difference."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0].startswith("-"):
        _overview().parse_args(words)
    name, *rest = words
    check_name(name)
    prog = f"{sys.argv[0]} {name}"
    if name in GENERATED:
        return _generate(name, rest, prog)
    parser = parser_of(PrepareOptions, prog, {"name", *options_left_out(name)})
    parser.description = f"Prepare {DATA_SETS[name].about}."
    from sce_video.data_tools.prepare import layout, prepare

    if {"-h", "--help"} & {*rest}:
        parser.epilog = f"ROOT contains the unpacked official downloads:\n{layout(name)}"
    options = read(parser, PrepareOptions, rest, {"name": name})
    result = prepare(options)
    if result.text:
        print(result.text)
    if result.agrees is not False:
        return 0
    note = "" if options.strict else " (only --strict makes this an error)"
    print(f"{name}: numbers differ from the published ones, see the table{note}", file=sys.stderr)
    return int(options.strict)


def _generate(name: str, words: Sequence[str], prog: str) -> int:
    """Generate the dataset, and return 0."""
    from sce_video.data_tools.prepare import prepare_digits, prepare_toy_actions

    if name == "digits":
        result = prepare_digits(read(parser_of(DigitsOptions, prog), DigitsOptions, words))
    else:
        parser = parser_of(ToyActionsOptions, prog)
        result = prepare_toy_actions(read(parser, ToyActionsOptions, words))
    print(result.text)
    return 0


def _overview() -> Parser:
    """Return a parser whose help lists the datasets."""
    others = {declared.name for declared in fields(PrepareOptions)} - {"name", "root"}
    parser = parser_of(PrepareOptions, left_out=others)
    known = {name: item.about for name, item in DATA_SETS.items() if name not in TRANSFER_NAMES}
    about = [f"  {name:<14}  {text}" for name, text in (known | GENERATED).items()]
    transfer = f"  {', '.join(TRANSFER_NAMES[:6])},\n  {', '.join(TRANSFER_NAMES[6:])}"
    parser.description = "\n".join(
        [str(parser.description), "\ndatasets:", *about, f"{transfer}: for transfer with images"]
    )
    return parser
