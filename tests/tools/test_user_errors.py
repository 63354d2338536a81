"""Every tool of tools/: help, and a user's mistakes as one line with one prefix and one status."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
#: Without those in dev/, which only maintainers run.
ALL = sorted(path.name for path in TOOLS.glob("*.py"))
#: These do their whole work without an argument.
RUN_WITHOUT_ARGUMENTS = {"quickstart.py"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, TOOLS / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return sys.modules.get(module.main.__module__, module)  # of sce_video.commands, or the tool


class _CapturedError(Exception):
    pass


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch):
    """Returns the parsers of a tool, one per sub-command, with the words that lead to each."""

    def capture(module: ModuleType) -> list[tuple[list[str], argparse.ArgumentParser]]:
        found: list[argparse.ArgumentParser] = []

        def stop(parser: argparse.ArgumentParser, *_: object) -> None:
            found.append(parser)
            raise _CapturedError

        with monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
            with pytest.raises(_CapturedError):
                module.main([])
        (parser,) = found
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                return [([name], sub) for name, sub in action.choices.items()]
        return [([], parser)]

    return capture


def filled(parser: argparse.ArgumentParser, value: str) -> list[str]:
    """A command line with this value for every positional and every required option."""
    groups = [g._group_actions for g in parser._mutually_exclusive_groups if g.required]
    chosen = [actions[-1] for actions in groups]
    words: list[str] = []
    for action in parser._actions:
        needed = action.required or action in chosen or action.nargs == "?"
        if (not needed and action.nargs not in ("+",)) or (not needed and action.option_strings):
            continue
        given = str(action.choices[0]) if action.choices else value
        count = 2 if action.nargs == "+" else 1
        words += [*action.option_strings[-1:], *[given] * count]
    return words


@pytest.mark.parametrize("name", ALL)
def test_help_and_usage(name, capsys):
    module = load(name)
    for words, status in (["--help"], 0), ([], 2):
        if words or name not in RUN_WITHOUT_ARGUMENTS:
            with pytest.raises(SystemExit) as stop:
                module.main(words)
            assert stop.value.code == status
            assert "usage: " in "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", ["missing", "file"])
@pytest.mark.parametrize("name", sorted(set(ALL) - RUN_WITHOUT_ARGUMENTS))
def test_a_wrong_path_is_one_line(name, kind, parsers, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(TOOLS / name)])
    (tmp_path / "a_file.txt").write_text("nothing of use\n")
    value = {"missing": "no_such_path", "file": "a_file.txt"}[kind]
    module = load(name)
    for lead, parser in parsers(module):
        try:
            status = module.main([*lead, *filled(parser, str(tmp_path / value))])
        except SystemExit as stop:  # of argparse
            status = stop.code
        error = capsys.readouterr().err
        assert status == 2, error
        prefix = f"{Path(name).name}: error: "
        assert sum(line.startswith(prefix) for line in error.splitlines()) == 1, error
        assert "Traceback" not in error
