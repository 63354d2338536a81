"""A recipe whose trainings are killed, stopped and moved to other numbers of processes.

``custom_imports`` of the recipe imports this module in the processes of the training. Environment
variables say what happens there: ``KILL_AT`` and ``STOP_AT`` name an iteration.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
from helpers.training import small_config
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from torch import Tensor, distributed, nn

from sce_video.registry import HOOKS

GLOBAL_BATCH = 4
STEPS = 8


def write_recipe(videos: Path, folder: Path) -> Path:
    """Write the config of two epochs with a global batch of 4; returns its path."""
    cfg = small_config(
        videos,
        folder / "unused",
        train_cfg__max_epochs=2,
        default_hooks__checkpoint__interval=2,
    )
    cfg.global_batch = GLOBAL_BATCH
    cfg.randomness = dict(seed=0)
    cfg.optim_wrapper = dict(type="OptimWrapper", optimizer=cfg.optim_wrapper.optimizer)
    cfg.custom_imports = dict(
        imports=["helpers.double_precision", "helpers.survival"], allow_failed_imports=False
    )
    cfg.custom_hooks = [*cfg.custom_hooks, dict(type="Survival")]
    cfg.run_page = None
    for key in ("work_dir", "launcher"):
        cfg.pop(key)
    path = folder / "recipe.py"
    cfg.dump(path)
    return path


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        distributed.all_reduce(gradient)
        return gradient


def _synchronised(module: nn.Module, x: Tensor) -> Tensor:
    """What torch's SyncBatchNorm computes on GPUs, for CPUs, where it does not exist."""
    if not module.training:
        return type(module).forward(module, x)
    axes = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    count = x.numel() // x.shape[1] * get_world_size()
    mean = _SumOverRanks.apply(x.sum(axes)) / count
    centred = x - mean.view(shape)
    variance = _SumOverRanks.apply(centred.square().sum(axes)) / count
    with torch.no_grad():
        momentum = module.momentum
        module.running_mean.lerp_(mean, momentum)
        module.running_var.lerp_(variance * count / (count - 1), momentum)
        module.num_batches_tracked += 1
    normal = centred * (variance.view(shape) + module.eps).rsqrt()
    if module.weight is None:
        return normal
    return normal * module.weight.view(shape) + module.bias.view(shape)


@HOOKS.register_module()
class Survival(Hook):
    """Records every step, synchronises BN over two ranks, and kills or stops the training."""

    priority = "LOWEST"

    def before_train(self, runner) -> None:
        model = runner.model.module if get_world_size() > 1 else runner.model
        for encoder in (model.backbone, model.target.backbone):
            encoder.register_forward_pre_hook(lambda module, given: (given[0].double(),))
        if get_world_size() > 1:
            for module in runner.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.forward = _synchronised.__get__(module)

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if get_rank() != get_world_size() - 1:
            return
        done = str(runner.iter)
        if os.environ.get("KILL_AT") == done and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("STOP_AT") == done:
            os.kill(os.getpid(), signal.SIGUSR1)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        row = dict(iter=runner.iter, ranks=get_world_size(), loss=float(outputs["loss"]))
        row["indices"] = data_batch["index"].tolist()
        with open(Path(runner.work_dir, f"record_{get_rank()}.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")


def recorded(folder: Path) -> list[tuple[list[int], float]]:
    """(sample indices of the global batch in its order, loss) of every step, the last record."""
    ranks = []
    for rank in range(2):
        path = folder / f"record_{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        ranks.append({row["iter"]: row for row in map(json.loads, lines)})
    steps = []
    for step in sorted(ranks[0]):
        rows = [rank[step] for rank in ranks[: ranks[0][step]["ranks"]]]
        joint = [
            i for together in zip(*(r["indices"] for r in rows), strict=True) for i in together
        ]
        steps.append((joint, sum(row["loss"] for row in rows) / len(rows)))
    return steps
