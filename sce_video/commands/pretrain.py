"""Pretrain on a folder or a table of videos, labels not needed, with settings chosen for it.

    sce-video pretrain VIDEOS --out RUN [--method simclr] [--hours 2 | --epochs 50] [--frames 16]

Looks at the videos and the machine, prints the chosen settings with a reason each, writes them to
RUN/run.json and RUN/config.py, and trains. Ctrl-C, SIGTERM or SIGHUP (a closed terminal) completes
the current step and writes a checkpoint; --resume continues from it, and reads RUN/run.json as
data. `python tools/train.py RUN/config.py` is the same training, and runs that file.

--memory needs less memory for more time, with the same result. It is chosen where a GPU's memory
would not suffice; --no-memory prevents it.

    sce-video pretrain VIDEOS --out RUN --from SOURCE [--method simclr] [--freeze 2 | --lora 16]

Starts from a network that has learnt already: a run, a checkpoint, an exported folder, or a model
of transformers. Its clip and normalisation are kept, and the learning rates suit it.

    sce-video pretrain VIDEOS --out RUN --method distill --teacher SOURCE [--objective relations]

Learns the features of a frozen network, which are computed once.

    sce-video pretrain VIDEOS --out RUN --seeds 0 1 2

Plans once and trains each seed in RUN/seed0, RUN/seed1, ..., one after another, then prints means
and standard deviations over the seeds and writes RUN/compare.html. --out RUN --resume keeps
finished seeds and resumes the others; with --seeds it also adds new ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from sce_video.commands.arguments import (
    ArgumentAdder,
    Parser,
    add_columns,
    command_line,
    given_columns,
    number,
    output,
    tell_repeated,
)
from sce_video.datasets.labelled import NO_COLUMNS, read_labelled
from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.engine.config.changes import available_settings, parse_value, read_config
from sce_video.engine.recipes import find_recipe, methods
from sce_video.utils.command import command, printable
from sce_video.utils.run_files import CONFIG, is_model, packaged_network
from sce_video.utils.storage import join

if TYPE_CHECKING:
    from sce_video.runs.pretrain import PlannedTraining

#: Of :mod:`sce_video.runs.pretrain`, whose import takes seconds.
PRECISIONS = ("float32", "bfloat16", "float16")

KEEP = ("best", "last")
FOLDERS = "folders"

#: What the settings of the recipes are.
_HELP = {
    "width": "channels of the network's stem",
    "hidden": "hidden size of projector and predictor",
    "embedding": "size of an embedding",
    "clip_duration": "seconds that a clip spans",
    "frames": "frames of a clip",
    "size": "height and width of a clip, pixels",
    "batch": "videos of an optimiser step, of all processes together",
    "epoch_samples": "clips of an epoch, at least; it is whole passes over the videos",
    "epochs": "epochs to train",
    "warmup": "epochs in which the learning rate rises",
    "queue": "keys in the queue, a multiple of the batch and fewer than the videos",
    "momentum": "of the target network, at the start",
    "lr": "learning rate after the warm-up",
    "memory": "compute activations again in the backward pass instead of keeping them",
    "workers": "processes that decode",
    "seed": "of all random numbers",
    "teacher": "frozen network to learn from: a run or a checkpoint",
    "teacher_clips": "clips of each video whose features the teacher gives once; 0: in every step",
    "objective": "cosine, tokens or relations",
}
_SWITCHES = ("memory",)
#: Settings of one method alone, which ``--help`` lists for all.
OF_METHODS = {"distill": ("teacher", "teacher_clips", "objective")}
#: Settings that are text, also where it looks like a number.
_TEXTS = ("objective", "teacher")


def parse_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line, and the settings of the method's recipe in it."""
    parser, add = command_line(
        "Pretrain on a folder or a table of videos, labels not needed.",
        allow_abbrev=False,
    )
    known = methods()
    add("videos", "folder, sub-folders too; or a table (v.lance)", nargs="?")
    add("--out RUN", "folder of the run", output(Path), required=True)
    add("--method", "default: simclr, on a GPU sce (docs/results.md)", choices=sorted(known))
    source = "start from a run, a checkpoint (ours, torchvision's, ...), or hf:NAME"
    add("--from SOURCE", source, dest="start")
    add("--freeze N", "with --from: quarters of the network that stay", number(int, 0, most=3))
    add("--lora RANK", "with --from: train adapters of this rank instead", number(int, 1))
    add("--hours", "budget of each run, instead of --epochs", number(float, above=0))
    add("--seeds N", "a run for each, in RUN/seedN", number(int, 0, most=2**32 - 1), nargs="+")
    add("--precision", "default: what is fast here", choices=PRECISIONS)
    keep = "best: that of the best held-out evaluation, never below the start; default with --from"
    add("--keep", keep, choices=KEEP)
    labels = "with --keep best: choose by classes; folders, or a CSV file of path,label"
    add("--labels folders|CSV", labels)
    add_columns(add)
    add.shared("--all-files", "--track", "--mirror")
    add("--plan", "write RUN/config.py, do not train", bool)
    start = add.exclusive()
    start("--resume", "continue the training in RUN", bool)
    start("--overwrite", "remove the training in RUN first", bool)
    # The options are those of the recipe, which depends on --method: it is read first. SCE's has
    # those of the default methods; a queue or a momentum asks for it.
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--method", default="sce", choices=sorted(known))
    method = first.parse_known_args(argv)[0].method
    for other, names in OF_METHODS.items():
        if other != method:
            of_method = add.group(f"settings of --method {other}", "refused for other methods")
            for name in names:
                of_method(f"--{name.replace('_', '-')} X", _HELP[name], dest=f"of_{other}_{name}")
    args, settings = parse_settings(
        parser, add, read_config(find_recipe(known[method])), _HELP, argv
    )
    for other, names in OF_METHODS.items():
        for name in names:
            if getattr(args, f"of_{other}_{name}", None) is not None:
                option = f"--{name.replace('_', '-')}"
                parser.error(f"{option} belongs to --method {other}. Add --method {other}")
    args.columns = given_columns(args, args.labels)
    return args, settings


def parse_settings(
    parser: Parser,
    add: ArgumentAdder,
    recipe: Config,
    texts: Mapping[str, str],
    argv: Sequence[str] | None,
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line with an option for each setting of a recipe, and those that are given.

    ``texts`` say what they are.

    Raises:
        ValueError: a setting is no number, or negative.
    """
    setting = add.group("settings", "chosen for your videos and this machine unless you give them")
    names = available_settings(recipe)
    for name in names:
        option, target = f"--{name.replace('_', '-')}", f"set_{name}"
        if name in _SWITCHES:
            setting(option, texts[name], argparse.BooleanOptionalAction, dest=target)
        else:
            setting(f"{option} X", texts.get(name), dest=target)
    args = parser.parse_args(argv)
    given = {name: getattr(args, f"set_{name}") for name in names}
    settings = {
        name: parse_value(value) if isinstance(value, str) and name not in _TEXTS else value
        for name, value in given.items()
        if value is not None
    }
    for name, value in settings.items():
        numbers = value if isinstance(value, tuple | list) else [value] * (name not in _TEXTS)
        least = -1 if name == "frozen" else 0  # -1 of mmaction2's frozen_stages: nothing is
        if not all(isinstance(n, int | float) and n >= least for n in numbers):
            raise ValueError(
                f"--{name.replace('_', '-')} must be a number, not below {least}: got {value!r}"
            )
    return args, settings


def _check(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Raise an error for options or paths that cannot be meant."""
    _check_start(args, settings)
    if args.seeds is not None and len(set(args.seeds)) < len(args.seeds):
        raise ValueError(f"--seeds must be different numbers, got {args.seeds}")
    if args.seeds is not None and "seed" in settings:
        raise ValueError("give seed or seeds, not both")
    if args.hours is not None and "epochs" in settings:
        raise ValueError("give hours or epochs, not both")
    given = (args.videos, args.start, args.hours, args.freeze, args.lora, args.keep, args.labels)
    if args.resume and (settings or any(value is not None for value in given)):
        raise ValueError("--resume takes everything from RUN/run.json: give --out RUN alone")
    if args.method == "distill" and not args.resume and "teacher" not in settings:
        raise ValueError("--method distill needs --teacher SOURCE: a run or a checkpoint")
    _check_labels(args)
    if args.videos is not None:
        check_videos(args.videos)
    elif not args.resume:
        raise ValueError("give the folder of videos or a table, or --resume")
    elif args.mirror is None and not any(args.out.glob(f"**/{CONFIG}")):
        raise ValueError(f"no training in {args.out} to resume: there is no {args.out / CONFIG}")


def _check_labels(args: argparse.Namespace) -> None:
    """Raise an error for labels, groups or folds that cannot choose the best checkpoint."""
    given = args.labels is not None or args.columns != NO_COLUMNS
    if given and (args.keep or ("last" if args.start is None else "best")) != "best":
        raise ValueError("labels choose the best checkpoint. Add --keep best, or leave them out")
    if args.labels not in (None, FOLDERS):
        check_exists(args.labels, "CSV file of labels")
        if not args.resume:
            tell_repeated(read_labelled(args.labels, args.videos, columns=args.columns))


def _check_start(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Raise an error for a network that cannot be started from, or options without one."""
    if args.start is None and (args.freeze is not None or args.lora is not None):
        raise ValueError("--freeze and --lora need a network to start from: give --from")
    if args.start is not None:
        check_network(args.start, settings)
    if "teacher" in settings:
        check_network(settings["teacher"])


def check_network(source: str, settings: Collection[str] = ()) -> None:
    """Raise an error for a network that cannot be taken, or a width beside its own."""
    if "width" in settings:
        raise ValueError(f"--width is that of the network {source}: leave it out")
    if is_model(source) or packaged_network(source):
        check_run(source)
    else:
        check_exists(source, "run, checkpoint or model of transformers (hf:NAME)")


@command(interrupted="interrupted; --resume continues from the last checkpoint")
def main(argv: Sequence[str] | None = None) -> int:
    """Plan and train; the status is that of ``tools/train.py``."""
    args, settings = parse_args(argv)
    _check(args, settings)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.engine.hooks.checkpoint_hook import restore_run
    from sce_video.engine.restarts import is_restart
    from sce_video.runs.choices import process_began
    from sce_video.runs.launch import end_training
    from sce_video.runs.page import train_with_page
    from sce_video.runs.planned_config import resumable_config
    from sce_video.runs.pretrain import claimed_plan, count_seconds
    from sce_video.runs.seeds import found_seeds
    from sce_video.utils.distributed import leave_process_group

    # A budget in hours counts the imports, too.
    begun = process_began()
    config = args.out / CONFIG
    seeds_found = args.resume and not config.is_file() and found_seeds(args.out)
    if args.seeds is not None or seeds_found:
        return _train_seeds(args, settings)
    with ExitStack() as stack:
        if args.resume and not is_restart(args.out):
            if args.mirror is not None:
                restore_run(args.mirror, args.out)
            if not config.is_file():
                raise ValueError(f"no training in {args.out} to resume: there is no {config}")
        elif not args.resume:
            claimed = claimed_plan(
                args.out, lambda: _planned(args, settings, begun), args.overwrite
            )
            stack.enter_context(claimed)
            if args.plan:
                return 0
        given = {name: getattr(args, name) for name in ("resume", "track", "mirror", "videos")}
        cfg = count_seconds(resumable_config(config, **given), begun)
        status = end_training(train_with_page(cfg, args.overwrite))
    _say_result(args.out)
    leave_process_group(status)
    return status


def _say_result(folder: Path) -> None:
    """Print which checkpoint is the result of a run that keeps its best one."""
    from mmengine.dist import is_main_process

    from sce_video.runs.keep_best import kept_message

    message = kept_message(folder) if is_main_process() else None
    if message is not None:
        print(printable(f"{folder}: {message}"), flush=True)


def _planned(
    args: argparse.Namespace, settings: dict[str, Any], begun: float | None = None
) -> PlannedTraining:
    """The plan, which is printed."""
    from sce_video.runs.continued import start_from
    from sce_video.runs.pretrain import planned_pretraining

    names = ("method", "hours", "precision", "keep", "labels", "columns")
    given = {name: getattr(args, name) for name in names}
    given["start"] = start_from(args.start, args.freeze, args.lora)
    planned = planned_pretraining(args.videos, args.out, settings=settings, begun=begun, **given)
    print("\n".join(map(printable, planned.lines())), flush=True)
    return planned


def _train_seeds(args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Train and pool the seeds; the exit status."""
    from sce_video.engine.hooks.checkpoint_hook import restore_run
    from sce_video.engine.restarts import is_restart
    from sce_video.runs.seeds import (
        COMPARISON,
        claimed_seeds,
        resumed_seeds,
        seed_folder,
        train_seeds,
    )
    from sce_video.utils.distributed import leave_process_group

    def plan() -> PlannedTraining:
        planned = _planned(args, settings)
        print(f"{len(seeds)} runs, about {len(seeds) * planned.hours:.1f} hours in all", flush=True)
        return planned

    seeds = args.seeds
    restarted = any(is_restart(seed_folder(args.out, seed)) for seed in seeds or ())
    if args.resume and not restarted and args.mirror is not None:
        for folder in (seed_folder(args.out, seed) for seed in seeds or ()):
            restore_run(join(args.mirror, folder.name), folder)
    with ExitStack() as stack:
        if args.resume or restarted:
            seeds = resumed_seeds(args.out, seeds, args.videos)
        else:
            stack.enter_context(claimed_seeds(args.out, seeds, plan, args.overwrite))
        if args.plan:
            return 0
        runs = train_seeds(
            args.out,
            seeds,
            **{name: getattr(args, name) for name in ("overwrite", "track", "mirror", "videos")},
            resume=args.resume or restarted,
        )
    for line in runs.chance.lines():
        print(printable(line))
    for folder in runs.folders:
        _say_result(folder)
    if len(seeds) > 1 and runs.status == 0:
        print(f"written: {args.out / COMPARISON}")
    leave_process_group(runs.status)
    return runs.status
