"""One step of every method compared with its equations, and its settings and chance level."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers.query_methods import QUERY_METHODS, TINY, build_method, make_views
from torch import Tensor

from sce_video.engine import OptimizerStepHook
from sce_video.models.algorithms.lejepa import RandomDirections
from sce_video.models.losses import sigreg_loss
from sce_video.registry import MODELS

N = 6


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def assert_same_gradients(model, reference) -> None:
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        if name.startswith("target."):
            assert p.grad is None
        else:
            scale = q.grad.abs().max().item()
            torch.testing.assert_close(
                p.grad, q.grad, rtol=1e-3, atol=1e-4 * scale + 1e-7, msg=name
            )


# Methods with a target: the loss of a pair of a query and a key, one sample at a time.


def sce_pair(z1, z2, queue):
    """Compute the pseudo-code of appendix A, where the positive is the first of K + 1 classes."""
    s2 = torch.softmax(queue @ z2 / 0.05, dim=0)
    w2 = torch.cat([torch.tensor([0.5]), 0.5 * s2])
    return F.cross_entropy(torch.cat([z1 @ z2[:, None], queue @ z1])[None] / 0.1, w2[None])


def moco_pair(query, key, queue):
    logits = torch.stack([query @ key, *(query @ negative for negative in queue)]) / 0.2
    return F.cross_entropy(logits[None], torch.tensor([0]))


def ressl_pair(query, key, queue):
    relations = torch.softmax(queue @ key / 0.04, dim=0)
    return F.cross_entropy((queue @ query / 0.1)[None], relations[None])


PAIR_LOSS = {"SCE": sce_pair, "MoCo": moco_pair, "ReSSL": ressl_pair}


def pair_loss(name, queries, keys, model):
    """Return the mean over samples."""
    if name == "BYOL":  # eq. 2
        return (queries - keys).square().sum(dim=1).mean()
    if name == "MoCoV3":  # 2 tau times the cross-entropy over the keys of the batch
        losses = [
            sum((q @ k / model.tau).exp() for k in keys).log() - q @ keys[i] / model.tau
            for i, q in enumerate(queries)
        ]
        return 2 * model.tau * torch.stack(losses).mean()
    rows = zip(queries, keys, strict=True)
    return torch.stack([PAIR_LOSS[name](q, k, model.queue.keys) for q, k in rows]).mean()


CASES = [
    (2, dict(symmetric=True), {0: [1], 1: [0]}),
    (2, dict(symmetric=False), {0: [1]}),
    (3, dict(symmetric=True), {0: [1, 2], 1: [0, 2], 2: [0, 1]}),
    (4, dict(symmetric=False, target_views=(3, 0)), {1: [3, 0], 2: [3, 0]}),
]


@pytest.mark.parametrize(("count", "options", "keys_of"), CASES)
@pytest.mark.parametrize("name", QUERY_METHODS)
def test_loss_and_gradients_equal_the_equations(name, count, options, keys_of):
    """SCE, MoCo and ReSSL average over pairs. BYOL and MoCo v3 add up means over keys."""
    x = make_views(count, N)
    model, reference = build_method(name, **options), build_method(name)
    with torch.no_grad():
        encode = reference.target
        keys = [unit(encode.projector(encode.backbone(v).mean((2, 3, 4)))) for v in x]
    expected, pairs = torch.zeros(()), sum(map(len, keys_of.values()))
    for i, own in keys_of.items():
        z = reference.projector(reference.backbone(x[i]).mean((2, 3, 4)))
        query = unit(reference.predictor(z))
        losses = [pair_loss(name, query, keys[j], reference) for j in own]
        of_queries = name in ("BYOL", "MoCoV3")
        expected = expected + sum(losses) / (len(losses) if of_queries else pairs)
    out = model(x, mode="loss")
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert all(not value.requires_grad for key, value in out.items() if key != "loss")
    out["loss"].backward()
    expected.backward()
    assert_same_gradients(model, reference)
    if hasattr(model, "queue"):
        model.after_optimizer_step()
        targets = {j for own in keys_of.values() for j in own}
        assert int(model.queue.pointer) == N * len(targets) % 32


def test_free_coefficients_weight_the_logged_parts_and_can_be_scheduled():
    model = build_method("SCE", lambda_=(0.5, 0.75, 0.25))
    out = model(make_views(2), mode="loss")
    parts = 0.5 * out["infonce"] + 0.75 * out["ressl"] + 0.25 * out["ceil"]
    assert out["loss"].item() == pytest.approx(parts.item(), abs=1e-5)
    model.eta = 0.0
    lower = model(make_views(2), mode="loss")["loss"]
    assert out["loss"].item() - lower.item() == pytest.approx(0.25 * out["ceil"].item(), abs=1e-2)


def test_rho_moco_is_the_sum_over_queries_of_the_mean_over_other_keys():
    """With rho views, as in SlowFast, value, gradient and chance are rho times the mean."""
    rho, x = 4, make_views(4)
    mean, total = (build_method("MoCo", sum_queries=s) for s in (False, True))
    assert total.chance_level() is None
    losses = [model(x, mode="loss")["loss"] for model in (mean, total)]
    assert losses[1].item() == pytest.approx(rho * losses[0].item(), rel=1e-6)
    (rho * losses[0]).backward()
    losses[1].backward()
    assert_same_gradients(total, mean)
    assert total.chance_level() == pytest.approx(rho * math.log(33))
    # All queries have the same weight, although view 2 has two keys, and views 0 and 1 have one.
    options = dict(target_views=(0, 1), symmetric=True)
    model = build_method("MoCo", **options, sum_queries=True).eval()
    means = []
    for keys, query in (((1,), 0), ((0,), 1), ((0, 1), 2)):
        two = build_method("MoCo", symmetric=False).eval()
        pairs = [two([x[query], x[key]], mode="loss")["loss"].item() for key in keys]
        means.append(sum(pairs) / len(pairs))
    assert model(x[:3], mode="loss")["loss"].item() == pytest.approx(sum(means), abs=1e-5)


# Methods whose views all have a gradient. ``joint_views`` shares BN over views of one size.


JOINT = {
    "SimCLR": {},
    "SwAV": dict(num_prototypes=6),
    "LeJEPA": dict(num_directions=8, lambda_=0.3),
}


def build(method: str, **changes):
    torch.manual_seed(0)
    projector = dict(
        type="MLP", hidden_channels=16, out_channels=8, num_layers=2, norm_output=False
    )
    options = dict(type=method, backbone=TINY, projector=projector, **JOINT[method])
    model = MODELS.build({**options, **changes})
    model.init_weights()
    return model.double()


def views_of_sizes(sizes=(32, 32), seed=0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(N, 3, 2, size, size) for size in sizes]
    return [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def author_codes(scores: Tensor) -> Tensor:
    """Compute ``distributed_sinkhorn`` of facebookresearch/swav on one process."""
    q = torch.exp(scores.detach() / 0.05).t()
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(dim=1, keepdim=True) * len(q)
        q /= q.sum(dim=0, keepdim=True) * len(scores)
    return (q * len(scores)).t()


def loss_of(model, z: list[Tensor], views: list[Tensor], assigned=(0, 1), queues=None) -> Tensor:
    """Compute the loss of the views' embeddings z, preceded by the queues of assigned views."""
    if type(model).__name__ == "LeJEPA":
        large = [x for x, view in zip(z, views, strict=True) if view.shape == views[0].shape]
        prediction = (torch.stack(z) - sum(large) / len(large)).square().mean()
        sigreg = sum(sigreg_loss(x, model.directions()) for x in z) / len(z)
        return 0.7 * prediction + 0.3 * sigreg
    z = [unit(x) for x in z]
    terms = []
    if type(model).__name__ == "SimCLR":
        for pair in itertools.combinations(z, 2):
            both = torch.cat(pair)
            logits = (both @ both.t() / model.tau).fill_diagonal_(-torch.inf)
            terms.append(F.cross_entropy(logits, torch.arange(2 * N).roll(N)))
        return sum(terms) / len(terms)
    weight = model.prototypes.weight
    for number, view in enumerate(assigned):
        before = [] if queues is None else [queues[number]]
        codes = author_codes(torch.cat([*before, z[view]]) @ weight.t())[-N:]
        others = [other for other in range(len(z)) if other != view]
        terms += [F.cross_entropy(z[other] @ weight.t() / 0.1, codes) for other in others]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("sizes", [[(32, 32)], [(32, 32), (16,), (32,)]])
@pytest.mark.parametrize("method", JOINT)
def test_a_step_of_views_that_all_have_a_gradient(method, sizes, joint):
    """With joint views, adjacent views of one size form a batch (swav, src/resnet50.py)."""
    groups = [views_of_sizes(group, seed) for seed, group in enumerate(sizes)]
    views = [view for group in groups for view in group]
    model, reference = (build(method, joint_views=joint) for _ in range(2))
    loss = model(views, mode="loss")["loss"]
    if not joint:
        groups = [[view] for view in views]
    h = [reference.backbone(torch.cat(group)).mean((2, 3, 4)) for group in groups]
    z = [reference.projector(torch.cat(h))] if joint else [reference.projector(x) for x in h]
    expected = loss_of(reference, list(torch.cat(z).split(N)), views)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    loss.backward()
    expected.backward()
    assert_same_gradients(model, reference)
    for value, other in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(value, other)  # running statistics among them


def test_rho_simclr_is_the_sum_over_consecutive_views():
    x = views_of_sizes((32,) * 4)
    model, reference = build("SimCLR", consecutive=True).eval(), build("SimCLR").eval()
    assert model.chance_level() is None
    z = [reference.projector(reference.backbone(view).mean((2, 3, 4))) for view in x]
    expected = sum(loss_of(reference, z[k : k + 2], x) for k in range(3))
    assert model(x, mode="loss")["loss"].item() == pytest.approx(expected.item())
    assert model.chance_level() == pytest.approx(3 * math.log(11))


# Chance levels, checks and errors.


@pytest.mark.parametrize(
    ("name", "options", "level"),
    [
        ("SCE", {}, math.log(33)),
        ("SCE", dict(lambda_=(0.0, 1.0, 0.0)), math.log(32)),
        ("SCE", dict(lambda_=(0.3, 0.7, 0.7)), math.log(33)),
        ("MoCo", {}, math.log(33)),
        ("ReSSL", {}, math.log(32)),
    ],
)
def test_a_loss_at_chance_level_is_that_of_unrelated_views(name, options, level):
    model = build_method(name, **options, tau=1e6)
    assert model.chance_level() == pytest.approx(level)
    found = model(make_views(2), mode="loss")["loss"].item()
    assert found == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_chance_level_within_the_batch_is_the_loss_of_equal_embeddings(count):
    # In training mode, batch norm maps equal samples to 0.
    models = {count * 0.4 * math.log(6): build_method("MoCoV3", tau=0.2).eval(),
              math.log(11): build("SimCLR").float().eval()}  # fmt: skip
    same = make_views(1, 1)[0].expand(6, -1, -1, -1, -1)
    for level, model in models.items():
        assert model.chance_level() is None  # the batch is not known yet
        loss = model([same] * count, mode="loss")["loss"].item()
        assert model.chance_level() == pytest.approx(level) == pytest.approx(loss, abs=1e-4)


def make(name, **options):
    return build(name, **options) if name in JOINT else build_method(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "data", "words"),
    [
        ("SCE", {}, (1000, 16, 2), []),
        ("SCE", dict(lambda_=0.0, tau_m=0.2), (1000, 16, 2), []),  # Ceil prevents the collapse
        ("SCE", dict(lambda_=(0.5, 1.0, 0.5)), (1000, 16, 2), ["add up to 1.5, not 1"]),
        ("SCE", dict(lambda_=(0.0, 1.0, 0.0), tau_m=0.1), (1000, 16, 2), ["collapses"]),
        ("MoCo", {}, (1000, 20, 2), ["a step makes 40 keys"]),
        ("MoCo", dict(symmetric=False), (1000, 20, 2), ["is not a multiple of the 20 keys"]),
        ("MoCo", {}, (20, 4, 2), ["the queue holds 32 keys"]),
        ("ReSSL", dict(tau_m=0.1), (1000, 16, 2), ["tau_m=0.1 is not below tau=0.1"]),
        ("MoCoV3", {}, (100, 128, 2), ["128 samples and there are 100 training samples"]),
        ("SwAV", {}, (100, 4, 2), ["fewer samples than there are prototypes"]),
        ("LeJEPA", {}, (10, 4, None), []),
    ],
)
def test_data_that_do_not_suit_are_warned_of(name, options, data, words):
    found = make(name, **options).check_training(*data)
    assert len(found) == len(words) and all(w in str(f) for w, f in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("SCE", dict(lambda_=(0.5, 0.5)), r"three \(lambda, mu, eta\) of eq. 10, got \(0.5, 0.5\)"),
        ("SCE", dict(lambda_=(0.0, 0.0, 1.0)), "nothing brings query and key together"),
        ("SCE", dict(lambda_=(0.5, 0.5, 0), mask_positive=False), "need mask_positive=True"),
        ("SCE", dict(tau=0), "tau must be a finite number above 0, got 0"),
        ("MoCo", dict(tau=0), "tau must be a finite number above 0, got 0"),
        ("BYOL", dict(momentum=2), "momentum must be from 0 to 1, got 2"),
        ("BYOL", dict(target_views=(1, 1)), "target_views must be one or more different indices"),
        ("SwAV", dict(tau=0), "tau must be a finite number above 0, got 0"),
        ("SwAV", dict(epsilon=-1), "epsilon must be above 0, got -1"),
        ("SwAV", dict(num_prototypes=1), "num_prototypes must be at least 2, got 1"),
        ("LeJEPA", dict(global_views=(1, 1)), "global_views must be one or more different"),
        ("LeJEPA", dict(lambda_=1.5), "lambda_ must be from 0 to 1, got 1.5"),
        ("LeJEPA", dict(num_directions=0), "at least 1, got 0 and 8"),
    ],
)
def test_wrong_settings_are_refused(name, options, match):
    with pytest.raises(ValueError, match=match):
        make(name, **options)


@pytest.mark.parametrize("name", [*QUERY_METHODS, *JOINT])
def test_views_that_form_no_pairs_are_refused(name):
    model = make(name).float()
    with pytest.raises(ValueError, match="two views, got 1"):
        model(make_views(1), mode="loss")
    with pytest.raises(ValueError, match="two views, got 1"):
        model.check_training(1000, 16, 1)
    option = "global_views" if name == "LeJEPA" else "target_views"
    if name != "SimCLR":
        with pytest.raises(ValueError, match=r"\[2\] must be below the number of views, 2"):
            make(name, **{option: (2,)}).float()(make_views(2), mode="loss")


def test_negatives_options_and_modes_that_are_not_there():
    for name in ("MoCoV3", "SimCLR"):
        with pytest.raises(ValueError, match="a batch of 1 has none"):
            make(name).check_training(100, 1, 2)
    with pytest.raises(ValueError, match="predict"):
        build_method("SCE")(make_views(2), mode="predict")
    for name, option in (("SCE", "lamda_"), ("MoCo", "predictor"), ("ReSSL", "predictor")):
        with pytest.raises(TypeError, match=option):
            MODELS.build(dict(type=name, backbone={}, projector={}, **{option: {}}))


# SwAV: prototypes and queue. LeJEPA: directions.


def test_prototypes_are_frozen_at_first_and_unit_vectors_always():
    model = build("SwAV", frozen_prototype_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    # As in a training run, the model is called after each optimiser step.
    wrapper = SimpleNamespace(optimizer=optimizer)
    OptimizerStepHook().before_train(SimpleNamespace(model=model, optim_wrapper=wrapper))
    initial, moved = model.prototypes.weight.detach().clone(), []
    for number in range(4):
        optimizer.zero_grad()
        model(views_of_sizes(seed=number), mode="loss")["loss"].backward()
        optimizer.step()
        model.after_optimizer_step()
        norms = model.prototypes.weight.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones(6, dtype=torch.float64))
        moved.append(bool((model.prototypes.weight - initial).abs().max() > 1e-4))
    assert moved == [False, False, True, True] and int(model.steps.step) == 4


def test_the_queue_is_filled_from_its_step_on_and_used_when_full():
    """Six samples per step fill the queue in steps 1 and 2. Later, the last 12 are used."""
    model = build("SwAV", queue_size=12, queue_start_steps=1, target_views=(2, 0))
    embeddings = []
    for number in range(5):
        x = views_of_sizes((32,) * 3, seed=number)
        reference = copy.deepcopy(model)
        z = [reference.projector(reference.backbone(v).mean((2, 3, 4))) for v in x]
        queues = None
        if number >= 3:
            queues = [torch.cat(pair) for pair in zip(*embeddings[-2:], strict=True)]
        expected = loss_of(reference, z, x, (2, 0), queues)
        without = loss_of(reference, z, x, (2, 0))
        loss = model(x, mode="loss")["loss"]
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6), number
        assert (abs(loss.item() - without.item()) > 1e-4) == (number >= 3)
        model.after_optimizer_step()
        embeddings.append([unit(z[2]).detach(), unit(z[0]).detach()])
    # A skipped step does not change the queue.
    before = model.queue.keys.clone()
    model(x, mode="loss")
    model.discard_step()
    model.after_optimizer_step()
    assert torch.equal(model.queue.keys, before) and int(model.steps.step) == 6


def test_directions_are_unit_vectors_that_change_with_the_step_only():
    state = torch.get_rng_state()
    directions = RandomDirections(5000, 3)
    first = directions()
    torch.testing.assert_close(first.norm(dim=1), torch.ones(5000))
    torch.testing.assert_close(first.T @ first / 5000, torch.eye(3) / 3, atol=0.02, rtol=0)
    assert torch.equal(directions(), first)
    directions.advance()
    assert not torch.equal(directions(), first)
    restored = RandomDirections(5000, 3)
    restored.load_state_dict(directions.state_dict())
    for _ in range(2):
        assert torch.equal(restored(), directions())
        restored.advance()
        directions.advance()
    assert torch.equal(torch.get_rng_state(), state)
