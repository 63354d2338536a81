"""Video networks to and from SlowFast, mmaction2 and pytorchvideo.

SlowFast's names and shapes are those of helpers/published_weights.py; mmaction2's network is built
by mmaction2.
"""

from __future__ import annotations

import pytest
import torch
from helpers.published_weights import slowfast_shapes
from helpers.run_tool import load
from helpers.tiny_encoder import save_tiny, tiny_backbone

from sce_video.interop.weights.video_networks import (
    VIDEO_LAYOUTS,
    from_video_layout,
    to_video_layout,
)
from sce_video.registry import MODELS


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("layout", "depth"),
    [*((name, 50) for name in VIDEO_LAYOUTS), ("mmaction2", 18), ("pytorchvideo", 18)],
)
def test_round_trips_are_equal_bit_for_bit(layout, depth):
    ours = tiny_backbone(depth=depth).state_dict()
    written = to_video_layout({f"backbone.{n}": v for n, v in ours.items()}, layout)
    assert written.dropped == [] and written.backbone["depth"] == depth
    assert len(written.state_dict) == len(ours)
    back = from_video_layout({"state_dict": written.state_dict}, layout)
    assert equal(back.state_dict, ours) and back.dropped == []
    assert back.backbone["base_channels"] == 4


def test_slowfast_has_these_names_and_shapes():
    theirs = to_video_layout(tiny_backbone(depth=50).state_dict(), "slowfast").state_dict
    shapes = {name: tuple(value.shape) for name, value in theirs.items()}
    assert shapes == slowfast_shapes(4)


@pytest.mark.parametrize("depth", [18, 34])
def test_slowfast_has_no_network_of_these_depths(depth):
    """slowfast/models/video_model_builder.py: _MODEL_STAGE_DEPTH, dim_out of every stage."""
    with pytest.raises(ValueError, match=f"SlowFast has no network of depth {depth} like ours"):
        to_video_layout(tiny_backbone(depth=depth).state_dict(), "slowfast")


@pytest.mark.parametrize(
    "theirs",
    [
        dict(type="mmaction.ResNet3dSlowOnly", depth=18, base_channels=4),
        dict(type="mmaction.ResNet3dSlowOnly", depth=50, base_channels=4),
        dict(type="mmaction.ResNet", depth=18),
    ],
)
def test_mmaction2_computes_the_same(theirs):
    flat = theirs["type"] == "mmaction.ResNet"
    ours = tiny_backbone(depth=theirs["depth"])
    if flat:
        ours = MODELS.build(dict(type="ResNet2d", depth=18)).eval()
    network = MODELS.build({"pretrained": None, **theirs})
    network.eval()
    state = {n: v.clone() for n, v in ours.state_dict().items()}
    written = to_video_layout(state, "mmaction2").state_dict
    network.load_state_dict({n.removeprefix("backbone."): v for n, v in written.items()})
    view = torch.rand(2, 3, 1 if flat else 5, 32, 32)
    with torch.inference_mode():
        found = network(view[:, :, 0])[..., None] if flat else network(view)
        torch.testing.assert_close(
            found.mean((2, 3, 4)), ours.pool(ours(view)), rtol=1e-4, atol=1e-5
        )
    assert equal(
        from_video_layout({"state_dict": network.state_dict()}, "mmaction2").state_dict, state
    )


def test_what_cannot_be_converted_is_named():
    ours = tiny_backbone().state_dict()
    theirs = to_video_layout(tiny_backbone(depth=50).state_dict(), "slowfast").state_dict
    lacking = {n: v for n, v in theirs.items() if n != "s3.pathway0_res1.branch2.b.weight"}
    lacking["s3.pathway0_nonlocal0.conv_g.weight"] = torch.zeros(1)
    lacking["head.projection.weight"] = torch.zeros(2, 2)
    with pytest.raises(ValueError) as error:
        from_video_layout({"model_state": lacking}, "slowfast")
    message = str(error.value)
    assert "without a counterpart: s3.pathway0_nonlocal0.conv_g.weight" in message
    assert "missing: s3.pathway0_res1.branch2.b.weight" in message and "head" not in message
    with pytest.raises(ValueError, match=r"layer3\.0\.conv2\.weight covers three frames"):
        trained = to_video_layout(ours, "mmaction2").state_dict
        from_video_layout({n: v + 1 for n, v in trained.items()}, "mmaction2")
    with pytest.raises(ValueError, match="this is not the layout of slowfast. The file has conv1"):
        from_video_layout(ours, "slowfast")
    with pytest.raises(ValueError, match="slowfast is for weights of ResNet3dSlowPath"):
        to_video_layout(MODELS.build(dict(type="ResNet2d", depth=18)).state_dict(), "slowfast")


def test_the_tools_account_for_every_tensor(tmp_path, capsys):
    src = save_tiny(tmp_path / "ours.pth")  # with a weight of a projector
    to_layout, from_layout = load("convert/to_layout"), load("convert/from_layout")
    words = [str(src), str(tmp_path / "theirs.pth"), "--layout", "pytorchvideo"]
    assert to_layout.main(words) == 0
    out = capsys.readouterr().out
    assert "120 tensors in the layout of pytorchvideo" in out
    assert "counterpart there: 1\n  projector.layers.0.weight" in out
    back = [str(tmp_path / "theirs.pth"), str(tmp_path / "back.pth"), "--layout", "pytorchvideo"]
    assert from_layout.main(back) == 0
    assert "ResNet3dSlowPath(depth=18, base_channels=4" in capsys.readouterr().out
    assert equal(
        torch.load(tmp_path / "back.pth", weights_only=True)["state_dict"],
        tiny_backbone().state_dict(),
    )
    # The authors' encoders: pytorchvideo's names behind trunk.model.
    assert to_layout.main([*words[:1], str(tmp_path / "authors.pth"), "--layout", "eztorch"]) == 0
    names = torch.load(tmp_path / "authors.pth", weights_only=True)["state_dict"]
    assert "trunk.model.blocks.1.res_blocks.0.branch2.conv_a.weight" in names
