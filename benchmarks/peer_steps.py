"""The rows "step" and "image step" of benchmarks/peers.py: a training step on a CPU.

Our side is the recipe's model with mixed-precision wrapper, LARS and target, as in a training.
Lightly's side is the loop of its examples (``examples/pytorch`` of lightly-ai/lightly) with the
same backbone. eztorch's side is the step of its classes (juliendenize/eztorch, the code of SCE's
authors) with the same networks. LightlyTrain's side is the step of its class with its optimiser and
torchvision's network of that name. Views are existing float tensors, so no side augments.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Job = dict[str, Any]
Step = Callable[[list[torch.Tensor]], Any]
SIZES = {"step": (8, 112, 4), "image step": (1, 224, 16)}  # frames, pixels, batch


def configuration(job: Job, fast: bool) -> Any:
    """Return the recipe of a method for videos, or for images with a ResNet-18."""
    sys.path += [path for path in job["paths"] if path not in sys.path]
    import step_process

    frames, size, batch = SIZES[job["what"]]
    name = f"../{job['method']}/{job['method']}_r3d18_8xb64-8x224-200e_k200.py"
    flags = frozenset({"channels_last"} if fast else ())
    cfg = step_process.job_config(step_process.Job(name, frames, size, batch, flags))
    if frames == 1:
        cfg.model.backbone = dict(type="ResNet2d", depth=18, channels_last=fast)
    return cfg


def run(job: Job, step: Step) -> None:
    """Measure a step on two random views of the batch."""
    frames, size, batch = SIZES[job["what"]]
    generator = torch.Generator().manual_seed(len(job["method"]))
    views = [torch.randn(batch, 3, frames, size, size, generator=generator) for _ in range(2)]
    cpu = time.process_time()
    step(views)
    job["cpu"] = time.process_time() - cpu


@functools.cache
def _our_model(what: str, method: str) -> Step:
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import init_default_scope

    from sce_video.registry import MODELS

    init_default_scope("sce_video")
    cfg = configuration({"what": what, "method": method, "paths": []}, True)
    model = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor}).train()
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)

    def step(views: list[torch.Tensor]) -> None:
        views = [view.to(memory_format=torch.channels_last_3d) for view in views]
        with optimizer.optim_context(model):
            loss, _ = model.parse_losses(model(inputs=views, mode="loss"))
        optimizer.update_params(loss)
        model.after_optimizer_step()

    return step


def our_step(job: Job) -> None:
    """Return a step of the recipe's model with ``channels_last``, its optimiser and target."""
    run(job, _our_model(job["what"], job["method"]))


class Lightly(torch.nn.Module):
    """The classes of lightly's examples: backbone, heads, their loss, and copies with momentum."""

    def __init__(self, backbone: torch.nn.Module, method: str) -> None:
        super().__init__()
        from lightly import loss
        from lightly.models import modules, utils

        if method in ("sce", "ressl"):
            raise ValueError(f"it has no {method}")
        self.method, self.utils = method, utils
        self.backbone, self.predict, size = backbone, torch.nn.Identity(), 512
        if method == "byol":
            self.project = modules.BYOLProjectionHead(size, 1024, 256)
            self.predict = modules.BYOLPredictionHead(256, 1024, 256)
            self.criterion = loss.NegativeCosineSimilarity()
        elif method == "lejepa":
            self.project = modules.LeJEPAProjectionHead(size, 1024, 256)
            self.criterion = loss.LeJEPALoss(sigreg_t_max=5.0)
        elif method == "swav":
            self.project = modules.SwaVProjectionHead(size, 1024, 128)
            self.prototypes = modules.SwaVPrototypes(128, n_prototypes=1000)
            self.criterion = loss.SwaVLoss()
        elif method == "moco":
            self.project = modules.MoCoProjectionHead(size, 1024, 128)
            self.criterion = loss.NTXentLoss(memory_bank_size=(65536, 128))
        else:
            self.project = modules.SimCLRProjectionHead(size, 1024, 128)
            self.criterion = loss.NTXentLoss()
        if method in ("byol", "moco"):
            self.targets = copy.deepcopy(self.backbone), copy.deepcopy(self.project)
            for target in self.targets:
                utils.deactivate_requires_grad(target)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

    def target(self, view: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.targets[1](self.backbone.pool(self.targets[0](view)))

    def __call__(self, views: list[torch.Tensor]) -> None:
        if self.method in ("byol", "moco"):
            pairs = (self.backbone, self.targets[0]), (self.project, self.targets[1])
            for model, target in pairs:
                self.utils.update_momentum(model, target, m=0.99)
        first, second = views
        if self.method == "swav":
            self.prototypes.normalize()
        ours = self.predict(self.project(self.backbone.pool(self.backbone(first))))
        if self.method == "moco":
            value = self.criterion(ours, self.target(second))
        else:
            theirs = self.predict(self.project(self.backbone.pool(self.backbone(second))))
            if self.method == "byol":
                value = self.criterion(ours, self.target(second))
                value = 0.5 * (value + self.criterion(theirs, self.target(first)))
            elif self.method == "swav":
                normal = torch.nn.functional.normalize
                scores = [self.prototypes(normal(z, dim=1)) for z in (ours, theirs)]
                value = self.criterion(scores, [])
            elif self.method == "lejepa":
                value = self.criterion(global_proj=ours[None], local_proj=theirs[None])
            else:
                value = self.criterion(ours, theirs)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@functools.cache
def _lightly(what: str, method: str, paths: tuple[str, ...], fast: bool) -> Step:
    cfg = configuration({"what": what, "method": method, "paths": list(paths)}, fast)
    from sce_video.registry import MODELS

    backbone = MODELS.build(cfg.model.backbone).train()
    return Lightly(backbone, method)


def lightly_step(job: Job) -> None:
    """Return the loop of lightly's example as it is written there."""
    torch.set_num_threads(1)
    run(job, _lightly(job["what"], job["method"], tuple(job["paths"]), False))


def lightly_channels_last(job: Job) -> None:
    """Return lightly's loop with our memory format."""
    torch.set_num_threads(1)
    step = _lightly(job["what"], job["method"], tuple(job["paths"]), True)
    run(job, lambda views: step([v.to(memory_format=torch.channels_last_3d) for v in views]))


@functools.cache
def _lightly_train() -> Step:
    from lightly_train._methods.simclr.simclr import SimCLR, SimCLRArgs, SimCLRSGDArgs
    from lightly_train._models.embedding_model import EmbeddingModel
    from lightly_train._models.package_helpers import get_wrapped_model
    from lightly_train._optim.optimizer_helpers import get_optimizer

    batch, arguments = SIZES["image step"][2], SimCLRSGDArgs()
    network = EmbeddingModel(get_wrapped_model("torchvision/resnet18", num_input_channels=3))
    method = SimCLR(SimCLRArgs(hidden_dim=1024), arguments, network, batch, 3).train()
    optimizer = get_optimizer(arguments, method.trainable_modules(), batch / 256)

    def step(views: list[torch.Tensor]) -> None:
        images = [view.squeeze(2) for view in views]
        method.training_step_impl({"views": images}, 0).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def lightly_train_step(job: Job) -> None:
    """Return LightlyTrain's SimCLR without Lightning's trainer."""
    if job["method"] != "simclr":
        raise ValueError("it has SimCLR of these methods")
    torch.set_num_threads(1)
    run(job, _lightly_train())


#: Modules of eztorch's ``models/siamese`` and the class in each, by method. Its MoCo v3 calls its
#: loss with one argument too many and ends with a TypeError.
EZTORCH = {
    "simclr": ("simclr", "SimCLRModel"),
    "moco": ("moco", "MoCoModel"),
    "ressl": ("ressl", "ReSSLModel"),
    "sce": ("sce", "SCEModel"),
}


class Network(torch.nn.Sequential):
    """A backbone and its pooling."""

    def forward(self, view: torch.Tensor) -> torch.Tensor:
        return self[0].pool(self[0](view))


def part(what: str, method: str, paths: list[str], name: str) -> torch.nn.Module:
    """Build a part of the recipe's model. hydra calls this for eztorch."""
    cfg = configuration({"what": what, "method": method, "paths": list(paths)}, False)
    from sce_video.registry import MODELS

    model = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor})
    return Network(model.backbone) if name == "backbone" else getattr(model, name)


@functools.cache
def _eztorch(what: str, method: str, paths: tuple[str, ...], checkout: str) -> Step:
    from omegaconf import OmegaConf

    if not checkout:
        raise ValueError("it is not on PyPI: --eztorch CHECKOUT of github.com/juliendenize/eztorch")
    for name in ("", ".models", ".models.siamese", ".optimizers"):  # not all that they import
        package = types.ModuleType(f"eztorch{name}")
        package.__path__ = [str(Path(checkout, *package.__name__.split(".")))]
        sys.modules[package.__name__] = package
    module, kind = EZTORCH[method]
    classes = importlib.import_module(f"eztorch.models.siamese.{module}")
    recipe = configuration({"what": what, "method": method, "paths": list(paths)}, False).model
    made = {"_target_": "peer_steps.part", "what": what, "method": method, "paths": list(paths)}
    options = {"trunk": {**made, "name": "backbone"}, "projector": {**made, "name": "projector"}}
    if "predictor" in recipe:
        options["predictor"] = {**made, "name": "predictor"}
    if "queue_size" in recipe:
        queue = {"size": recipe.queue_size, "feature_dim": recipe.projector.out_channels}
        options |= {"queue": queue, "sym": method == "sce", "shuffle_bn": False}
    if method != "simclr":
        options["scheduler_momentum"] = "constant"
    model = getattr(classes, kind)(optimizer=None, **OmegaConf.create(options)).train()
    data = types.SimpleNamespace(train_local_batch_size=SIZES[what][2])
    facts = {"world_size": 1, "global_rank": 0, "accumulate_grad_batches": 1, "datamodule": data}
    model.trainer, model.log = types.SimpleNamespace(**facts), lambda *_, **__: None
    model.on_fit_start()  # makes the masks
    lars = importlib.import_module("eztorch.optimizers.lars").LARS
    optimizer = lars(model.learnable_params, lr=1e-3, weight_decay=1e-6)

    def step(views: list[torch.Tensor]) -> None:
        model.training_step({"input": views}, 0)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        model.on_train_batch_end({}, {}, 0)  # updates the target

    return step


def eztorch_step(job: Job) -> None:
    """Return the calls of Lightning's trainer to eztorch's classes, without the trainer."""
    if job["method"] not in EZTORCH:
        raise ValueError(f"it has no {job['method']}")
    torch.set_num_threads(1)
    checkout = os.environ.get("EZTORCH", "")
    run(job, _eztorch(job["what"], job["method"], tuple(job["paths"]), checkout))
