"""Recipes by name, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import find_recipe, find_sweep, recipe_names


def test_every_recipe_has_a_name_of_its_own(repo):
    folder = repo / "configs"
    files = [
        path
        for path in folder.rglob("*.py")
        if not {"_base_", "sweeps"} & set(path.relative_to(folder).parts)
    ]
    assert sorted(recipe_names().values()) == sorted(files)


def test_a_file_a_path_below_configs_and_a_name_are_found(repo, tmp_path, monkeypatch):
    expected = repo / "configs/sce/sce_r3d18_folder.py"
    own = tmp_path / "sce_r3d18_folder.py"
    own.write_text("a = 1\n")
    monkeypatch.chdir(tmp_path)
    assert find_recipe("configs/sce/sce_r3d18_folder.py") == expected
    assert find_recipe("sce_r3d18_folder") == expected
    assert find_recipe(own) == own
    assert find_recipe("sce_r3d18_folder.py") == Path("sce_r3d18_folder.py")  # the file wins
    assert load_config("sce_r3d18_folder").model.type == "SCE"


@pytest.mark.parametrize("name", ["sce_r3d18_foldr", "configs/sce/sce_r3d18_foldr.py"])
def test_unknown_names_are_refused_with_similar_ones(name):
    with pytest.raises(FileNotFoundError, match=r"no config file at .*sce_r3d18_folder"):
        find_recipe(name)


def test_sweeps_are_found_by_path_and_name(repo, tmp_path, monkeypatch):
    expected = repo / "configs/sweeps/video_lambda.py"
    monkeypatch.chdir(tmp_path)
    for name in (expected, "configs/sweeps/video_lambda.py", "video_lambda", "video_lambda.py"):
        assert find_sweep(name) == expected
    with pytest.raises(FileNotFoundError, match=r"no sweep video_lamda; similar.*video_lambda"):
        find_sweep("video_lamda")
    with pytest.raises(FileNotFoundError, match="no sweep elsewhere/video_lambda.py"):
        find_sweep("elsewhere/video_lambda.py")
