"""The command sce-video: help, dispatch, wrong names."""

from __future__ import annotations

import sys

import pytest

from sce_video.commands.main import COMMANDS, GROUPS, main
from sce_video.version import __version__


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


def test_one_page_of_help_names_every_command(capsys):
    assert main([]) == 0
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in COMMANDS)
    assert all(f"\n{group}:\n" in page for group in GROUPS) and len(page.splitlines()) <= 40


def test_every_command_has_help_under_its_own_name(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"usage: sce-video {name} " in capsys.readouterr().out


def test_unknown_commands_are_refused(capsys):
    assert main(["pretrian", "x"]) == 2
    assert "meant pretrain?" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.strip() == __version__


def test_errors_name_the_command(capsys, tmp_path):
    assert main(["index", str(tmp_path / "none"), "--checkpoint", "x", "--out", "y"]) == 2
    assert capsys.readouterr().err.startswith("sce-video index: error: ")
    assert sys.argv == ["sce-video"]
