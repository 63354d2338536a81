"""The converter against networks written here in pytorchvideo's layout."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.run_tool import load
from torch import nn

from sce_video.interop.weights.video_networks import from_video_layout
from sce_video.models.backbones import ResNet3dSlowPath


def from_pytorchvideo(weights, prefix=None):
    return from_video_layout(weights, "pytorchvideo", prefix)


def _convolution(c_in: int, c_out: int, t: int, s: int, stride: int = 1) -> nn.Conv3d:
    return nn.Conv3d(
        c_in, c_out, (t, s, s), (1, stride, stride), (t // 2, s // 2, s // 2), bias=False
    )


class _Block(nn.Module):
    """branch2: conv_a, norm_a, conv_b, norm_b and, in a bottleneck, conv_c, norm_c."""

    def __init__(self, channels: list[int], kernels: list[tuple[int, int]], strides: list[int]):
        super().__init__()
        self.letters, self.branch2 = "abc"[: len(kernels)], nn.Module()
        for i, letter in enumerate(self.letters):
            conv = _convolution(channels[i], channels[i + 1], *kernels[i], strides[i])
            setattr(self.branch2, f"conv_{letter}", conv)
            setattr(self.branch2, f"norm_{letter}", nn.BatchNorm3d(channels[i + 1]))
        self.branch1_conv = None
        if channels[0] != channels[-1] or max(strides) != 1:
            self.branch1_conv = _convolution(channels[0], channels[-1], 1, 1, max(strides))
            self.branch1_norm = nn.BatchNorm3d(channels[-1])

    def forward(self, x):
        out = x
        for letter in self.letters:
            out = F.relu(out) if letter != "a" else out
            out = getattr(self.branch2, f"conv_{letter}")(out)
            out = getattr(self.branch2, f"norm_{letter}")(out)
        if self.branch1_conv is not None:
            x = self.branch1_norm(self.branch1_conv(x))
        return F.relu(x + out)


class _Net(nn.Module):
    """tab:r3d in pytorchvideo's module names; ``swapped`` puts the temporal kernel second."""

    def __init__(self, depth: int, width: int, stem_temporal: int = 1, swapped: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].conv = _convolution(3, width, stem_temporal, 7, 2)
        self.blocks[0].norm = nn.BatchNorm3d(width)
        c_in = width
        for stage, count in enumerate({18: [2, 2, 2, 2], 50: [3, 4, 6, 3]}[depth]):
            inner, temporal = width * 2**stage, 3 if stage >= 2 else 1
            self.blocks.append(nn.Module())
            self.blocks[-1].res_blocks = nn.ModuleList()
            for i in range(count):
                stride = 2 if i == 0 and stage > 0 else 1
                channels, kernels = [c_in, inner, inner], [(temporal, 3), (1, 3)]
                kernels = kernels[::-1] if swapped else kernels
                strides = [stride, 1]
                if depth == 50:
                    channels, kernels = [*channels, 4 * inner], [(temporal, 1), (1, 3), (1, 1)]
                    strides = [1, stride, 1]
                self.blocks[-1].res_blocks.append(_Block(channels, kernels, strides))
                c_in = channels[-1]

    def forward(self, x):
        stem, *stages = self.blocks
        x = F.max_pool3d(F.relu(stem.norm(stem.conv(x))), (1, 3, 3), (1, 2, 2), (0, 1, 1))
        for stage in stages:
            for block in stage.res_blocks:
                x = block(x)
        return x


def _network(depth: int, width: int = 4, **options) -> _Net:
    """A network with random weights and BN statistics."""
    torch.manual_seed(depth)
    network = _Net(depth, width, **options).eval()
    for name, value in network.state_dict().items():
        if name.endswith("running_var") or ("norm" in name and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
        elif name.endswith(("running_mean", "bias")):
            value.normal_(0, 0.2)
        elif name.endswith("num_batches_tracked"):
            value.fill_(7)
    return network


@pytest.fixture(scope="module")
def tool():
    """tools/convert/from_pytorchvideo.py as a module."""
    return load("convert/from_pytorchvideo")


def _load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("depth", [18, 50])
def test_the_converted_network_gives_equal_outputs(tool, tmp_path, depth, capsys):
    theirs = _network(depth)
    torch.save(theirs.state_dict(), tmp_path / "src.pth")
    assert tool.main([str(tmp_path / "src.pth"), str(tmp_path / "dst.pth")]) == 0
    assert f"depth={depth}, base_channels=4, in_channels=3" in capsys.readouterr().out
    ours = ResNet3dSlowPath(depth=depth, base_channels=4).eval()
    clip = torch.randn(2, 3, 4, 32, 32)
    before = ours(clip)
    ours.load_state_dict(_load(tmp_path / "dst.pth")["state_dict"], strict=True)
    with torch.no_grad():
        expected, output = theirs(clip), ours(clip)
    assert expected.std() > 1e-3
    assert not torch.allclose(before, expected, atol=1e-2)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    # Nothing was lost: the number of values, statistics included, is the same.
    assert sum(v.numel() for v in ours.state_dict().values()) == sum(
        v.numel() for v in theirs.state_dict().values()
    )
    assert ours.bn1.num_batches_tracked == 7


def test_heads_and_other_branches_are_dropped_and_listed(tool, tmp_path, capsys):
    weights = _network(18).state_dict()
    extra = {
        "blocks.5.proj.weight": torch.ones(400, 32),
        "blocks.5.proj.bias": torch.ones(400),
    }
    conversion = from_pytorchvideo({**weights, **extra})
    assert conversion.dropped == list(extra)
    online = {f"trunk.model.{name}": value for name, value in weights.items()}
    target = {f"momentum_trunk.model.{name}": value + 1 for name, value in weights.items()}
    rest = {"projector.layers.0.weight": torch.ones(2, 2), "queue": torch.ones(3)}
    torch.save({"state_dict": {**target, **online, **rest}}, tmp_path / "src.ckpt")
    assert tool.main([str(tmp_path / "src.ckpt"), str(tmp_path / "dst.pth")]) == 0
    printed = capsys.readouterr().out
    for name in (*target, *rest):
        assert f"  {name}\n" in printed
    converted = _load(tmp_path / "dst.pth")
    assert converted["meta"]["dropped"] == [*target, *rest]
    assert torch.equal(converted["state_dict"]["conv1.weight"], weights["blocks.0.conv.weight"])
    # The other branch, by its prefix.
    conversion = from_pytorchvideo({**target, **online}, prefix="momentum_trunk.model.")
    expected = target["momentum_trunk.model.blocks.0.conv.weight"]
    assert torch.equal(conversion.state_dict["conv1.weight"], expected)


def test_other_networks_are_refused():
    """Names that are missing or too much: test_videos.py."""
    weights = _network(18).state_dict()
    two = {f"{part}.{name}": value for part in ("one", "two") for name, value in weights.items()}
    block = "blocks.2.res_blocks.0.branch2."
    for changed, message in (
        (
            weights | {f"{block}conv_b.weight": torch.ones(8, 8, 3, 3, 3)},
            r"layer2\.0\.conv2\.weight \(8, 8, 3, 3, 3\) instead of \(8, 8, 1, 3, 3\)$",
        ),
        (two, r"Give one of the prefixes \['one\.', 'two\.'\]"),
        # other networks with the same names
        (_network(50, stem_temporal=5).state_dict(), r"conv1\.weight \(4, 3, 5, 7, 7\) instead of"),
        (_network(18, swapped=True).state_dict(), r"layer4\.1\.conv2\.weight"),
    ):
        with pytest.raises(ValueError, match=message):
            from_pytorchvideo(changed)


class _Unsafe:
    def __reduce__(self):
        return (Path.touch, (Path("harmful"),))


def test_an_unsafe_file_is_refused_and_not_run(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights = {**_network(18).state_dict(), "extra": _Unsafe()}
    torch.save(weights, tmp_path / "src.pth")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"extra": _Unsafe()}, protocol=2))
    for name in ("src.pth", "plain.pkl"):
        of_layout = load("convert/from_layout"), ["--layout", "torchvision"]
        for other, words in ((tool, []), of_layout):
            assert other.main([name, "dst.pth", *words]) == 2
            assert f"error: {name}" in capsys.readouterr().err
    assert not (tmp_path / "harmful").exists()
    assert not (tmp_path / "dst.pth").exists()
