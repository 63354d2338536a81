"""Every registered self-supervised method keeps the contract of SelfSupervisedModel."""

from __future__ import annotations

import copy
import inspect
import math
import os
from pathlib import Path

import pytest
import torch
from helpers.query_methods import build_method
from helpers.recipes import FREE, RHO, SWAV_QUEUE, VIT, arguments, recipe, small_recipe
from helpers.run_tool import free_port, run_ranks
from helpers.tiny_encoder import write_lossless
from helpers.training import Recorder, make_videos, train
from mmengine.config import Config, ConfigDict
from mmengine.model import MMDistributedDataParallel
from torch import Tensor

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.registry import MODELS

REGISTERED = sorted(
    name
    for name, kind in MODELS.module_dict.items()
    if inspect.isclass(kind) and issubclass(kind, SelfSupervisedModel)
)
METHODS = [*REGISTERED, SWAV_QUEUE]


def own_state(model: SelfSupervisedModel) -> dict[str, Tensor]:
    """What a method changes beside training: not trained, and no statistic of a batch norm."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {
        name: value.clone()
        for name, value in model.state_dict().items()
        if name not in trained and not name.endswith(statistics)
    }


def trained_state(model: SelfSupervisedModel) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def scheduled(cfg: Config) -> list[str]:
    """Numbers of the model that follow a schedule."""
    return [name for hook in cfg.custom_hooks for name in hook.get("model") or ()]


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert set(a) == set(b)
    return all(torch.equal(a[name], b[name]) for name in a)


class Watcher(Recorder):
    """Records the calls of the engine and the method's state after every iteration."""

    def before_train(self, runner) -> None:
        model = runner.model
        self.initial = {name: value.clone() for name, value in model.state_dict().items()}
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
        self.names = list(outputs)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """12 videos whose frames do not depend on the version of the codec."""
    return make_videos(tmp_path_factory.mktemp("videos"), write=write_lossless)


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def run(method, videos, tmp_path_factory):
    """Six steps over two epochs."""
    folder = tmp_path_factory.mktemp(method)
    return folder, *train(small_recipe(method, videos, folder), recorder=Watcher())


def test_the_contract_covers_methods():
    names = {"BYOL", "LeJEPA", "MoCo", "MoCoV3", "ReSSL", "SCE", "SimCLR", "SwAV"}
    assert names <= set(REGISTERED)


def test_trains(run):
    _, _, watcher = run
    assert len(watcher.rows) == 6
    assert all(math.isfinite(value) for row in watcher.rows for value in row)
    unmoved = [
        name
        for name, value in watcher.trained[-1].items()
        if torch.equal(value, watcher.trained[0][name])
    ]
    assert not unmoved
    assert watcher.calls == [["after_optimizer_step"]] * 6


def test_only_loss_is_minimised():
    model = build_method("BYOL")
    scalars = {"loss_x": torch.tensor(3.0), "loss": torch.tensor(2.0), "b": torch.tensor([1.0])}
    loss, logged = model.parse_losses(scalars)
    assert loss.item() == 2.0
    assert {name: value.item() for name, value in logged.items()} == dict(loss=2, loss_x=3, b=1)
    with pytest.raises(ValueError, match=r"must return a 'loss', got \['loss_x'\]"):
        model.parse_losses({"loss_x": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"scalar tensors, 'b' is \(2,\)"):
        model.parse_losses({"loss": torch.tensor(1.0), "b": torch.ones(2)})


def test_checkpoint_is_plain_data_and_restores_the_method(run, method):
    folder, runner, _ = run
    weights = torch.load(folder / "iter_6.pth", weights_only=True)["state_dict"]
    model = MODELS.build(recipe(method).model)
    model.load_state_dict(weights, strict=True)
    assert equal(dict(model.state_dict()), dict(runner.model.state_dict()))


def test_a_resumed_run_equals_the_uninterrupted_one(run, method, videos, tmp_path):
    folder, whole, watcher = run
    cfg = small_recipe(method, videos, tmp_path, load_from=str(folder / "iter_4.pth"), resume=True)
    resumed, after = train(cfg)
    assert after.rows == watcher.rows[4:]
    for name in scheduled(cfg):
        assert getattr(resumed.model, name) == getattr(whole.model, name)
    assert equal(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))


def test_rho_views_query_by_query_train_and_resume(videos, tmp_path):
    """As the tests above: shuffle-BN draws other permutations in every step, resumed or not."""

    cfg = small_recipe(RHO, videos, tmp_path / "whole", data_preprocessor__views=[{}] * 4)
    whole, watcher = train(cfg, recorder=Watcher())
    assert watcher.calls == [["after_optimizer_step"]] * 6
    assert not equal(watcher.trained[0], watcher.trained[-1])
    assert int(whole.model.target.shuffle.step) == 6
    cfg.work_dir, cfg.resume = str(tmp_path / "resumed"), True
    cfg.load_from = str(tmp_path / "whole/iter_4.pth")
    resumed, after = train(cfg)
    assert after.rows == watcher.rows[4:]
    assert equal(dict(resumed.model.state_dict()), dict(whole.model.state_dict()))


def test_state_changes_once_per_accumulated_step(method, videos, tmp_path):
    cfg = small_recipe(
        method,
        videos,
        tmp_path,
        train_dataloader__batch_size=2,
        optim_wrapper__accumulative_counts=2,
        default_hooks__checkpoint__interval=6,
        train_cfg__max_epochs=1,
    )
    _, watcher = train(cfg, recorder=Watcher())
    assert watcher.calls == [[], ["after_optimizer_step"]] * 3
    for number in range(6):
        changes = number % 2 == 1
        trained, states = watcher.trained, watcher.states
        assert equal(trained[number], trained[number + 1]) != changes
        if states[0]:
            assert equal(states[number], states[number + 1]) != changes


def test_a_skipped_fp16_step_changes_nothing(method, videos, tmp_path):
    """With a loss scale at which every gradient overflows."""
    cfg = small_recipe(
        method,
        videos,
        tmp_path,
        optim_wrapper__dtype="float16",
        optim_wrapper__init_scale=2.0**120,
        train_cfg__max_epochs=1,
    )
    runner, watcher = train(cfg, recorder=Watcher())
    assert watcher.calls == [["discard_step"]] * 3
    assert equal(watcher.trained[0], watcher.trained[-1])
    assert equal(watcher.states[0], watcher.states[-1])
    # Nothing is kept of the skipped steps: the next change is that of a method that had none.
    fresh = MODELS.build(recipe(method).model)
    fresh.load_state_dict(watcher.initial)
    for name in scheduled(cfg):
        setattr(fresh, name, getattr(runner.model, name))
    watcher.calls.append([])
    runner.model.after_optimizer_step()
    fresh.after_optimizer_step()
    assert equal(own_state(runner.model), own_state(fresh))


STEPS, BATCH = 3, 8  # the batch of all processes together


def direct_steps(config: ConfigDict, rank: int, world: int) -> dict:
    """Steps of plain SGD of a model on this rank's share of the joint batches.

    There is no SyncBN on CPUs: with batch norm in eval mode the processes compute the function of
    one process.
    """
    torch.manual_seed(0)
    cfg = copy.deepcopy(config)
    if "zero_init_residual" in arguments(cfg.backbone):
        cfg.backbone.zero_init_residual = False
    algorithm = MODELS.build(cfg)
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


def worker(rank: int, world: int, port: int, folder: Path, models: dict[str, ConfigDict]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    found = {name: direct_steps(config, rank, world) for name, config in models.items()}
    torch.save(found, folder / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_equal_one(tmp_path):
    models = {name: recipe(name).model for name in METHODS}  # finding them reads all recipes
    run_ranks(worker, 2, free_port(), tmp_path, models)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in METHODS:
        one, a, b = direct_steps(models[name], 0, 1), first[name], second[name]
        torch.testing.assert_close(
            (a["losses"] + b["losses"]) / 2, one["losses"], rtol=1e-5, atol=1e-5, msg=name
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


# Whole seeded runs: the first losses of every method, and objectives that are the same one.


#: Computed once.
GOLDEN = {
    "BYOL": [3.129983, 0.782971, 0.417656, 0.276755, 0.157898],
    "LeJEPA": [0.085382, 0.084043, 0.083868, 0.08419, 0.084535],
    "MoCo": [1.460546, 1.516879, 2.073382, 1.894186, 2.021949],
    "MoCoV3": [1.128361, 1.287992, 1.333538, 1.25625, 1.442872],
    "ReSSL": [1.619878, 1.404598, 2.088594, 2.079009, 2.104183],
    "SCE": [5.216366, 6.674669, 2.466729, 2.188887, 2.170044],
    "SimCLR": [4.327081, 1.943819, 1.945593, 1.945915, 1.945916],
    "SwAV": [3.624853, 6.554568, 4.415206, 3.331482, 2.619011],
    VIT: [2.621444, 2.175163, 2.176437, 2.188364, 2.175745],
    FREE: [5.590008, 5.1713, 1.964585, 2.114369, 2.128586],
    SWAV_QUEUE: [2.222288, 2.213983, 2.17786, 2.25832, 1.913461],
}


class SteadyRecorder(Recorder):
    """Computes in float64 and keeps batch norm in eval mode.

    Over four samples batch norm magnifies rounding thirtyfold a step; and in float32 another
    version of torch, or another processor, gives other losses after a few of these large steps.
    """

    def before_train(self, runner):
        runner.model.double()
        for module in runner.model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(
                    lambda module, given: tuple(
                        x.double() if torch.is_tensor(x) and x.is_floating_point() else x
                        for x in given
                    )
                )

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        for module in runner.model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.eval()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_first_losses(name, videos, tmp_path, monkeypatch):
    # torch 2.12 draws other numbers of a truncated normal distribution than those before
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda x, std: x.data.normal_(0.0, std))
    cfg = small_recipe(name, videos, tmp_path, default_hooks__checkpoint=None)
    _, recorder = train(cfg, len(GOLDEN[name]), SteadyRecorder(len(GOLDEN[name])))
    assert [loss for _, loss, *_ in recorder.rows] == pytest.approx(GOLDEN[name], rel=1e-4)
