"""Measure each method's training step relative to SCE's, next to the cost of its clip passes.

    python benchmarks/methods.py [--methods moco byol ...] [--frames 8] [--size 112] [--batch 8]
        [--rounds 5] [--device cpu|cuda] [--threads 1] [--json OUT] [--cfg-options KEY=VALUE ...]

The recipes in SCE's pipeline on Kinetics-200 share one backbone, one optimiser, and views of random
bytes in memory. A step consists of augmentation, forward, loss, backward, optimiser, and the
method's own state. All models are in one process. Their steps are interleaved, alternately forwards
and backwards. Results are medians over the rounds, of CPU time with one thread on a CPU, otherwise
of wall time (``clock``).

Clip passes in a step are counted by hooks on the backbones. An online pass (forward and backward)
costs 3 and a target pass (forward) 1, because the backward pass of a convolution consists of two
products of the size of the forward one. ``measured_weight`` is the measured value for the backbone
alone. The JSON's ``ratios`` are (step / step of SCE) / (cost of the passes / cost of SCE's passes).
The ratio is 1 if a method's step costs what its passes cost, as SCE's does.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import step_process as ts
import torch
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.registry import MODELS
from sce_video.utils.files import write_json

METHODS = ("sce", "moco", "moco_v3", "ressl", "simclr", "byol", "swav", "lejepa")
ONLINE_COST, TARGET_COST = 3, 1


class Method:
    """The training step of one method."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        job = ts.Job(
            f"../{name}/{name}_r3d18_8xb64-8x224-200e_k200.py",
            *(args.frames, args.size, args.batch),
            flags=frozenset({"channels_last"} | ({"bf16"} if args.device == "cuda" else set())),
            device=args.device,
            cfg_options=tuple(args.cfg_options),
        )
        torch.manual_seed(0)
        cfg = ts.job_config(job)
        self.watch, self.batch = ts.Stopwatch(args.device), args.batch
        self.model: SelfSupervisedModel = MODELS.build(
            {**cfg.model, "data_preprocessor": cfg.data_preprocessor}
        )
        self.model.init_weights()
        self.model.to(args.device).train()
        self.optim_wrapper = build_optim_wrapper(self.model, cfg.optim_wrapper)
        self.batches: Iterator[dict] = ts.synthetic_batches(job)
        self.steps: list[dict[str, float]] = []
        self.passes = self._count_passes()

    def _count_passes(self) -> dict[str, int]:
        """Count clip passes of a sample, online and target, in a first step that also warms up."""
        passes = dict(online=0, target=0)

        def count(_: Any, inputs: tuple[torch.Tensor], __: Any) -> None:
            kind = "online" if torch.is_grad_enabled() else "target"
            passes[kind] += len(inputs[0]) // self.batch  # views may pass as one batch

        backbones = [m for n, m in self.model.named_modules() if n.split(".")[-1] == "backbone"]
        hooks = [backbone.register_forward_hook(count) for backbone in backbones]
        self.step()
        for hook in hooks:
            hook.remove()
        return passes

    @property
    def cost(self) -> int:
        return ONLINE_COST * self.passes["online"] + TARGET_COST * self.passes["target"]

    def step(self) -> dict[str, float]:
        """Run one step like BaseModel.train_step and OptimizerStepHook, and return its seconds."""
        with self.watch.part("step"):
            data = self.model.data_preprocessor(next(self.batches), True)
            with self.optim_wrapper.optim_context(self.model):
                loss, _ = self.model.parse_losses(self.model(**data, mode="loss"))
            self.optim_wrapper.update_params(loss)
            self.model.after_optimizer_step()
        return dict(zip(("wall", "cpu"), self.watch.take()["step"], strict=True))

    def weight(self) -> dict[str, float]:
        """Return the backbone's time of forward and backward divided by its time of forward."""
        data = self.model.data_preprocessor(next(self.batches), True)
        view = data["inputs"][0]
        with self.optim_wrapper.optim_context(self.model):
            with self.watch.part("online"):
                self.model.represent(view).float().sum().backward()
            with self.watch.part("target"), torch.no_grad():
                self.model.represent(view)
        self.optim_wrapper.zero_grad()
        taken = self.watch.take()
        both = zip(("wall", "cpu"), taken["online"], taken["target"], strict=True)
        return {name: online / target for name, online, target in both}


def ratios(methods: dict[str, dict[str, Any]], clock: str) -> dict[str, float]:
    """Return step over SCE's step, divided by cost of passes over the cost of SCE's passes."""
    base = methods["sce"]
    return {
        name: (values["seconds"][clock] / base["seconds"][clock]) * base["cost"] / values["cost"]
        for name, values in methods.items()
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run interleaved steps of all methods, and return their medians, passes and ratios."""
    built = {name: Method(name, args) for name in args.methods}
    weights = []
    for number in range(args.rounds):
        names = args.methods if number % 2 == 0 else args.methods[::-1]
        for name in names:
            built[name].steps.append(built[name].step())
        weights.append(built["sce"].weight())
    methods = {}
    for name, method in built.items():
        seconds = {c: statistics.median(step[c] for step in method.steps) for c in ("wall", "cpu")}
        methods[name] = dict(passes=method.passes, cost=method.cost, seconds=seconds)
    return dict(
        methods=methods,
        measured_weight=statistics.median(weight[args.clock] for weight in weights),
        ratios=ratios(methods, args.clock),
    )


def show(report: dict[str, Any], clock: str) -> None:
    """Print a Markdown table."""
    print("| method | passes, online / target | cost | step, s | step / SCE's | ratio |")
    print("|---|---|---|---|---|---|")
    base = report["methods"]["sce"]["seconds"][clock]
    for name, values in report["methods"].items():
        passes, seconds = values["passes"], values["seconds"][clock]
        print(
            f"| {name} | {passes['online']} / {passes['target']} | {values['cost']} | "
            f"{seconds:.3f} | {seconds / base:.2f} | {report['ratios'][name]:.2f} |"
        )
    print(
        f"a forward and backward of the backbone took {report['measured_weight']:.2f} forwards; "
        f"the costs count {ONLINE_COST / TARGET_COST:.0f}"
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="steps of every method")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument("--json", metavar="OUT", help="JSON file for the results")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    for name in ("frames", "size", "batch", "rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    args.methods = ["sce", *(name for name in args.methods if name != "sce")]
    args.clock = "cpu" if args.device == "cpu" and args.threads == 1 else "wall"
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    torch.set_num_threads(args.threads)
    MMLogger.get_instance("train_step", log_level=logging.WARNING)  # no log line per weight
    init_default_scope("sce_video")
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine() + " CPU"
    load = os.getloadavg()
    print(f"{device}, torch {torch.__version__}, {args.threads} threads, load {load}")
    kept = {n: getattr(args, n) for n in ("threads", "clock", "frames", "size", "batch", "rounds")}
    report = dict(device=device, torch=torch.__version__, load=load, **kept, **measure(args))
    show(report, args.clock)
    if args.json:
        write_json(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
