"""What an installation must have, hold and be able to say before it works."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import sce_video
from sce_video.dependencies import check_dependencies, dependency_problems
from sce_video.runs.machine_checks import FAILURE, check_python

GOOD = {
    "torch": "2.13.0",
    "mmengine": "0.10.7",
    "mmcv-lite": "2.0.1",
    "mmaction2": "1.1.0",
    "av": "18.1.0",
    "opencv-python": "5.0.0",
}


def problems(modules=("mmaction.models.localizers.drn",), **changes):
    installed = {**GOOD, **{name.replace("_", "-"): v for name, v in changes.items()}}

    def version_of(*names):
        found = [installed[n] for n in names if installed.get(n)]
        return Version(found[0]) if found else None

    return dependency_problems(version_of, lambda name: name in modules)


def test_the_tried_set_has_no_problem():
    assert problems() == []
    assert problems(mmaction2=None, mmcv_lite=None) == []  # only their own components need them
    check_dependencies()
    assert sce_video.__version__


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(torch=None), ["torch is not installed", "torch==2.13.0"]),
        (dict(torch="2.5.1"), ["torch 2.5.1 is older", "torch==2.13.0"]),
        (dict(mmcv_lite=None), ["needs mmcv", "none is installed", "mmcv-lite==2.0.1"]),
        (dict(mmcv_lite="2.1.0"), ["mmcv", "2.1.0", "below 2.1.0", "mmcv-lite==2.0.1"]),
        (dict(mmcv_lite=None, mmcv="2.2.0"), ["2.2.0", "mmcv-lite==2.0.1"]),
        (dict(mmengine=None), ["mmengine is not installed", "mmengine==0.10.7"]),
        (dict(mmaction2="1.0.0"), ["mmaction2 1.0.0 is older"]),
        (dict(av=None), ["PyAV is not installed"]),
    ],
)
def test_each_problem_names_the_fix(changes, words):
    (problem,) = problems(**changes)
    assert all(word in problem for word in [*words, "pip install"])


def test_the_broken_wheel_of_mmaction2_is_told_from_the_source():
    (problem,) = problems(modules=(), mmaction2="1.2.0")
    assert "drn" in problem and "mmaction2==1.1.0" in problem
    assert problems(mmaction2="1.2.0") == []
    assert problems(mmaction2="1.2.0", mmcv_lite="2.1.0") == []


def test_the_fork_of_mmengine_is_accepted():
    assert problems(mmengine=None, onedl_mmengine="0.10.12") == []


def test_torch_2_9_warns(monkeypatch):
    monkeypatch.setattr("sce_video.dependencies.dependency_problems", lambda: [])
    monkeypatch.setattr("sce_video.dependencies.installed_version", lambda name: Version("2.9.1"))
    with pytest.warns(UserWarning, match=r"2\.10"):
        check_dependencies()


def test_problems_become_one_import_error(monkeypatch):
    monkeypatch.setattr("sce_video.dependencies.dependency_problems", lambda: ["a: fix", "b: fix"])
    with pytest.raises(ImportError, match=r"- a: fix\n- b: fix"):
        check_dependencies()


@pytest.mark.parametrize(
    "start", [["-m", "sce_video", "doctor"], ["-c", "import sce_video.registry"]]
)
def test_the_command_prints_the_problems_without_a_traceback(start, tmp_path):
    old = tmp_path / "mmaction2-1.0.0.dist-info"  # found before the installed one
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: mmaction2\nVersion: 1.0.0\n")
    paths = os.pathsep.join([str(tmp_path), str(Path(sce_video.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, *start],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 1
    assert "- mmaction2 1.0.0 is older than 1.1. Run pip install" in done.stderr
    assert ("Traceback" in done.stderr) == (start[0] == "-c")


def test_importing_the_package_imports_little():
    """Neither torch nor the standard library's parsers of metadata."""
    code = "import sys, sce_video; sys.exit('email' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_every_data_file_is_declared_in_setup(repo):
    tree = ast.parse((repo / "setup.py").read_text(encoding="utf-8"))
    (declared,) = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "package_data"
    ]
    packaged = {
        path
        for package, patterns in declared.items()
        for pattern in patterns
        for path in (repo / package.replace(".", "/")).glob(pattern)
    }
    data_files = {
        path
        for path in (repo / "sce_video").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert data_files == packaged


def test_the_built_package_carries_recipes_and_tools(repo, tmp_path):
    """Where ``sce_video.engine.recipes`` looks for them, and where OpenMMLab's packages do."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=repo, check=True, capture_output=True)
    kinds = ("configs/**/*.py", "configs/**/*.yaml", "tools/**/*.py", "tools/**/*.sh")
    sources = {p.relative_to(repo): p for kind in kinds for p in repo.glob(kind)}
    carried = tmp_path / "sce_video/.mim"
    assert {p.relative_to(carried) for p in carried.rglob("*") if p.is_file()} == set(sources)
    assert all((carried / name).read_bytes() == p.read_bytes() for name, p in sources.items())
    assert not (repo / "sce_video/.mim").exists()


PYTHON, TORCH = (3, 11), "2.6"


def test_every_statement_is_the_same(repo):
    setup = (repo / "setup.py").read_text(encoding="utf-8")
    assert f'python_requires=">={PYTHON[0]}.{PYTHON[1]}"' in setup and f'"torch>={TORCH}"' in setup
    settings = (repo / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{PYTHON[0]}{PYTHON[1]}"' in settings
    page = (repo / "docs/performance.md").read_text(encoding="utf-8")
    assert re.search(rf"Python {PYTHON[0]}\.{PYTHON[1]} or later, torch {TORCH} or later", page)


def test_older_ones_are_refused():
    assert check_python((PYTHON[0], PYTHON[1] - 1)).level == FAILURE
    assert check_python(PYTHON).level != FAILURE

    def problems(torch):
        return " ".join(dependency_problems(lambda *names: Version(torch), lambda name: True))

    assert f"torch 2.5.1 is older than {TORCH}" in problems("2.5.1")
    assert "is older than 2." not in problems(TORCH).replace("mmaction2", "")


def test_transformers_is_the_one_that_was_tested(repo):
    """What its configs can make it load or import was looked for in that version."""
    setup = (repo / "setup.py").read_text(encoding="utf-8")
    pinned = (repo / "requirements/constraints.txt").read_text(encoding="utf-8")
    tested = re.search(r"^transformers==(\d+\.\d+)\.", pinned, re.MULTILINE)[1]
    assert set(re.findall(r'"transformers([^"]*)"', setup)) == {f">={tested}"}


def test_pkg_resources_is_not_needed():
    """setuptools 81 removed it; mmengine imports it in functions that this package avoids."""
    code = "import sys; sys.modules['pkg_resources'] = None; import sce_video.runs.launch"
    subprocess.run([sys.executable, "-c", code], check=True)
