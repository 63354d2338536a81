"""One backward pass per query gives the same loss and gradients as one for all."""

from __future__ import annotations

import copy
import inspect
import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers.query_methods import QUERY_METHODS, build_method, gradients_of, make_views
from torch import Tensor, nn

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.models.algorithms.base import QuerySum
from sce_video.models.losses import sigreg_loss
from sce_video.models.losses.swav import sinkhorn
from sce_video.registry import MODELS


class Method(nn.Module):
    """What a sum needs of a method: parameters, the switch, collapse metrics."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.unused = nn.Parameter(torch.ones(3))
        self.backward_per_query = each

    def collapse_metrics(self, h, z):
        return {"h_std": h.detach().std()}

    def total(self, queries=range(5)):
        sums = QuerySum(self)
        for i in queries:
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
            h = self.layers(x)
            sums.add(h, h, {"loss": h.square().mean() + h.sum().cos(), "mean": h.mean()})
        return sums.total()


def gradients(method):
    return [p.grad for p in method.parameters()]


def test_same_loss_and_gradients_as_one_backward_pass_for_all():
    one, each = Method(False), Method(True)
    expected, found = one.total(), each.total()
    (3 * expected["loss"]).backward()
    (3 * found["loss"]).backward()
    assert list(found) == ["loss", "mean", "h_std"]
    for name in expected:
        assert torch.equal(found[name], expected[name])
    for a, b in zip(gradients(one), gradients(each), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    assert each.unused.grad is None


def test_metrics_are_those_of_the_first_query_and_have_no_graph():
    found, first = Method(True).total(range(3)), Method(True).total([0])
    assert torch.equal(found["h_std"], first["h_std"])
    assert not found["mean"].requires_grad


def test_without_gradient_mode_nothing_is_kept():
    with torch.no_grad():
        found = Method(True).total()
    assert not found["loss"].requires_grad
    torch.testing.assert_close(found["loss"], Method(False).total()["loss"].detach())


def test_gradients_of_bf16_parameters_are_added_up_in_fp32():
    method = Method(True)
    method.layers = nn.Sequential(nn.Linear(6, 4).to(torch.bfloat16))
    exact = copy.deepcopy(method.layers).float()
    sums = QuerySum(method)
    x = torch.ones(1, 6)
    for _ in range(512):  # in bf16 the sum would stop growing at 256
        h = method.layers(x.bfloat16())
        sums.add(h, h, {"loss": h.float().sum()})
    sums.total()["loss"].backward()
    (512 * exact(x).sum()).backward()
    torch.testing.assert_close(method.layers[0].weight.grad.float(), exact[0].weight.grad)


def test_fp16_autocast_is_refused():
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(ValueError, match="backward_per_query=True takes gradients before"),
    ):
        Method(True).total()


# One backward pass per query equals one for all, with the activations of one query.


@pytest.fixture(params=QUERY_METHODS)
def name(request):
    return request.param


def both(name, **options):
    """The method with one backward pass and with one per query, in fp64."""
    models = [build_method(name, **options, backward_per_query=each) for each in (False, True)]
    for model in models:
        for network in ("backbone", "projector", "predictor", "target", "queue"):
            getattr(model, network, torch.nn.Identity()).double()
    return models


def step(model, seed=0, count=3):
    scalars = model([view.double() for view in make_views(count, seed=seed)], mode="loss")
    scalars["loss"].backward()
    return scalars


@pytest.mark.parametrize("options", [{}, {"target_views": (0,)}], ids=["all keys", "one key"])
def test_scalars_gradients_and_batch_norms_are_equal(name, options):
    plain, each = both(name, **options)
    for seed in range(2):  # micro-batches of an accumulated step
        expected, found = step(plain, seed), step(each, seed)
        assert list(expected) == list(found)
        for key, value in expected.items():
            assert torch.equal(value, found[key]), key
    wanted, got = gradients_of(plain), gradients_of(each)
    assert wanted.keys() == got.keys()
    assert not any(parameter.startswith("target.") for parameter in got)
    for parameter, gradient in wanted.items():
        # fp32 from the loss to the embeddings, where a gradient of several pairs is added up
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            got[parameter], gradient, rtol=0, atol=1e-6 * scale + 1e-9, msg=parameter
        )
    for plain_buffer, buffer in zip(plain.named_buffers(), each.named_buffers(), strict=True):
        assert torch.equal(plain_buffer[1], buffer[1]), plain_buffer[0]


class Saved:
    """A tensor that the graph keeps for the backward pass; counts the bytes alive."""

    alive = peak = 0

    def __init__(self, tensor):
        self.tensor = tensor
        self.bytes = tensor.numel() * tensor.element_size()
        Saved.alive += self.bytes
        Saved.peak = max(Saved.peak, Saved.alive)

    def __del__(self):
        Saved.alive -= self.bytes


def peak_of_a_step(name, count, **options):
    model = build_method(name, **options)
    assert Saved.alive == 0
    Saved.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        loss = model(make_views(count), mode="loss")["loss"]
        after_forward = Saved.alive
        loss.backward()
    del loss
    return Saved.peak, after_forward


def test_activations_of_one_query_at_a_time(name):
    one_query, _ = peak_of_a_step(name, 2, symmetric=False)
    plain, kept = peak_of_a_step(name, 4)
    assert kept > 3.8 * one_query and plain >= kept
    each, kept = peak_of_a_step(name, 4, backward_per_query=True)
    assert kept == 0
    assert each < 1.1 * one_query  # the loss has three keys for one


# ``joint_views``: batch norm over all views of one size, as where the methods come from.


N = 6
METHODS = {
    "SimCLR": {},
    "SwAV": dict(num_prototypes=6),
    "LeJEPA": dict(num_directions=8, lambda_=0.3),
}
RESNET = dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False)


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


def views_of_sizes(sizes=(32, 32)) -> list[Tensor]:
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
    groups = [views_of_sizes(group) for group in sizes]
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


def test_views_one_at_a_time_are_the_default():
    """A run that was begun before there was ``joint_views`` resumes as it was."""
    for method in METHODS:
        parameters = inspect.signature(MODELS.get(method)).parameters
        assert parameters["joint_views"].default is False
