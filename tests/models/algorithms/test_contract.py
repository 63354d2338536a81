"""Every registered self-supervised method keeps the contract of SelfSupervisedModel."""

from __future__ import annotations

import copy
import inspect
import math
from functools import partial

import pytest
import torch
from helpers.query_methods import build_method
from helpers.recipes import (
    FREE,
    KEPT,
    RELATIONS,
    RHO,
    SWAV_QUEUE,
    VIT,
    arguments,
    recipe,
    small_recipe,
)
from helpers.run_tool import run_gloo
from helpers.tiny_encoder import write_lossless
from helpers.training import Recorder, make_videos, train
from mmengine.config import ConfigDict
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel
from torch import Tensor

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.models.modules.lora import add_adapters
from sce_video.registry import MODELS
from sce_video.utils.tensors import DeferredNumber

REGISTERED = sorted(
    name
    for name, kind in MODELS.module_dict.items()
    if inspect.isclass(kind) and issubclass(kind, SelfSupervisedModel)
)
METHODS = [*REGISTERED, RELATIONS, SWAV_QUEUE]


def test_initialisation_is_written_to_files_only(tmp_path, capsys):
    """Without a log file, for example in your own loop, mmengine would print all parameters."""
    MMLogger.get_instance(f"alone {tmp_path}")
    build_method("SCE")  # which initialises it
    for part in ("backbone", "projector"):
        getattr(MODELS.build(recipe("SCE").model), part).init_weights()
    printed = capsys.readouterr()
    assert "The value is the same before and after" not in printed.out + printed.err
    assert len((printed.out + printed.err).splitlines()) < 5
    file = tmp_path / "log.txt"
    MMLogger.get_instance(f"with a file {tmp_path}", log_file=str(file))
    build_method("SCE")
    assert "backbone.conv1.weight" in file.read_text()


def own_state(model: SelfSupervisedModel) -> dict[str, Tensor]:
    """Return the state that a method changes itself: neither trained nor a BN statistic."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {
        name: value.clone()
        for name, value in model.state_dict().items()
        if name not in trained and not name.endswith(statistics)
    }


def trained_state(model: SelfSupervisedModel) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert set(a) == set(b)
    return all(torch.equal(a[name], b[name]) for name in a)


#: First losses of seeded runs, computed once
GOLDEN = {
    "BYOL": [3.129983, 0.782971, 0.417656, 0.276755, 0.157898],
    "Distill": [0.877391, 0.834807, 0.756469, 0.640838, 0.551759],
    RELATIONS: [3.365152, 1.636186, 2.227125, 2.190513, 2.18579],
    "LeJEPA": [0.085382, 0.084043, 0.083868, 0.08419, 0.084535],
    "MoCo": [1.460546, 1.516879, 2.073382, 1.894186, 2.021949],
    "MoCoV3": [1.128361, 1.287992, 1.333538, 1.25625, 1.442872],
    "ReSSL": [1.619878, 1.404598, 2.088594, 2.079009, 2.104183],
    "SCE": [5.216366, 6.674669, 2.466729, 2.188887, 2.170044],
    "SimCLR": [4.327081, 1.943819, 1.945593, 1.945915, 1.945916],
    "SwAV": [3.624853, 6.554568, 4.415206, 3.331482, 2.619011],
    KEPT: [0.0936457, 0.0866313, 0.0878224, 0.0871419, 0.0869619],
    VIT: [2.621444, 2.175163, 2.176437, 2.188364, 2.175745],
    FREE: [5.590008, 5.1713, 1.964585, 2.114369, 2.128586],
    SWAV_QUEUE: [2.222288, 2.213983, 2.17786, 2.25832, 1.913461],
}


class Watcher(Recorder):
    """A hook that records the engine's calls and the method's state after every iteration."""

    def before_train(self, runner) -> None:
        model = runner.model
        self.trained, self.states = [trained_state(model)], [own_state(model)]
        self.calls: list[list[str]] = []
        for name in ("after_optimizer_step", "discard_step"):
            setattr(model, name, self._recorded(name, getattr(model, name)))

    def _recorded(self, name, method):
        def call():
            self.calls[-1].append(name)
            method()

        return call

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        self.calls.append([])

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        self.trained.append(trained_state(runner.model))
        self.states.append(own_state(runner.model))


class SteadyWatcher(Watcher):
    """Compute in float64, with batch norm in evaluation mode.

    With four samples, batch norm magnifies rounding errors thirtyfold in each step. In float32, the
    losses after a few of these large steps would depend on torch's version and the processor.
    """

    def before_train(self, runner) -> None:
        runner.model.double()
        for module in runner.model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(
                    lambda module, given: tuple(
                        x.double() if torch.is_tensor(x) and x.is_floating_point() else x
                        for x in given
                    )
                )
        super().before_train(runner)

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        super().before_train_iter(runner, batch_idx, data_batch)
        for module in runner.model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.eval()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Write 12 videos whose frames do not depend on the version of the codec."""
    return make_videos(tmp_path_factory.mktemp("videos"), write=write_lossless)


def test_the_contract_covers_methods():
    names = {"BYOL", "Distill", "LeJEPA", "MoCo", "MoCoV3", "ReSSL", "SCE", "SimCLR", "SwAV"}
    assert names <= set(REGISTERED) <= set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_trains_with_the_golden_losses_to_a_checkpoint_of_plain_data(
    name, videos, tmp_path, monkeypatch
):
    """Train six steps in two epochs."""
    # torch 2.12 draws truncated normal numbers in a different way than earlier versions
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda x, std: x.data.normal_(0.0, std))
    cfg = small_recipe(name, videos, tmp_path, default_hooks__checkpoint__interval=6)
    runner, watcher = train(cfg, recorder=SteadyWatcher())
    assert [loss for _, loss, *_ in watcher.rows[:5]] == pytest.approx(GOLDEN[name], rel=1e-4)
    assert all(math.isfinite(value) for row in watcher.rows for value in row)
    first, last = watcher.trained[0], watcher.trained[-1]
    assert not [parameter for parameter in last if torch.equal(last[parameter], first[parameter])]
    assert watcher.calls == [["after_optimizer_step"]] * 6
    weights = torch.load(tmp_path / "iter_6.pth", weights_only=True)["state_dict"]
    model = MODELS.build(recipe(name).model).double()
    model.load_state_dict(weights, strict=True)
    assert equal(dict(model.state_dict()), dict(runner.model.state_dict()))


def test_only_loss_is_minimised():
    model = build_method("BYOL")
    scalars = {"loss_x": torch.tensor(3.0), "loss": torch.tensor(2.0), "b": torch.tensor([1.0])}
    loss, logged = model.parse_losses(scalars)
    assert loss.item() == 2.0
    assert {name: value.item() for name, value in logged.items()} == dict(loss=2, loss_x=3, b=1)
    norm = DeferredNumber(torch.tensor([3.0, 4.0], requires_grad=True), torch.linalg.vector_norm)
    _, logged = model.parse_losses({**scalars, "norm": norm})
    assert logged["norm"].read() == 5.0 and not logged["norm"].tensor.requires_grad
    with pytest.raises(ValueError, match="scalar tensors, but 'loss' is DeferredNumber"):
        model.parse_losses({"loss": norm})
    with pytest.raises(ValueError, match=r"must return a 'loss', got \['loss_x'\]"):
        model.parse_losses({"loss_x": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"scalar tensors, but 'b' is \(2,\)"):
        model.parse_losses({"loss": torch.tensor(1.0), "b": torch.ones(2)})


@pytest.mark.parametrize("name", ["SCE", RELATIONS, SWAV_QUEUE, RHO, KEPT])
def test_a_resumed_run_equals_the_uninterrupted_one(name, videos, tmp_path):
    """Test all kinds of state: targets, queues, prototypes, steps and Shuffle-BN."""
    views = {"data_preprocessor__views": [{}] * 4} if name == RHO else {}
    cfg = small_recipe(name, videos, tmp_path / "whole", **views)
    whole, watcher = train(cfg, recorder=Watcher())
    assert watcher.calls == [["after_optimizer_step"]] * 6
    cfg.work_dir, cfg.resume = str(tmp_path / "resumed"), True
    cfg.load_from = str(tmp_path / "whole/iter_4.pth")
    resumed, after = train(cfg)
    assert after.rows == watcher.rows[4:]
    for scheduled in (n for hook in cfg.custom_hooks for n in hook.get("model") or ()):
        assert getattr(resumed.model, scheduled) == getattr(whole.model, scheduled)
    assert equal(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))


@pytest.mark.parametrize("name", METHODS)
def test_state_changes_after_a_step_and_nothing_is_kept_of_a_skipped_one(name):
    model = MODELS.build(recipe(name).model)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.add_(0.01)  # a target that differs
    fresh, before = copy.deepcopy(model), own_state(model)
    views = list(torch.rand(2, 8, 3, 2, 32, 32, generator=torch.Generator().manual_seed(0)))
    for _ in range(2):  # micro-batches
        model.loss(views)["loss"].backward()
    assert equal(own_state(model), before)
    model.discard_step()
    for one in (model, fresh):
        one.after_optimizer_step()
    assert equal(own_state(model), own_state(fresh))
    model.loss(views)
    model.after_optimizer_step()
    assert not before or not equal(own_state(model), own_state(fresh))


@pytest.mark.parametrize("skipped", [False, True])
def test_the_engine_tells_of_accumulated_and_of_skipped_steps(skipped, videos, tmp_path):
    """Test steps that are skipped because every gradient overflows at their loss scale."""
    changes = dict(train_dataloader__batch_size=2, optim_wrapper__accumulative_counts=2)
    calls = [[], ["after_optimizer_step"]] * 3
    if skipped:
        changes = dict(optim_wrapper__dtype="float16", optim_wrapper__init_scale=2.0**120)
        calls = [["discard_step"]] * 3
    options = dict(default_hooks__checkpoint__interval=6, train_cfg__max_epochs=1)
    _, watcher = train(small_recipe("SCE", videos, tmp_path, **changes, **options), None, Watcher())
    assert watcher.calls == calls
    for number, names in enumerate(calls):
        for states in (watcher.trained, watcher.states):
            changed = names == ["after_optimizer_step"]
            assert equal(states[number], states[number + 1]) != changed


STEPS, BATCH = 2, 8  # the batch of all processes together


def direct_steps(config: ConfigDict, rank: int, world: int) -> dict:
    """Train a model by plain SGD on this rank's share of the joint batches.

    CPUs have no SyncBN. With batch norm in evaluation mode, the processes compute the same function
    as one process.
    """
    torch.manual_seed(0)
    cfg = copy.deepcopy(config)
    lora = cfg.pop("lora", None)
    if "zero_init_residual" in arguments(cfg.backbone):
        cfg.backbone.zero_init_residual = False
    algorithm = MODELS.build(cfg)
    if lora:
        add_adapters(algorithm, **lora)
    algorithm.init_weights()
    algorithm.eval()
    model = algorithm
    if world > 1:
        model = MMDistributedDataParallel(module=algorithm, broadcast_buffers=False).eval()
    trained = [p for p in algorithm.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)
    losses, gradients = [], {}
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 + step)
        joint = [torch.rand(BATCH, 3, 2, 32, 32, generator=generator) for _ in range(2)]
        optimizer.zero_grad()
        loss, _ = algorithm.parse_losses(model([v[rank::world] for v in joint], mode="loss"))
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in algorithm.named_parameters() if
                         p.grad is not None}  # fmt: skip
        optimizer.step()
        algorithm.after_optimizer_step()
        losses.append(loss.item())
    return {"losses": torch.tensor(losses, dtype=torch.float64), "gradients": gradients,
            "trained": trained_state(algorithm), "state": own_state(algorithm)}  # fmt: skip


def steps_of_all(models: dict[str, ConfigDict], rank: int, world: int) -> dict:
    # In float32, on some processors, a different order of a sum exceeds any useful bound.
    torch.set_default_dtype(torch.float64)
    try:
        return {name: direct_steps(config, rank, world) for name, config in models.items()}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_equal_one(tmp_path):
    models = {name: recipe(name).model for name in METHODS}  # finding them reads all recipes
    models["LoRA"] = ConfigDict({**recipe(VIT).model, "lora": dict(rank=4)})
    first, second = run_gloo(partial(steps_of_all, models), tmp_path)
    for name, one in steps_of_all(models, 0, 1).items():
        a, b = first[name], second[name]
        torch.testing.assert_close(
            (a["losses"] + b["losses"]) / 2, one["losses"], rtol=1e-6, atol=1e-6, msg=name
        )
        assert not torch.equal(a["losses"], b["losses"])  # they saw different samples
        assert one["gradients"]
        for part in ("gradients", "trained", "state"):
            assert equal(a[part], b[part]), (name, part)
            for key, value in one[part].items():
                scale = value.abs().max().item()
                torch.testing.assert_close(
                    a[part][key], value, rtol=1e-4, atol=1e-4 * scale + 1e-8, msg=f"{name} {key}"
                )
