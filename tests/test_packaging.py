"""The installed package holds every file of the source tree."""

from __future__ import annotations

import ast
import subprocess
import sys


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
