"""Recipes of the user's own, by the command that fills them in."""

from __future__ import annotations

import pytest

from sce_video.engine.recipes import (
    FINETUNING,
    find_recipe,
    finetunings,
    methods,
    recipe_names,
    register_recipe,
)
from sce_video.utils import own_parts


@pytest.fixture(autouse=True)
def no_own_recipes():
    before = dict(own_parts.own_recipes)
    own_parts.own_recipes.clear()
    yield
    own_parts.own_recipes.clear()
    own_parts.own_recipes.update(before)


def test_each_command_fills_in_its_own_recipes(tmp_path):
    (tmp_path / "r.py").write_text("")
    shipped = methods()
    assert finetunings() == [FINETUNING]
    register_recipe("mine", tmp_path / "r.py")
    register_recipe("tuned", tmp_path / "r.py", command="finetune")
    register_recipe("tuned", tmp_path / "r.py", command="finetune")  # the module is imported again
    assert methods() == shipped | {"mine": "mine"}
    assert finetunings() == [FINETUNING, "tuned"]
    assert {"mine", "tuned", FINETUNING} <= recipe_names().keys()
    assert find_recipe("tuned") == tmp_path / "r.py"


@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("mine", "embed", "for 'embed', but recipes work only with pretrain and finetune"),
        ("tuned", "pretrain", "there is already a recipe 'tuned'"),
        ("sce", "pretrain", "there is already a recipe 'sce'"),
        (FINETUNING, "finetune", f"there is already a recipe '{FINETUNING}'"),
        ("My", "finetune", "the name of a recipe may contain only lower-case letters"),
    ],
)
def test_a_recipe_that_cannot_be_registered(tmp_path, name, command, message):
    (tmp_path / "r.py").write_text("")
    register_recipe("tuned", tmp_path / "r.py", command="finetune")
    with pytest.raises(ValueError, match=message):
        register_recipe(name, tmp_path / "r.py", command)
