"""Image networks to and from the authors' code, torchvision, timm, mmdet and detectron2.

Names and shapes of the other side are written out in helpers/published_weights.py.
"""

from __future__ import annotations

import pytest
import torch
from helpers.published_weights import (
    DETECTRON2,
    authors_names,
    names_and_shapes,
    randomised,
    torchvision_names,
)
from helpers.run_tool import load

from sce_video.interop.weights.image_networks import from_eztorch, from_torchvision, to_layout
from sce_video.registry import MODELS


def shapes_of(state: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def sce(depth: int = 50, stem: str = "imagenet") -> torch.nn.Module:
    """An SCE model with both heads; the two branches differ."""
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type="SCE",
            backbone=dict(type="ResNet2d", depth=depth, base_channels=8, stem=stem),
            projector=dict(
                type="MLP", hidden_channels=16, out_channels=6, num_layers=3, norm_output=True
            ),
            predictor=dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False),
            queue_size=12,
        )
    )
    for value in model.state_dict().values():
        value.fill_(5) if value.ndim == 0 else value.uniform_(0.1, 1)
    return model


def test_the_authors_model_loads_into_ours_whole():
    theirs = randomised(authors_names(50))
    theirs["queue_ptr"] = torch.tensor([4])
    conversion = from_eztorch({"state_dict": theirs, "epoch": 99})
    assert conversion.dropped == [] and conversion.prefix == ""
    assert conversion.backbone["depth"] == 50 and conversion.backbone["base_channels"] == 8
    model = sce(50)
    model.load_state_dict(conversion.state_dict, strict=True)
    ours = model.state_dict()
    assert torch.equal(ours["backbone.conv1.weight"], theirs["trunk.conv1.weight"])
    bn = "layer2.0.bn1.running_var"
    assert torch.equal(ours[f"target.backbone.{bn}"], theirs[f"momentum_trunk.{bn}"])
    assert torch.equal(ours["queue.keys"], theirs["queue"].T)
    assert ours["queue.pointer"] == 4
    assert torch.equal(
        ours["target.projector.layers.4.running_mean"],
        theirs["momentum_projector.layers.4.running_mean"],
    )


@pytest.mark.parametrize(("stem", "kernel"), [("imagenet", 7), ("small", 3)])
def test_ours_to_the_authors_and_back(stem, kernel):
    state = sce(18, stem).state_dict()
    theirs = to_layout(state, "eztorch")
    assert shapes_of(theirs) == authors_names(18, kernel)
    conversion = from_eztorch(theirs)
    assert conversion.backbone.get("stem", "imagenet") == stem
    assert conversion.state_dict.keys() == state.keys()
    assert all(torch.equal(conversion.state_dict[name], value) for name, value in state.items())


def test_prefixes_heads_of_images_and_missing_parts():
    theirs = {n: v for n, v in randomised(authors_names()).items() if n.startswith("trunk.")}
    theirs |= {"trunk.fc.weight": torch.ones(2, 2), "val_acc.total": torch.ones(1)}
    wrapped = {f"model.{name}": value for name, value in theirs.items()}
    conversion = from_eztorch(wrapped)
    assert conversion.prefix == "model."
    assert conversion.dropped == ["model.trunk.fc.weight", "model.val_acc.total"]
    expected = {f"backbone.{name}" for name in torchvision_names(50)}
    assert conversion.state_dict.keys() == expected


def test_what_is_not_the_authors_model():
    theirs = randomised(authors_names(18))
    with pytest.raises(ValueError, match=r"no weight is called trunk\.conv1\.weight"):
        from_eztorch(randomised(torchvision_names(18)))
    less = {n: v for n, v in theirs.items() if n != "momentum_trunk.layer3.1.bn2.bias"}
    with pytest.raises(
        ValueError, match=r"the weights do not fit ResNet2d: missing: layer3\.1\.bn2"
    ):
        from_eztorch(less)
    with pytest.raises(ValueError, match=r"\(D, K\) with one queue_ptr, got .* and no pointer"):
        from_eztorch({n: v for n, v in theirs.items() if n != "queue_ptr"})


@pytest.mark.parametrize(("layout", "depth"), [("torchvision", 50), ("timm", 18), ("mmdet", 18)])
def test_torchvision_timm_and_mmdet_have_our_names(layout, depth):
    """timm's ``resnet18`` and ``resnet50`` and mmdet's ResNet name all parts as torchvision."""
    state = sce(depth).state_dict()
    written = to_layout(state, layout)
    assert shapes_of(written) == torchvision_names(depth)
    assert all(torch.equal(written[name], state[f"backbone.{name}"]) for name in written)
    back = from_torchvision({**written, "fc.weight": torch.ones(2, 2)})
    assert back.dropped == ["fc.weight"]
    assert all(torch.equal(back.state_dict[name], value) for name, value in written.items())


@pytest.mark.parametrize("depth", [18, 50])
def test_detectron2_has_its_own_names(depth):
    """Every tensor, by the order of both definitions, and by the ends of the model's names."""
    state = sce(depth).state_dict()
    written = to_layout(state, "detectron2")
    theirs = names_and_shapes(depth, 8, "stem.", lambda s: f"res{s + 1}", DETECTRON2)
    assert shapes_of(written) == theirs
    for own, name in zip(torchvision_names(depth), theirs, strict=True):
        assert torch.equal(written[name], state[f"backbone.{own}"]), name
    # A C4 detector: res5 belongs to the RoI head, which has a BN of its own after it.
    c4 = ["roi_heads.res5.norm.weight", "proposal_generator.rpn_head.conv.weight"]
    for name in theirs:
        c4.append(f"{'roi_heads' if name.startswith('res5.') else 'backbone'}.{name}")
    matched = {
        model: [name for name in written if model == name or model.endswith(f".{name}")]
        for model in c4
    }
    assert [model for model, names in matched.items() if not names] == c4[:2]
    assert sorted(name for names in matched.values() for name in names) == sorted(theirs)


@pytest.mark.parametrize("layout", ["timm", "eztorch", "detectron2"])
def test_the_tool_writes_what_each_loader_reads(layout, tmp_path, capsys):
    state = sce(18).state_dict()
    src, dst = tmp_path / "src.pth", tmp_path / "dst.pth"
    torch.save({"state_dict": state, "meta": {"epoch": 1}}, src)
    assert load("convert/to_layout").main([str(src), str(dst), "--layout", layout]) == 0
    assert f"tensors in the layout of {layout} to {dst}" in capsys.readouterr().out
    written = torch.load(dst, weights_only=True)
    if layout == "detectron2":
        assert written["matching_heuristics"] is True and written["__author__"]
    key = {"detectron2": "model", "eztorch": "state_dict"}.get(layout)
    written = written if key is None else written[key]
    assert shapes_of(written) == shapes_of(to_layout(state, layout))
    assert load("convert/to_layout").main([str(src), str(src), "--layout", layout]) == 2
    assert "is the source itself" in capsys.readouterr().err
