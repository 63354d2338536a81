"""A checkpoint must have the whole backbone."""

import pytest
import torch
from helpers.evaluation_fakes import TinyEncoder
from torch import nn

from sce_video.engine.weights import (
    check_backbone_weights,
    check_classifier_weights,
    check_weights,
    load_backbone,
)


def state(channels=8, extra=()):
    weights = TinyEncoder(channels).state_dict()
    return {**weights, **dict(extra)}


def test_the_right_file_passes_with_or_without_other_weights():
    model = TinyEncoder()
    assert check_backbone_weights(model, {"state_dict": state(), "meta": {}}, "f") == 6
    assert check_backbone_weights(model, state(extra={"projector.0.weight": torch.ones(1)}), "f")
    wrapped = {f"module.{name}": value for name, value in state().items()}
    assert check_backbone_weights(model, {"state_dict": wrapped}, "f") == 6
    older = {name: v for name, v in state().items() if "num_batches" not in name}
    assert check_backbone_weights(model, older, "f") == 6
    assert check_backbone_weights(nn.Linear(2, 2), nn.Linear(2, 2).state_dict(), "f") == 2


def test_nothing_in_common_names_both_sides():
    bare = {name.removeprefix("backbone."): value for name, value in state().items()}
    with pytest.raises(ValueError, match=r"no backbone weight.*'backbone.0.weight'.*'0.weight'"):
        check_backbone_weights(TinyEncoder(), bare, "bare.pth")
    # The target's copy of the backbone does not count.
    target = {f"target.{name}": value for name, value in state().items()}
    with pytest.raises(ValueError, match="no backbone weight"):
        check_backbone_weights(TinyEncoder(), target, "f")


def test_loading_takes_the_backbone_and_nothing_else():
    torch.manual_seed(1)
    source, model = TinyEncoder(), TinyEncoder()
    source.head, model.head = nn.Linear(2, 2), nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {f"module.{name}": value for name, value in source.state_dict().items()}
    assert load_backbone(model, {"state_dict": weights}, "f") == 6
    for name, value in model.state_dict().items():
        expected = source.state_dict() if name.startswith("backbone.") else before
        assert torch.equal(value, expected[name]), name
    with pytest.raises(ValueError, match="f.pth contains a different backbone"):
        load_backbone(model, state(channels=4), "f.pth")


def test_a_classifier_must_be_complete():
    model = TinyEncoder()
    model.cls_head = nn.Linear(8, 3)
    check_classifier_weights(model, {"state_dict": model.state_dict()}, "f")
    with pytest.raises(ValueError, match=r"f\.pth has no classifier \(no cls_head\.weight\)"):
        check_classifier_weights(model, TinyEncoder().state_dict(), "f.pth")
    other = TinyEncoder()
    other.cls_head = nn.Linear(8, 4)
    with pytest.raises(ValueError, match=r"cls_head\.weight \(4, 8\) instead of \(3, 8\)"):
        check_classifier_weights(model, other.state_dict(), "f.pth")


def test_a_deeper_network_without_prefix_is_not_taken_for_a_shallow_one():
    def network(blocks):
        return nn.ModuleDict({"layer1": nn.Sequential(*[nn.Linear(2, 2) for _ in range(blocks)])})

    weights = network(2).state_dict()
    assert check_backbone_weights(network(2), {**weights, "fc.weight": torch.ones(1)}, "f") == 4
    with pytest.raises(ValueError, match=r"2 too many, for example \['layer1\.2"):
        check_backbone_weights(network(2), network(3).state_dict(), "f")


def test_weights_of_another_shape_or_network_are_a_short_message():
    model = TinyEncoder()
    check_weights(model, model.state_dict(), "f", strict=True)
    some = {"backbone.0.weight": model.state_dict()["backbone.0.weight"], "other": torch.ones(1)}
    check_weights(model, some, "f", strict=False)
    with pytest.raises(
        ValueError, match="f contains a different network .*TinyEncoder .*6 missing"
    ):
        check_weights(model, some, "f", strict=True)
    for wrong in (torch.ones(3, 1), "text"):
        with pytest.raises(
            ValueError, match=r"1 of a different shape, for example \['backbone\.0\.weight"
        ):
            check_weights(model, {"backbone.0.weight": wrong}, "f", strict=False)
