"""A name of the package cannot be replaced by a part of the user's own."""

from __future__ import annotations

import pytest
from helpers.own_parts import registries_restored
from mmengine.config import Config
from torch import nn

from sce_video.engine.config.check import check_config, registered
from sce_video.engine.config.snapshot import foreign_classes, imports_of
from sce_video.engine.weights import checked_backbone, checked_parts
from sce_video.registry import HOOKS, METRICS, MODELS, READERS, NameTakenError, own_parts


@pytest.fixture(autouse=True)
def restored(tmp_path):
    with registries_restored(tmp_path):
        yield


def part(name, module="my_parts.nets", parent=nn.Module):
    """A class as a module of a user's own defines it."""
    return type(name, (parent,), {"__module__": module, "__init__": lambda self: None})


@pytest.mark.parametrize(
    ("registry", "name", "holder"),
    [
        (MODELS, "SimCLR", "sce_video.models.algorithms.simclr"),
        (HOOKS, "EMAHook", "mmengine.hooks.ema_hook"),  # of mmengine
        (METRICS, "KNN", "sce_video.evaluation.metrics"),
        (READERS, "av", "sce_video.datasets.readers"),
    ],
)
def test_a_taken_name_is_refused(registry, name, holder):
    before, parts = registry.get(name), own_parts()  # other tests may have registered some
    with pytest.raises(NameTakenError, match=rf"registers the .* '{name}', but {holder}") as e:
        registry.register_module(name, module=part("Mine"))
    assert f"type='my_parts.nets.{name}'" in str(e.value)
    assert registry.get(name) is before and own_parts() == parts


def test_a_forced_name_is_found_by_its_module_alone():
    shipped, mine = MODELS.get("ResNet2d"), part("ResNet2d")
    assert MODELS.register_module(force=True)(mine) is mine
    assert MODELS.get("my_parts.nets.ResNet2d") is mine
    assert MODELS.get("sce_video.ResNet2d") is shipped
    with pytest.raises(NameTakenError, match=r"Write type='my_parts.nets.ResNet2d' or type='sce"):
        MODELS.build({"type": "ResNet2d"})
    config = {"type": "my_parts.nets.ResNet2d"}
    assert isinstance(MODELS.build(config), mine)
    assert registered(config["type"]) == [mine] and registered("sce_video.ResNet2d") == [shipped]
    assert checked_backbone(config) == config
    assert foreign_classes({"model": {"backbone": config}}) == ["ResNet2d of my_parts.nets"]
    assert imports_of({"model": {"backbone": config}}) == ["my_parts.nets"]
    assert foreign_classes({"model": {"backbone": {"type": "sce_video.ResNet2d"}}}) == []


def test_a_forced_name_of_mmengine_names_its_scope():
    HOOKS.register_module(force=True, module=part("EMAHook"))
    with pytest.raises(NameTakenError, match="or type='mmengine.EMAHook'"):
        HOOKS.get("EMAHook")


def test_a_module_may_register_its_part_again_by_force():
    """As a cell of a notebook that is run twice."""
    for _ in range(2):
        mine = part("MyNetwork")
        MODELS.register_module(force=True, module=mine)
        assert MODELS.get("MyNetwork") is mine
    with pytest.raises(NameTakenError, match="my_parts.nets has already registered this name"):
        MODELS.register_module(module=part("MyNetwork", "other_parts"))


def test_several_names_are_registered():
    mine = part("MyNetwork")
    MODELS.register_module(["OneName", "OtherName"], module=mine)
    assert MODELS.get("OneName") is MODELS.get("sce_video.OtherName") is mine


def test_a_config_may_name_a_class_with_its_module():
    MODELS.register_module(force=True, module=part("SimCLR"))
    check_config(Config({"model": {"type": "my_parts.nets.SimCLR"}}))
    with pytest.raises(ValueError, match="nothing is registered as 'my_parts.nets.Unknown'"):
        check_config(Config({"model": {"backbone": {"type": "my_parts.nets.Unknown"}}}))


def test_own_datasets_and_heads_are_built_for_a_config_that_is_data():
    MODELS.register_module(module=part("MyHead"))
    METRICS.register_module(module=part("MyMetric"))
    node = [{"type": "MyHead"}, {"type": "MyMetric"}]
    assert checked_parts(node) == node
