"""Other ways to compute the same convolutions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.engine.compile import (
    FoldedConv3d,
    compile_backbones,
    fold_backbones,
    guard_small_convolutions,
)
from sce_video.models import ResNet3dSlowPath

# Spatial convolutions with T folded into N: the same values, gradients and names of weights.


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_gives_the_same_values_and_gradients(channels_last):
    torch.manual_seed(0)
    plain = ResNet3dSlowPath(
        depth=50, base_channels=4, zero_init_residual=False, channels_last=channels_last
    ).double()
    folded = ResNet3dSlowPath(depth=50, base_channels=4, channels_last=channels_last).double()
    folded.load_state_dict(plain.state_dict())
    spatial = [m for m in plain.modules() if isinstance(m, nn.Conv3d) and m.kernel_size[0] == 1]
    assert fold_backbones(nn.ModuleDict({"backbone": folded})) == len(spatial) > 10
    assert list(folded.state_dict()) == list(plain.state_dict())
    view = torch.rand(2, 3, 3, 32, 32, dtype=torch.float64)
    results = []
    for network in (plain, folded):
        features = network(view)
        features.square().mean().backward()
        results.append([features.detach(), *(p.grad for p in network.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)
    if channels_last:
        assert results[1][0].is_contiguous(memory_format=torch.channels_last_3d)


def test_strides_dilation_groups_and_bias():
    torch.manual_seed(0)
    conv = nn.Conv3d(4, 6, (1, 3, 3), stride=(1, 2, 1), padding=(0, 2, 1), dilation=(1, 2, 1),
                     groups=2)  # fmt: skip
    x = torch.rand(2, 4, 3, 9, 8)
    expected = conv(x)
    seen: list = []
    conv.register_forward_hook(lambda module, *_: seen.append(module))
    model = nn.ModuleDict({"backbone": nn.ModuleList([conv.eval(), conv])})
    assert fold_backbones(model) == 1
    folded, again = model["backbone"]
    assert isinstance(folded, FoldedConv3d) and folded is again and not folded.training
    assert folded.weight is conv.weight and folded.bias is conv.bias
    assert type(conv) is nn.Conv3d
    torch.testing.assert_close(folded(x), expected)
    assert seen == [folded]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 4, 1),
        nn.Conv3d(2, 2, (3, 1, 1)),
        nn.Conv3d(2, 2, 1, stride=(2, 1, 1)),
        nn.Conv3d(2, 2, (1, 3, 3), padding="same"),
        nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1), padding_mode="circular"),
    ],
)
def test_a_network_of_others_is_refused(conv):
    kind = type(conv)
    with pytest.raises(ValueError, match="no 3-D convolutions that cover only space"):
        fold_backbones(nn.ModuleDict({"backbone": conv}))
    assert type(conv) is kind


# Convolutions that torch computes wrongly in bf16 on CPUs: float32 there, bf16 elsewhere.


def gradients(conv, x, dtype):
    conv.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = conv(x)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    return y.detach().float(), x.grad, conv.weight.grad


#: Kernel, padding, stride and (T, H, W) that torch 2.13 gets wrong with avx512_bf16.
WRONG = [
    ((3, 3, 3), (1, 1, 1), (1, 2, 2), (2, 8, 8)),
    ((3, 1, 1), (1, 0, 0), (1, 1, 1), (2, 8, 8)),
    ((5, 1, 1), (2, 0, 0), (1, 1, 1), (3, 8, 8)),
    ((7, 1, 1), (3, 0, 0), (1, 1, 1), (4, 8, 8)),
    ((1, 3, 3), (0, 1, 1), (1, 2, 2), (4, 8, 1)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_gradients_are_those_of_float32(wrong):
    kernel, padding, stride, size = wrong
    torch.manual_seed(0)
    conv = nn.Conv3d(16, 16, kernel, stride, padding, bias=False)
    guarded = nn.Sequential(conv)
    assert guard_small_convolutions(guarded) == 1
    for _ in range(3):
        freed = [torch.full((2**n,), float("nan")) for n in range(8, 20)]
        del freed  # what is read without having been written is NaN
        x = torch.randn(2, 16, *size)
        expected = gradients(conv, x, torch.float32)
        for found, right in zip(gradients(guarded[0], x, torch.bfloat16), expected, strict=True):
            assert float((found - right).norm() / right.norm()) < 0.02


# torch.compile: graphs of a training with static shapes, whatever an evaluation has shown before.


def test_the_first_training_graph_has_no_symbolic_size():
    torch._dynamo.reset()
    graphs: list[list[tuple]] = []

    def backend(graph, inputs):
        nodes = (node.meta.get("example_value") for node in graph.graph.nodes)
        graphs.append([tuple(value.shape) for value in nodes if isinstance(value, torch.Tensor)])
        return graph.forward

    torch.manual_seed(0)
    model = nn.ModuleDict({"backbone": ResNet3dSlowPath(depth=18, base_channels=4)})
    names = list(model.state_dict())
    assert compile_backbones(model, {"backend": backend}) == 1
    assert list(model.state_dict()) == names
    model.eval()
    for samples, size in ((4, 48), (2, 32)):  # the evaluation before the first step
        with torch.no_grad():
            model["backbone"](torch.randn(samples, 3, 2, size, size))
    assert graphs == []
    model.train()
    clip = torch.randn(2, 3, 2, 40, 40)
    out = model["backbone"](clip)
    assert len(graphs) == 1
    assert all(isinstance(size, int) for shape in graphs[0] for size in shape)
    expected = ResNet3dSlowPath(depth=18, base_channels=4)
    expected.load_state_dict({name[9:]: value for name, value in model.state_dict().items()})
    torch.testing.assert_close(out, expected.train()(clip))


@pytest.mark.parametrize("options", [{"mode": "no such mode"}, {"no_such_option": 1}, "yes"])
def test_options_that_torch_refuses_are_named(options):
    with pytest.raises(ValueError, match="compile"):
        compile_backbones(nn.ModuleDict({"backbone": nn.Identity()}), options)
