"""The installed package holds every file of the source tree."""

from __future__ import annotations

import ast


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
