r"""Few-shot curves and sense of time of several networks, on toy actions and on a folder of videos.

    python benchmarks/sense_of_time.py --work-dir work_dirs/sense_of_time
        [--folder weizmann4 --group-pattern 'person(\d+)'] [--seeds 0 1 2] [--epochs 100]
        [--json benchmarks/results/sense_of_time.json] [--figures docs/images]

Networks: random weights, SCE, BYOL (ResNet3D-18) and SCE on a ResNet-18 of single frames, all by
the quickstart's recipes and trained on the toy actions, with as many clips each. The folder's
videos are evaluated with the networks trained on toy actions, leaving one group out: nothing is
trained on them. Trainings and evaluations that are in the work folder are kept.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sce_video.apis import launch
from sce_video.data_tools.toy_actions import generate_toy_actions
from sce_video.engine.runner import RANDOM
from sce_video.utils.atomic_file import write_json
from sce_video.utils.command import command
from sce_video.utils.json_files import read_json
from sce_video.visualization.figures import save_figure

REPO = Path(__file__).resolve().parents[1]
#: Title, recipe and options of each network; without options it is not trained.
NETWORKS: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    "random": ("random weights", "sce", None),
    "sce": ("SCE", "sce", ()),
    "byol": ("BYOL", "byol", ("custom_hooks.ScheduleHook.model.momentum.start=0.9",)),
    "frames": ("SCE, single frames", "sce_frames", ()),
}
COLOURS = {"random": "#8a8a8a", "sce": "#1f5f99", "byol": "#c2571a", "frames": "#2e8b57"}
CLIPS = ("unaltered", "shuffled", "reversed", "still")
#: Training videos per class are 40 of the toy actions.
TOY_SHOTS = (1, 2, 5, 10, 20, 40)


def recipe(name: str) -> Path:
    """The config of a network."""
    return REPO / f"configs/quickstart/{NETWORKS[name][1]}_toy_actions.py"


def checkpoint(name: str, seed: int, args: argparse.Namespace) -> str:
    """The checkpoint of a network, trained now if it is not there."""
    options = NETWORKS[name][2]
    if options is None:
        return RANDOM
    folder = args.work_dir / "toy" / f"{name}_seed{seed}"
    path = folder / f"epoch_{args.epochs}.pth"
    if not path.exists():
        settings = (
            "default_hooks.online_evaluation=None",
            f"train_dataloader.dataset.data_root={args.data}/train",
            f"train_cfg.max_epochs={args.epochs}",
            *options,
        )
        tool = [sys.executable, str(REPO / "tools/train.py"), str(recipe(name))]
        given = ["--seed", str(seed), "--work-dir", str(folder), "--cfg-options", *settings]
        subprocess.run([*tool, *given], check=True)
    return str(path)


def evaluation(name: str, seed: int, data: str, args: argparse.Namespace) -> dict[str, float]:
    """The metrics of a network on the toy actions or on the folder; read if they are there."""
    out = args.work_dir / "evaluations" / f"{data}_{name}_seed{seed}.json"
    if not out.exists():
        time: dict[str, Any] = {"type": "SenseOfTime"}
        few: dict[str, Any] = {"type": "FewShot", "draws": 3}
        if data == "toy":
            gallery = f"test_cfg.gallery_dataloader.dataset.data_root={args.data}/train"
            options = [f"test_dataloader.dataset.data_root={args.data}/test", gallery]
            time["factors"] = "{appearance}_{motion}"
            few["shots"] = TOY_SHOTS
        else:
            pattern = f"test_cfg.group_pattern={args.group_pattern}"
            root = f"test_dataloader.dataset.data_root={args.folder}"
            options = [root, "test_cfg.gallery_dataloader=None", pattern]
            few["shots"] = args.shots
            time["measures"] = ("knn", "retrieval")  # quick: a probe for each group takes minutes
        cfg = launch.testing_config(
            recipe(name),
            checkpoint(name, seed, args),
            work_dir=args.work_dir / "logs",
            out=out.resolve(),
            cfg_options=[*options, f"randomness.seed={seed}"],
        )
        cfg.test_evaluator = [time, few]
        launch.test(cfg)
    return read_json(out)["metrics"]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Data to network to metric to the values of the seeds."""
    found: dict[str, Any] = {}
    for data in ("toy", "folder")[: 1 if args.folder is None else 2]:
        for name in NETWORKS:
            runs = [evaluation(name, seed, data, args) for seed in args.seeds]
            values = {metric: [run[metric] for run in runs] for metric in runs[0]}
            found.setdefault(data, {})[name] = values
    return found


def draw_few_shot(results: dict[str, Any], titles: dict[str, str], path: Path) -> None:
    """A panel per data set: accuracy of the linear classifier by labels of each class."""
    figure = Figure(figsize=(0.8 + 3.6 * len(results), 3.4), layout="constrained")
    for axes, (data, networks) in zip(_panels(figure, len(results)), results.items(), strict=True):
        prefix = "few_shot_linear_"
        for name, metrics in networks.items():
            shots = [int(m.removeprefix(prefix)) for m in metrics if m.startswith(prefix)]
            seeds = [metrics[f"{prefix}{number}"] for number in shots]
            _draw_line(axes, shots, seeds, name)
        axes.set_xscale("log")
        axes.set_xticks(shots, [str(number) for number in shots], minor=False)
        axes.minorticks_off()
        axes.set_xlabel("labelled videos of each class", fontsize=9)
        axes.set_title(titles[data], fontsize=10)
    _finish(figure, path)


def draw_time(results: dict[str, Any], titles: dict[str, str], path: Path) -> None:
    """Accuracy by altered clips: a panel for each of the shares, and one for the folder."""
    panels = [
        ("toy", "time_linear", f"{titles['toy']}\naction, 12 classes", 12),
        ("toy", "time_appearance", f"{titles['toy']}\nappearance alone, 3", 3),
        ("toy", "time_motion", f"{titles['toy']}\nmotion alone, 4", 4),
        *([("folder", "time_knn", f"{titles['folder']}\naction (kNN)", 0)] * ("folder" in results)),
    ]
    figure = Figure(figsize=(0.8 + 2.6 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(_panels(figure, len(panels)), panels, strict=True):
        data, measure, title, classes = panel
        for number, (name, metrics) in enumerate(results[data].items()):
            seeds = [metrics[f"{measure}_{clips}"] for clips in CLIPS]
            _draw_points(axes, 0.17 * (number - 1.5), seeds, name)
        if classes:
            axes.axhline(100 / classes, color="black", linestyle=":", linewidth=0.9)
        axes.set_xticks(range(len(CLIPS)), CLIPS, rotation=35, ha="right", fontsize=9)
        axes.set_title(title, fontsize=10)
    _finish(figure, path)


def _panels(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _draw_line(axes: Axes, x: Sequence[int], seeds: list[list[float]], name: str) -> None:
    """The mean over seeds, and all seeds as a band."""
    percent = [[100 * value for value in values] for values in seeds]
    low, high = ([pick(values) for values in percent] for pick in (min, max))
    axes.fill_between(x, low, high, color=COLOURS[name], alpha=0.15, linewidth=0)
    means = [statistics.mean(values) for values in percent]
    axes.plot(x, means, "o-", color=COLOURS[name], markersize=4, label=NETWORKS[name][0])


def _draw_points(axes: Axes, shift: float, seeds: list[list[float]], name: str) -> None:
    """The mean over seeds, and each seed as a small dot, of each of several altered clips."""
    x = [number + shift for number in range(len(seeds))]
    for place, values in zip(x, seeds, strict=True):
        percent = [100 * value for value in values]
        axes.scatter([place] * len(values), percent, s=6, color=COLOURS[name], alpha=0.5)
    means = [100 * statistics.mean(values) for values in seeds]
    axes.plot(x, means, "o", color=COLOURS[name], markersize=5, label=NETWORKS[name][0])


def _finish(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.set_ylim(0, 102)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("accuracy, percent", fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    save_figure(figure, path, dpi=110)


def show(results: dict[str, Any]) -> None:
    """Print Markdown tables: mean and standard deviation over seeds, percent."""
    for data, networks in results.items():
        any_network = next(iter(networks.values()))
        measures = [m for m in ("linear", "appearance", "motion", "knn", "retrieval")]
        measures = [m for m in measures if f"time_{m}_unaltered" in any_network]
        print(f"\n{data}\n| network | measure | {' | '.join(CLIPS)} |\n|---|---|---|---|---|---|")
        for name, metrics in networks.items():
            for measure in measures:
                cells = [_cell(metrics[f"time_{measure}_{clips}"]) for clips in CLIPS]
                print(f"| {NETWORKS[name][0]} | {measure} | {' | '.join(cells)} |")
            altered = [f"time_centred_cosine_{clips}" for clips in CLIPS[1:]]
            cosines = [f"{statistics.mean(metrics[metric]):.3f}" for metric in altered]
            print(f"| {NETWORKS[name][0]} | centred cosine | 1 | {' | '.join(cosines)} |")


def _cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/sense_of_time"))
    parser.add_argument("--data", type=Path, default=Path("data/toy_actions"))
    parser.add_argument("--folder", type=Path, help="labelled videos, a sub-folder for each class")
    parser.add_argument("--group-pattern", default=r"person(\d+)", help="of the folder's paths")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 4, 8], help="of the folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--json", type=Path, help="file for all metrics")
    parser.add_argument("--figures", type=Path, help="folder for few_shot.png, sense_of_time.png")
    args = parser.parse_args(argv)
    args.work_dir, args.data = args.work_dir.resolve(), args.data.resolve()
    return args


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Train, evaluate, print, write and draw; returns the exit status."""
    args = parse_args(argv)
    if not args.data.exists():
        generate_toy_actions(args.data, {"train": 480, "test": 240})
    results = measure(args)
    show(results)
    if args.json is not None:
        settings = {"seeds": args.seeds, "epochs": args.epochs, "shots": list(args.shots)}
        folder = None if args.folder is None else args.folder.name
        write_json(args.json, {**settings, "folder": folder, "metrics": results})
    if args.figures is not None:
        titles = {"toy": "toy actions", "folder": args.folder.name if args.folder else ""}
        draw_few_shot(results, titles, args.figures / "few_shot.png")
        draw_time(results, titles, args.figures / "sense_of_time.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
