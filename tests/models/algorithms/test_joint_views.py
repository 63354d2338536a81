"""``joint_views``: batch norm over all views of one size, as where the methods come from.

In float64. The oracle's embeddings come from one pass of the concatenated views, its losses from a
few lines for each method.
"""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.models.losses import sigreg_loss
from sce_video.models.losses.swav import sinkhorn
from sce_video.registry import MODELS

N = 6
METHODS = {
    "SimCLR": {},
    "SwAV": dict(num_prototypes=6),
    "LeJEPA": dict(num_directions=8, lambda_=0.3),
}
RESNET = dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False)
TRANSFORMER = dict(
    type="VisionTransformer3d",
    depth=1,
    embed_dims=24,
    num_heads=2,
    patch_size=8,
    tubelet_size=2,
    grid_size=(1, 4, 4),
)


def build(
    method: str, joint_views: bool = True, backbone: dict = RESNET, **head
) -> SelfSupervisedModel:
    torch.manual_seed(0)
    projector = dict(type="MLP", hidden_channels=16, out_channels=8, num_layers=2, **head)
    projector.setdefault("norm_output", False)
    model = MODELS.build(
        dict(
            type=method,
            backbone=backbone,
            projector=projector,
            joint_views=joint_views,
            **METHODS[method],
        )
    )
    model.init_weights()
    return model.double()


def make_views(sizes=(32, 32)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(N, 3, 2, size, size, generator=generator, dtype=torch.float64) for size in sizes
    ]


def loss_of(model: SelfSupervisedModel, z: list[Tensor], views: list[Tensor]) -> Tensor:
    """The loss of the embeddings z of the views."""
    if type(model).__name__ == "LeJEPA":
        large = [x for x, view in zip(z, views, strict=True) if view.shape == views[0].shape]
        prediction = (torch.stack(z) - sum(large) / len(large)).square().mean()
        sigreg = sum(sigreg_loss(x, model.directions()) for x in z) / len(z)
        return 0.7 * prediction + 0.3 * sigreg
    z = [F.normalize(x, dim=1) for x in z]
    terms = []
    if type(model).__name__ == "SimCLR":
        own = torch.arange(2 * N)
        for pair in itertools.combinations(z, 2):
            both = torch.cat(pair)
            logits = (both @ both.t() / 0.1).fill_diagonal_(-torch.inf)
            terms.append(F.cross_entropy(logits, own.roll(N)))
        return sum(terms) / len(terms)
    scores = [x @ model.prototypes.weight.t() for x in z]
    for assigned in (0, 1):
        codes = sinkhorn(scores[assigned])
        others = [view for view in range(len(z)) if view != assigned]
        terms += [F.cross_entropy(scores[view] / 0.1, codes) for view in others]
    return sum(terms) / len(terms)


@pytest.mark.parametrize(
    "sizes", [[(32, 32)], [(32, 32, 32)], [(32, 32), (16, 16)], [(32, 32), (16,), (32,)]]
)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_that_of_one_pass_of_the_concatenated_views(method, sizes):
    """Backbone: adjacent views of one size; projector: all views (swav, src/resnet50.py)."""
    groups = [make_views(group) for group in sizes]
    model, reference = build(method), build(method)
    views = [view for group in groups for view in group]
    loss = model(views, mode="loss")["loss"]
    h = [reference.backbone(torch.cat(group)).mean((2, 3, 4)) for group in groups]
    z = reference.projector(torch.cat(h))
    expected = loss_of(reference, [z[i : i + N] for i in range(0, len(z), N)], views)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    loss.backward()
    expected.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-9, msg=name)
    for (name, value), other in zip(
        model.backbone.state_dict().items(), reference.backbone.state_dict().values(), strict=True
    ):  # running statistics among them
        torch.testing.assert_close(value, other, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("case", ["train", "eval", "without"])
@pytest.mark.parametrize("method", METHODS)
def test_only_batch_norm_sees_the_difference(method, case):
    views = make_views((32, 32))
    losses, gradients = [], []
    for joint in (True, False):
        without = dict(backbone=TRANSFORMER, norm_hidden=False, bias=True)
        model = build(method, joint, **(without if case == "without" else {}))
        model.train(case != "eval")
        loss = model(views, mode="loss")["loss"]
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    if case == "train":
        assert abs(losses[0] - losses[1]) > 1e-3
    else:
        assert losses[0] == pytest.approx(losses[1], rel=1e-10)
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-10)


def test_views_one_at_a_time_are_the_default():
    """A run that was begun before there was ``joint_views`` resumes as it was."""
    for method in METHODS:
        parameters = inspect.signature(MODELS.get(method)).parameters
        assert parameters["joint_views"].default is False
