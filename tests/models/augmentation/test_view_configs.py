"""The view configs build the augmentations of their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sce_video.engine.config.load import load_config
from sce_video.models.augmentation import named_view
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.registry import MODELS

EXPECTED = {
    "weak": (("weak", 0.5), ("weak", 0.5)),
    "strong": (("strong", 0.5), ("strong", 0.5)),
    "strong_alpha": (("strong-alpha", 0.5), ("strong-alpha", 0.5)),
    "strong_beta": (("strong-beta", 0.5), ("strong-beta", 0.5)),
    "strong_gamma": (("strong-gamma", 0.5), ("strong-gamma", 0.5)),
    "strong_weak": (("strong", 0.5), ("weak", 0.5)),
    "alpha_beta_s0.5": (("strong-alpha", 0.5), ("strong-beta", 0.5)),
    "alpha_beta_s1.0": (("strong-alpha", 1.0), ("strong-beta", 1.0)),
}


def test_every_base_is_expected(repo: Path) -> None:
    assert {path.stem for path in (repo / "configs/_base_/views").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("stem", EXPECTED)
def test_base_builds_the_named_distributions(repo: Path, stem: str) -> None:
    config = load_config(repo / "configs/_base_/views" / f"{stem}.py")
    preprocessor = MODELS.build(config.data_preprocessor)
    assert isinstance(preprocessor, VideoDataPreprocessor)
    assert preprocessor.views == [named_view(*view) for view in EXPECTED[stem]]


def test_a_recipe_inherits_and_overrides_the_views(repo: Path, tmp_path: Path) -> None:
    base = repo / "configs/_base_/views/alpha_beta_s1.0.py"
    recipe = tmp_path / "recipe.py"
    recipe.write_text(f"_base_ = [{str(base)!r}]\ndata_preprocessor = dict(channels_last=True)\n")
    inherited = MODELS.build(load_config(recipe).data_preprocessor)
    assert inherited.channels_last
    assert inherited.views == [named_view("strong-alpha", 1.0), named_view("strong-beta", 1.0)]

    variant = tmp_path / "variant.py"
    variant.write_text(
        f"_base_ = [{str(recipe)!r}]\n"
        "data_preprocessor = dict(views=[dict(name='weak'), dict(name='weak')])\n"
    )
    overridden = MODELS.build(load_config(variant).data_preprocessor)
    assert overridden.channels_last and overridden.views == [named_view("weak")] * 2
