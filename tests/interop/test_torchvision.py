"""The converter of torchvision's files: names as in torchvision, every key accounted for."""

from __future__ import annotations

import pytest
import torch
from helpers.published_weights import NETWORKS, network, torchvision_file
from helpers.run_tool import load

from sce_video.interop.weights.image_networks import from_torchvision
from sce_video.registry import MODELS


@pytest.mark.parametrize("name", NETWORKS)
def test_round_trip(name, tmp_path, capsys):
    config, head = NETWORKS[name]
    torch.save(torchvision_file(name), tmp_path / "src.pth")
    tool = load("convert/from_layout")
    words = [str(tmp_path / "src.pth"), str(tmp_path / "dst.pth"), "--add-prefix", "backbone."]
    words += ["--layout", "torchvision"]
    assert tool.main(words) == 0
    printed = capsys.readouterr().out
    assert f"{config['type']}(" in printed and f"  {head}.weight\n  {head}.bias\n" in printed
    written = torch.load(tmp_path / "dst.pth", weights_only=True)
    meta = written["meta"]
    assert {"type": meta["backbone"]} | {k: meta[k] for k in config if k != "type"} == config
    assert meta["in_channels"] == 3 and meta["dropped"] == [f"{head}.weight", f"{head}.bias"]
    theirs = network(name)
    assert list(written["state_dict"]) == [f"backbone.{key}" for key in theirs.state_dict()]
    pretrained = dict(type="Pretrained", checkpoint=str(tmp_path / "dst.pth"), prefix="backbone.")
    torch.manual_seed(1)
    ours = MODELS.build({**config, "init_cfg": pretrained}).eval()
    clip = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected, before = theirs(clip), ours(clip)
        ours.init_weights()
        assert not torch.allclose(before, expected, rtol=1e-2)
        torch.testing.assert_close(ours(clip), expected, rtol=0, atol=0)


def test_several_networks_need_a_prefix():
    one, two = torchvision_file("s3d"), torchvision_file("resnet50")
    both = {f"a.{n}": v for n, v in one.items()} | {f"b.{n}": v for n, v in two.items()}
    with pytest.raises(ValueError, match=r"Give one of the prefixes \['a\.', 'b\.'\]"):
        from_torchvision(both)
    assert from_torchvision(both, "b.").backbone["type"] == "ResNet2d"
    with pytest.raises(ValueError, match="after the prefix 'c.'"):
        from_torchvision(both, "c.")


def without(weights, name):
    return {key: value for key, value in weights.items() if key != name}


def test_keys_that_do_not_match_are_listed():
    s3d, r2plus1d = torchvision_file("s3d"), torchvision_file("r2plus1d_18")
    plain = MODELS.build(dict(type="ResNet3dSlowPath", depth=18, base_channels=4)).state_dict()
    midplanes = {"layer2.0.conv2.0.0.weight": torch.ones(36, 16, 1, 3, 3)}  # of a rule of one's own
    name = "features.9.branch2.1.1.0.weight"
    for weights, message in (
        (
            without(s3d, name),
            r"the weights do not fit S3D: missing: features\.9\.branch2.*0\.weight$",
        ),
        (s3d | {"features.16.weight": torch.ones(1)}, r"unexpected: features\.16\.weight$"),
        (r2plus1d | midplanes, r"weight \(36, 16, 1, 3, 3\) instead of \(28, 16, 1, 3, 3\)$"),
        (
            r2plus1d | {"layer3.2.conv1.0.0.weight": torch.ones(1)},
            r"3 blocks in its third stage does not have one of the depths \[18, 34, 50, 101\]",
        ),
        # r3d_18 and mc3_18 have a stem of one convolution
        (without(r2plus1d, "stem.3.weight"), "no first convolution of torchvision's r2plus1d_18"),
        (plain, "no first convolution"),
        ({"epoch": 3}, "no weights, only epoch"),
    ):
        with pytest.raises(ValueError, match=message):
            from_torchvision(weights)
