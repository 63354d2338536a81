"""Modules of ``--import``: found, refused in one line, passed on, and never imported by files."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from helpers.own_parts import registries_restored

from sce_video.registry import own_parts as registered_parts
from sce_video.utils.command import command
from sce_video.utils.own_parts import (
    OwnModules,
    OwnPartsError,
    advise_imports,
    named_modules,
    own_imports,
    own_modules,
)

PART = """
from sce_video.registry import TRANSFORMS

@TRANSFORMS.register_module()
class {name}:
    def __call__(self, results):
        return results
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Enter a folder outside the Python path, with modules that each register a transform."""
    (tmp_path / "part_one.py").write_text(PART.format(name="PartOne"))
    (tmp_path / "part_two.py").write_text("import part_three\n")
    (tmp_path / "part_three.py").write_text(PART.format(name="PartThree"))
    monkeypatch.chdir(tmp_path)
    with registries_restored(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("option", [["--import", "part_one"], ["--import=part_one"]])
def test_a_module_of_the_current_folder_is_imported_and_its_option_taken(folder, option):
    with own_imports(["videos", *option, "--out", "run"]) as words:
        assert words == ["videos", "--out", "run"]
        assert own_modules().named == ("part_one",)
    assert ("transform", "PartOne", "part_one") in {
        (part.kind, part.name, part.module) for part in registered_parts()
    }


def test_several_modules_are_named_by_those_of_the_command_line(folder):
    with own_imports(["--import", "part_one", "--import", "part_two"]):
        # part_two imports part_three, so it is enough for both.
        assert named_modules(["part_three", "part_one"]) == ["part_one", "part_two"]
        assert named_modules(["elsewhere"]) == ["part_one", "part_two", "elsewhere"]
    assert named_modules(["__main__", "part_three"]) == ["part_three"]


def test_a_folder_of_the_python_path_comes_before_the_current_one(folder, monkeypatch):
    other = folder / "other"
    other.mkdir()
    (other / "part_one.py").write_text(PART.format(name="OfAnotherFolder"))
    monkeypatch.syspath_prepend(str(other))
    with own_imports(["--import", "part_one"]):
        assert "OfAnotherFolder" in {part.name for part in registered_parts()}


def test_processes_that_a_command_starts_import_the_same_modules(folder, repo):
    code = "from sce_video.utils.own_parts import own_imports, own_modules\n"
    code += "with own_imports([]):\n    print(*own_modules().named)"
    run = [sys.executable, "-P", "-c", code]
    with own_imports(["--import", "part_two"]):
        env = {**os.environ, "PYTHONPATH": str(repo)}
        done = subprocess.run(run, env=env, capture_output=True, text=True)
    assert done.stdout == "part_two\n", done.stderr
    assert "SCE_VIDEO_IMPORT" not in os.environ


def test_another_process_needs_the_named_modules_only():
    OwnModules((), ("module_of_a_notebook",)).load()
    with pytest.raises(ImportError, match="no_such_part"):
        OwnModules(("no_such_part",), ()).load()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_part", r"--import no_such_part: there is no module no_such_part on the Python"),
        ("part_one.inside", r"there is no module part_one.inside on the Python path"),
        ("part_one.py", r"needs the name of a module, got 'part_one.py'. Write --import part_one"),
        ("", r"--import needs the name of a module, got ''"),
        ("../part_one", r"--import needs the name of a module"),
        ("empty", r"--import empty: this module registers nothing"),
        ("failing", r"it raises ZeroDivisionError: one line \(.*failing\.py, line 2\)"),
        ("leaving", r"it raises SystemExit: 3 \(.*leaving\.py, line 1\)"),
        ("broken", r"it raises SyntaxError: .* \(.*broken\.py, line 1\)"),
        ("lacking", r"it raises ModuleNotFoundError: No module named 'no_such_package'"),
        ("taken", r"taken registers the transform 'OpenVideo', but sce_video\.datasets\."),
    ],
)
def test_a_wrong_module_is_one_line(folder, capsys, name, message):
    (folder / "empty.py").write_text("")
    (folder / "failing.py").write_text("\nraise ZeroDivisionError('one line\\nand more')")
    (folder / "leaving.py").write_text("raise SystemExit(3)")
    (folder / "broken.py").write_text("def")
    (folder / "lacking.py").write_text("import no_such_package")
    (folder / "taken.py").write_text(PART.format(name="OpenVideo"))
    with pytest.raises(OwnPartsError, match=message), own_imports(["--import", name]):
        pass
    status = command(lambda argv: 0)(["--import", name])
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and len(lines) == 1


def test_a_missing_module_needs_no_library(tmp_path, repo):
    """The error appears within a fraction of a second."""
    code = "import sys\nfrom sce_video.commands.main import main\n"
    code += "status = main(['verify', 'v', '--import', 'no_such_part'])\n"
    code += "assert status == 2 and not {'torch', 'numpy', 'mmengine'} & {*sys.modules}"
    env = {**os.environ, "PYTHONPATH": str(repo)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("recorded", "advice"),
    [
        (["part_one"], ""),
        (["part_one", "part_two"], "The training used --import part_two. If"),
        (["part_one.nets"], ""),  # its package has been imported
        (["a; rm -rf ~", "../x", 3, None, "x" * 500], ""),
        ("part_two", ""),
        (None, ""),
        ({"part_two": 1}, ""),
    ],
)
def test_what_a_file_records_is_only_shown(folder, recorded, advice):
    with own_imports(["--import", "part_one"]):
        assert advice in advise_imports(recorded)
        assert bool(advise_imports(recorded)) == bool(advice)
    assert "part_two" not in sys.modules


def test_a_run_json_imports_nothing(folder, capsys):
    """An untrusted run names a module in the current folder."""
    from sce_video.commands.main import main

    (folder / "canary.py").write_text("open('sung', 'w')")
    (folder / "run").mkdir()
    plan = {"recipe": "own", "facts": [], "choices": [], "length": "", "remarks": []}
    environment = {"imports": ["canary"], "foreign_classes": ["Canary of canary"]}
    described = {"kind": "run", "format": 1, "command": "pretrain", "request": {}}
    described |= {"plan": plan, "config": {}, "environment": environment, "state": "finished"}
    (folder / "run/run.json").write_text(json.dumps(described))
    (folder / "run/config.py").write_text("")
    assert main(["pretrain", "--out", "run", "--resume"]) == 2
    assert "The training used --import canary. If you trust this code" in capsys.readouterr().err
    assert not (folder / "sung").exists() and "canary" not in sys.modules
