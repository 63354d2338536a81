"""The automatic run against a small hand search around it, on three kinds of videos.

    python benchmarks/automatic_choices.py weizmann4 --videos weizmann4 --out work_dirs/choices
    python benchmarks/automatic_choices.py weizmann4 --videos weizmann4 --out work_dirs/choices \\
        --points automatic 'rate 6e-3' --seeds 0 1 2

``automatic`` is what ``sce-video pretrain VIDEOS --out RUN`` trains; every other point changes one
setting of it. All have the same training time: a point whose steps cost more (frames, width) has
fewer epochs in proportion, the others see the same number of samples. The trainings and evaluations
are those of ``sce-video sweep``: finished ones are kept, and a second call goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import options_of_settings
from sce_video.runs.pretrain import PlannedPretraining, planned_pretraining
from sce_video.runs.sweep import Column, Extra, Point, Sweep, chains, option_texts, plan
from sce_video.runs.sweep_run import Resources, SweepRunner, write_tables
from sce_video.utils.command import command
from sce_video.utils.files import write_text

REPO = Path(__file__).resolve().parents[1]
COLUMNS = tuple(
    Column(name, metric)
    for name, metric in (("kNN", "knn_top1"), ("linear", "linear_top1"), ("R@1", "retrieval_r1"))
)


@dataclass(frozen=True)
class Change:
    """A point of the hand search.

    Attributes:
        settings: Changed settings of the recipe, by their names.
        options: Changed keys of the config that have no such name.
        cost: Time of a sample, in that of the automatic run.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: float = 1.0


#: The costs are processor times of views and step, measured on weizmann4 (13.9 ms a sample).
SEARCH = {
    "rate 6e-3": Change({"lr": 6e-3}),
    "rate 7e-4": Change({"lr": 7e-4}),
    "momentum 0.9": Change({"momentum": 0.9}),
    "momentum 0.97": Change({"momentum": 0.97}),
    "momentum 0.99": Change({"momentum": 0.99}),
    "batch 32": Change({"batch": 32}),
    "8 frames": Change({"frames": 8}, cost=1.35),
    "width 8": Change({"width": 8}, cost=1 / 1.3),
    "width 16": Change({"width": 16}, cost=1.3),
    "size 32": Change({"size": 32}, cost=0.7),
    "span 0.64 s": Change({"clip_duration": 0.64}),
    "tau_m 0.07": Change(options={"model.tau_m": 0.07}),
}


@dataclass(frozen=True)
class Data:
    """Videos to train on, and how the representation is evaluated."""

    train: str
    evaluate: Mapping[str, Any]


def dataset(name: str, folder: Path, part: str) -> Data:
    """Folders and evaluation of a data set: another part of it, or one person left out."""
    if name == "weizmann4":
        own = {"test_cfg.gallery_dataloader": None, "test_cfg.group_pattern": r"person(\d+)"}
        return Data(str(folder), {"test_dataloader.dataset.data_root": str(folder), **own})
    train = str(folder / "train")
    return Data(
        train,
        {
            "test_dataloader.dataset.data_root": str(folder / part),
            "test_cfg.gallery_dataloader.dataset.data_root": train,
        },
    )


def written_plan(name: str, planned: PlannedPretraining, out: Path) -> Path:
    """The config of the automatic run, of which nothing depends on measured times or on names."""
    path = out / "plans" / f"{name}.py"
    config = planned.config.copy()
    for key in ("settings", "work_dir"):
        config.pop(key)
    write_text(path, config.pretty_text)
    write_text(path.with_suffix(".txt"), "\n".join(planned.lines()) + "\n")
    return path


def points(base: Config, names: Sequence[str]) -> tuple[Point, ...]:
    """The named points; random weights are an evaluation alone."""
    found = []
    for name in names:
        if name == "random":
            found.append(Point(name, checkpoint="random", note="no pretraining"))
            continue
        change = SEARCH[name] if name != "automatic" else Change()
        settings = dict(change.settings)
        if change.cost != 1:
            settings["epochs"] = max(1, round(base.train_cfg.max_epochs / change.cost))
        options = {**options_of_settings(base, settings), **change.options}
        found.append(Point(name, options=options))
    return tuple(found)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=["weizmann4", "toy_actions", "patterns", "digits"])
    parser.add_argument("--videos", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and tables")
    part = "of the evaluation; search on val, report test. weizmann4 has no parts"
    parser.add_argument("--part", choices=["val", "test"], default="val", help=part)
    parser.add_argument("--method", default="sce")
    known = ["random", "automatic", *SEARCH]
    parser.add_argument("--points", nargs="+", choices=known, default=known, metavar="POINT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, help="given to the automatic run, which adapts")
    parser.add_argument("--width", type=int, help="likewise; the other points follow it")
    parser.add_argument("--no-run", action="store_true", help="the table of what is finished")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    out = args.out.resolve()
    data = dataset(args.data, args.videos.resolve(), args.part)
    given = {key: vars(args)[key] for key in ("epochs", "width") if vars(args)[key]}
    planned = planned_pretraining(data.train, out, method=args.method, settings=given)
    name = f"{args.data}_{args.method}" + "".join(f"_{key}{value}" for key, value in given.items())
    config = written_plan(name, planned, out)
    sweep = Sweep(
        name=f"{name}_{args.part}",
        title=f"automatic choices, {args.data}, {args.method}",
        source="",
        config=str(config),
        options={},
        points=points(planned.config, args.points),
        columns=COLUMNS,
        seeds=tuple(args.seeds),
    )
    extra = Extra(evaluate=tuple(option_texts(data.evaluate)))
    cells = plan([sweep], out, extra)
    runner = SweepRunner(REPO, out, Resources(args.jobs))
    failed = [] if args.no_run else runner.run(chains(cells))
    print(write_tables([sweep], cells, out)[0])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
