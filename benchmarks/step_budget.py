"""Count what one training step of each method costs a GPU, without a GPU.

    python benchmarks/step_budget.py [--methods sce moco ...] [--record] [--json OUT]

The counts depend on the code and on the release of torch only, not on the processor. They are:

    kernels       operations on the device that read or write memory
    GB            bytes that these operations read and write, in float32, each tensor in full
    augmentation  the same two counts for the data preprocessor alone
    breaks        places at which torch.compile has to divide the graph of the backbone
    waits         times that the host waits for a number from the device

A step consists of augmentation, forward, loss, backward, optimiser, target and queue. Kernels and
bytes come from a step of the recipe on torch's meta device, with its 64 samples and two views of
8x224. The fused augmentation is counted as three functions that read their arguments and write
their results once, plus the blur. The kernels that torch.compile makes of these functions on a GPU
have not been seen. Waits come from a step on a CPU with a narrow backbone, and breaks from its
trace.

``tests/benchmarks/test_step_budget.py`` compares the counts with ``recorded_steps.json`` beside it.
``--record`` writes that file.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import step_process  # beside this file; makes the tools of the tests importable
import torch
from helpers.host_waits import host_waits
from helpers.meta_device import autocast_on_meta, meta_model, meta_steps
from methods import Method
from mmengine.logging import MMLogger
from step_floor import Recorder

from sce_video.models import fused_augmentation
from sce_video.models.losses import collapse
from sce_video.models.memory_format import use_channels_last
from sce_video.utils.files import write_json

METHODS = ("sce", "moco", "moco_v3", "ressl", "simclr", "byol", "swav", "lejepa")
RECIPE = "configs/{0}/{0}_r3d18_8xb64-8x224-200e_k200.py"
RECORDED = step_process.REPO / "tests" / "benchmarks" / "recorded_steps.json"
SHAPE = (64, 8, 224, 224)


@dataclass(frozen=True)
class Counts:
    """Counts of one step."""

    kernels: int
    gigabytes: float
    augmentation_kernels: int
    augmentation_gigabytes: float
    breaks: int
    waits: int


def _recipe(model: dict[str, Any]) -> None:
    """Change the settings of a model to what a GPU chooses."""
    model["data_preprocessor"]["fused"] = True


@contextmanager
def counting() -> Iterator[Recorder]:
    """Record operations on the meta device, a fused function of the augmentation as one."""
    recorder = Recorder("meta")
    fused_augmentation._shapes.clear()
    with mock.patch.object(fused_augmentation, "compiled", recorder.as_one), recorder:
        yield recorder


def counts_of(method: str) -> Counts:
    """Count a step of a method's recipe."""
    model, wrapper = meta_model(step_process.REPO / RECIPE.format(method), _recipe)
    use_channels_last(model)
    views = len(model.data_preprocessor.views)
    with counting():
        meta_steps(model, wrapper, views, 1, (2, 2, 32, 32))  # the optimiser makes its state
    with counting() as step:
        meta_steps(model, wrapper, views, 1, SHAPE)
    with counting() as augmentation, autocast_on_meta():
        clips = [torch.empty(*SHAPE, 3, dtype=torch.uint8, device="meta") for _ in range(views)]
        batch = dict(inputs=clips, seed=torch.arange(SHAPE[0]))
        model.data_preprocessor(batch, training=True)
    small = argparse.Namespace(
        frames=2, size=32, batch=4, device="cpu", cfg_options=["model.backbone.base_channels=4"]
    )
    on_cpu = Method(method, small)
    return Counts(
        len(step.operations),
        _gigabytes(step),
        len(augmentation.operations),
        _gigabytes(augmentation),
        graph_breaks(on_cpu.model.backbone, torch.rand(4, 3, 2, 32, 32)),
        waits(on_cpu),
    )


def _gigabytes(recorder: Recorder) -> float:
    return round(sum(operation.bytes for operation in recorder.operations) / 1e9, 3)


def graph_breaks(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> int:
    """Count the places at which torch.compile divides the graph of a function."""
    torch.compiler.reset()  # what is compiled already is not traced again
    return torch._dynamo.explain(function)(x).graph_break_count


def waits(method: Method) -> int:
    """Count how often the host would wait for a GPU in a step."""
    tensors = [*method.model.parameters(), *method.model.buffers()]
    as_on_gpu = mock.patch.object(collapse, "_is_on_host", return_value=False)
    with as_on_gpu, host_waits(tensors) as found:
        method.step()
    return sum(found.values())


def table(counts: dict[str, Counts]) -> str:
    """Return the counts as a table in Markdown."""
    lines = [
        "| Method | kernels | GB | of these in the augmentation | graph breaks | waits |",
        "|---|---|---|---|---|---|",
    ]
    for name, c in counts.items():
        augmentation = f"{c.augmentation_kernels}, {c.augmentation_gigabytes:.1f} GB"
        row = (name, c.kernels, f"{c.gigabytes:.0f}", augmentation, c.breaks, c.waits)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args(argv)
    MMLogger.get_instance("step_budget", log_level=logging.WARNING)
    counts = {name: counts_of(name) for name in args.methods}
    print(table(counts))
    plain = {name: asdict(found) for name, found in counts.items()}
    for path in [args.json] * bool(args.json) + [RECORDED] * args.record:
        write_json(path, plain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
