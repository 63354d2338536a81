"""mkdocs hook that generates two reference pages from the code while the site is built.

``api/commands.md`` lists every option of every command, from the command's own parser.
``api/components.md`` lists every name that ``type=`` accepts in a config, from the registries.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from mkdocs.structure.files import File
from mmengine.registry import Registry

from sce_video import registry
from sce_video.commands.main import GROUPS
from sce_video.commands.main import main as front_door


def on_files(files: Any, config: Any) -> Any:
    """Add both pages."""
    for name, lines in (("commands", command_page()), ("components", component_page())):
        files.append(File.generated(config, f"api/{name}.md", content="\n".join(lines)))
    return files


def command_page() -> Iterator[str]:
    """Yield the lines of the page about commands and options."""
    yield "# Commands\n\nWhat `sce-video COMMAND --help` prints, of all commands."
    for group, commands in GROUPS.items():
        yield f"\n## {group.capitalize()}"
        for name in commands:
            parser = parser_of(name)
            description = plain(parser.description or "")
            yield f"\n### sce-video {name}\n\n{description}\n"
            yield "| option | what | default |\n|---|---|---|"
            yield from options(parser)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command with all its options."""
    found: list[argparse.ArgumentParser] = []

    def end(parser: argparse.ArgumentParser, *_: Any) -> None:
        found.append(parser)
        raise SystemExit

    with (
        mock.patch.object(argparse.ArgumentParser, "print_help", end),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        front_door([command, "--help"])
    return found[0]


def options(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Yield the rows of a table of options, including the options of sub-commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options(below, f"{name} ")
        elif action.dest != "help":
            values = (
                ""
                if action.nargs == 0
                else f" {parser._get_formatter()._format_args(action, action.dest.upper())}"
            )
            flags = "<br>".join(f"`{before}{flag}{values}`" for flag in action.option_strings)
            text = (action.help or "") % {"default": action.default, "prog": parser.prog}
            given = action.default not in (None, False, argparse.SUPPRESS, [])
            default = f"`{action.default}`" if given else ""
            shown = flags or f"`{before}{values.strip()}`"
            yield f"| {cell(shown)} | {plain(text)} | {cell(default)} |"


def component_page() -> Iterator[str]:
    """Yield the lines of the page about registered components."""
    yield "# What a config names\n\nThe names that `type=` takes, with the arguments of each."
    for kind, of_kind in sorted(vars(registry).items()):
        if not isinstance(of_kind, Registry):
            continue
        of_kind.import_from_location()
        if not of_kind.module_dict:
            continue
        yield f"\n## {kind}\n\n| type | arguments | |\n|---|---|---|"
        for name, component in sorted(of_kind.module_dict.items()):
            first = (inspect.getdoc(component) or "").partition("\n\n")[0]
            text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", first)
            path = f"{component.__module__}.{component.__qualname__}"
            link = f'<autoref optional identifier="{path}">`{name}`</autoref>'
            yield f"| {link} | {cell(arguments(component))} | {plain(text)} |"


def arguments(component: Any) -> str:
    """Return the names and defaults of a component's arguments."""
    shown = []
    for value in inspect.signature(component).parameters.values():
        default = "" if value.default is inspect.Parameter.empty else f"={value.default!r:.40}"
        shown.append(f"`{value.name}{default}`")
    return ", ".join(shown)


def plain(text: str) -> str:
    """Return a sentence in which only code is Markdown or HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\[\]*_])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return cell("".join(parts))


def cell(text: str) -> str:
    """Return a text in one line of a table."""
    return " ".join(text.replace("|", "\\|").split())
