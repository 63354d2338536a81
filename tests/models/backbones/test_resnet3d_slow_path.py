"""ResNet3D of the paper's table tab:r3d."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.models import ResNet3dSlowPath
from sce_video.registry import MODELS


@pytest.mark.parametrize(("depth", "parameters"), [(18, 20_023_872), (50, 31_634_496)])
def test_parameters_of_the_paper(depth, parameters):
    model = ResNet3dSlowPath(depth=depth)
    assert sum(p.numel() for p in model.parameters()) == parameters


def closed_form(depth: int) -> dict[str, tuple]:
    """Convolutions of tab:r3d by name, from the rule of the table and He et al., table 1."""
    shapes = {"conv1": (64, 3, 1, 7, 7)}
    counts = {34: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    c_in = 64
    for stage, count in enumerate(counts):
        inner, t = 64 * 2**stage, 3 if stage >= 2 else 1
        c_out = inner * (4 if depth == 101 else 1)
        for i in range(count):
            block = f"layer{stage + 1}.{i}"
            if depth == 101:
                shapes[f"{block}.conv1"] = (inner, c_in, t, 1, 1)
                shapes[f"{block}.conv2"] = (inner, inner, 1, 3, 3)
                shapes[f"{block}.conv3"] = (c_out, inner, 1, 1, 1)
            else:
                shapes[f"{block}.conv1"] = (inner, c_in, t, 3, 3)
                shapes[f"{block}.conv2"] = (inner, inner, 1, 3, 3)
            if c_in != c_out:
                shapes[f"{block}.downsample.0"] = (c_out, c_in, 1, 1, 1)
            c_in = c_out
    return shapes


@pytest.mark.parametrize(("depth", "parameters"), [(34, 39_569_216), (101, 59_539_520)])
def test_the_deeper_networks_follow_the_same_rule(depth, parameters):
    with torch.device("meta"):
        model = ResNet3dSlowPath(depth=depth)
    modules = model.named_modules()
    shapes = {n: tuple(m.weight.shape) for n, m in modules if isinstance(m, nn.Conv3d)}
    expected = closed_form(depth)
    assert shapes == expected
    norms = sum(2 * shape[0] for shape in expected.values())  # a BN behind each convolution
    weights = sum(torch.Size(shape).numel() for shape in expected.values())
    assert sum(p.numel() for p in model.parameters()) == weights + norms == parameters


def test_r50_equals_mmaction2s_slow_only():
    """The same network as mmaction2's slow-only R50 (at depth 18 they differ): equal outputs."""
    ours = ResNet3dSlowPath(depth=50, base_channels=8, zero_init_residual=False).eval()
    theirs = MODELS.build(
        dict(
            type="mmaction.ResNet3dSlowOnly",
            depth=50,
            base_channels=8,
            pretrained=None,
            lateral=False,
            conv1_kernel=(1, 7, 7),
            conv1_stride_t=1,
            pool1_stride_t=1,
            inflate=(0, 0, 1, 1),
            norm_eval=False,
        )
    )
    theirs.eval()  # returns None
    names = {}
    for name in theirs.state_dict():
        own = name.replace("downsample.conv", "downsample.0").replace(
            "downsample.bn", "downsample.1"
        )
        names[name] = own.replace(".conv.", ".").replace("conv1.bn", "bn1")
    names = {
        theirs_name: own.replace("conv2.bn", "bn2").replace("conv3.bn", "bn3")
        for theirs_name, own in names.items()
    }
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, value in theirs.state_dict().items():
        if value.is_floating_point():
            value = value + 0.1 * torch.rand(value.shape, generator=generator)
        state[names[name]] = value
    theirs.load_state_dict({name: state[names[name]] for name in names})
    ours.load_state_dict(state)
    x = torch.rand(1, 3, 4, 64, 64, generator=generator)
    with torch.no_grad():
        expected = theirs(x)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


@pytest.mark.parametrize(
    "bad",
    [
        dict(depth=19),
        dict(depth=18, base_channels=0),
        dict(depth=18, last_stage_stride=3),
        dict(depth=18, last_stage_dilation=0),
        dict(depth=18, frozen_stages=5),
    ],
)
def test_bad_values(bad):
    with pytest.raises(ValueError, match=str(list(bad.values())[-1])):
        ResNet3dSlowPath(**bad)


def test_last_stage_for_localisation():
    model = ResNet3dSlowPath(depth=50, base_channels=8, last_stage_stride=1, last_stage_dilation=2)
    assert model(torch.rand(1, 3, 2, 64, 64)).shape == (1, 256, 2, 4, 4)
    assert {b.conv2.dilation for b in model.layer4} == {(1, 2, 2)}
    assert model.layer3[0].conv2.dilation == (1, 1, 1)


@pytest.mark.parametrize("frozen", [0, 2, 4])
def test_frozen_stages_do_not_change(frozen):
    model = ResNet3dSlowPath(depth=18, base_channels=8, frozen_stages=frozen)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))], lr=0.1
    )
    out = model(torch.rand(2, 3, 2, 32, 32))
    if out.requires_grad:
        out.square().mean().backward()
    optimizer.step()
    names = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")
    frozen_names = names[: 2 + frozen]
    for name, value in model.state_dict().items():
        same = torch.equal(value, before[name])
        if name.split(".")[0] in frozen_names:
            assert same, f"{name} is frozen and has changed"
        elif "running_mean" in name:
            assert not same, f"{name} is trained and has not changed"
