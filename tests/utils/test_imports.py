"""Every module of a package is imported, and only those directly inside."""

from __future__ import annotations

import sys

from sce_video.utils.imports import import_submodules


def test_modules_and_packages_directly_inside_are_imported(tmp_path, monkeypatch):
    package = tmp_path / "package_of_the_test"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "first", "second", "inner/__init__", "inner/deep"):
        (package / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    try:
        import_submodules("package_of_the_test", [str(package)])
        imported = {name for name in sys.modules if name.startswith("package_of_the_test.")}
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "package_of_the_test"]:
            del sys.modules[name]
    assert imported == {f"package_of_the_test.{name}" for name in ("first", "second", "inner")}
