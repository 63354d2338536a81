"""Options of the commands that train: pretrain, finetune, train, sweep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from sce_video.options.declare import OptionError, Options, Spec, given_options, option, spec_of
from sce_video.options.shared import (
    ALL_FILES,
    BACKEND,
    CHANGES,
    CLASSES,
    DATA_ROOT,
    GROUP_PATTERN,
    LAUNCHER,
    matching,
)

PRECISIONS = ("float32", "bfloat16", "float16")
#: Which checkpoint is the result of a pretraining run.
BEST = "best"
LAST = "last"
#: The word for ``labels`` if the sub-folders are the classes.
FOLDERS = "folders"
#: Classifiers for finetuning.
HEADS = ("linear", "attentive")
#: Routes for finetuning: choose one of the other routes, fit a linear classifier on frozen
#: features, or train by gradient descent.
AUTO = "auto"
FROZEN = "frozen"
FINETUNE = "finetune"
#: Options for finetuning that apply only to training by gradient descent.
OF_GRADIENTS = (
    *("head", "precision", "frozen", "width", "dropout", "flip"),
    *("epochs", "warmup", "lr", "weight_decay"),
)
#: Objectives for distillation.
OBJECTIVES = ("cosine", "tokens", "relations", "frames")
#: Source name for finetuning from random weights.
NONE = "none"
#: Value of ``resume`` that means the newest checkpoint in the work folder.
NEWEST = "auto"


@dataclass(frozen=True)
class Tracker:
    """A tracker that a training run can log to.

    Attributes:
        backend: Class that writes to it.
        package: Package that this class needs.
    """

    backend: str
    package: str


#: Trackers by name.
TRACKERS = {
    "mlflow": Tracker("MLflowVisBackend", "mlflow"),
    "wandb": Tracker("WandbVisBackend", "wandb"),
}
#: Largest seed that NumPy accepts.
_MAX_SEED = 2**32 - 1
#: Groups of the help whose options are settings of a recipe.
SETTINGS = "settings, chosen for your videos and this machine unless you give them"
OF_DISTILL = "settings of --method distill"
#: Options that define where and how a run starts, not what is trained.
_OF_THE_START = ("mirror", "out", "overwrite", "plan", "resume", "seeds", "track")

OUT = Spec("folder of the run", metavar="RUN")
HOURS = Spec("time budget of the run in hours, instead of --epochs", above=0)
PRECISION = Spec(
    "precision of the computation (default: the fastest on this machine)", choices=PRECISIONS
)
PLAN = Spec("write RUN/run.json and RUN/config.py, and stop before the training")
RESUME = Spec("continue the training in RUN")
OVERWRITE = Spec("remove the training in RUN first")
TRACK = Spec(
    "also log to Weights & Biases or MLflow (docs/logging.md)",
    metavar="TRACKER",
    choices=tuple(TRACKERS),
)
MIRROR = Spec(
    "copy checkpoints and logs to this folder of an object store, s3://BUCKET/RUN. With --resume, "
    "a newer run there is restored first (docs/tables.md)",
    metavar="URL",
)
GROUP_COLUMN = Spec(
    "column of the CSV file with groups (person, scene). A group is held out as a whole",
    metavar="NAME",
)
FOLD_COLUMN = Spec(
    "column of the CSV file with folds, which are used as they are; NAME=VALUE holds out this fold",
    metavar="NAME",
)
CLIP_DURATION = Spec("length of a clip in seconds", above=0, group=SETTINGS)
FRAMES = Spec("number of frames of a clip", least=1, group=SETTINGS)
SIZE = Spec("height and width of a clip in pixels", least=1, group=SETTINGS)
BATCH = Spec("videos per optimiser step, summed over all processes", least=1, group=SETTINGS)
EPOCHS = Spec("number of epochs", least=1, group=SETTINGS)
WARMUP = Spec("epochs in which the learning rate rises", least=0, group=SETTINGS)
LR = Spec("learning rate after the warm-up", least=0, group=SETTINGS)
DECODERS = Spec("number of processes that decode", least=0, group=SETTINGS)
SEED = Spec("random seed", least=0, most=_MAX_SEED, group=SETTINGS)


def given_settings(options: Options) -> dict[str, Any]:
    """Return the settings of a recipe that the user gave, by name."""
    given = given_options(options)
    groups = {declared.name: spec_of(declared).group for declared in fields(options)}
    return {name: given[name] for name in given if groups[name] in (SETTINGS, OF_DISTILL)}


def request_of(options: Options) -> dict[str, Any]:
    """Return the options that the user gave for a training run, except where and how it starts."""
    return {name: v for name, v in given_options(options).items() if name not in _OF_THE_START}


def _check_start(options: PretrainOptions | FinetuneOptions, kept: Collection[str]) -> None:
    """Raise OptionError for options that exclude each other at the start of a run.

    Args:
        options: The options.
        kept: Options that may accompany ``resume``.
    """
    if options.resume and options.overwrite:
        raise OptionError("give either {resume} or {overwrite}, not both")
    if options.resume:
        more = [name for name in given_options(options) if name not in ("out", "resume", *kept)]
        if more:
            raise OptionError(
                f"{{resume}} reads everything from RUN/run.json. Remove {{{more[0]}}}"
            )
    if options.hours is not None and options.epochs is not None:
        raise OptionError("give either {hours} or {epochs}, not both")


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(Options):
    """Pretrain a network on a folder or a table of videos. Labels are not needed.

    The command examines the videos and the machine, prints the settings that it has chosen with a
    reason for each, and writes them to RUN/run.json and RUN/config.py. Then it trains. Ctrl-C,
    SIGTERM or SIGHUP (a closed terminal) completes the current step and writes a checkpoint. To
    continue from it, add --resume, which reads RUN/run.json as data. 'sce-video train
    RUN/config.py' runs the same training, but executes that file.

    With --seeds, the settings are chosen once. The seeds are trained one after another in
    RUN/seed0, RUN/seed1 and so on. RUN/compare.html compares them, and means and standard
    deviations are printed. With --resume, finished seeds are kept and others are resumed or added.
    """

    videos: str | None = option(
        "folder of videos, searched recursively, or table of videos (v.lance)",
        None,
        positional=True,
        metavar="VIDEOS",
    )
    out: str = option(OUT)
    method: str | None = option(
        "method of pretraining (default: simclr, or sce on a GPU; docs/results.md)", None
    )
    start: str | None = option(
        "network to start from: a run, a checkpoint (ours, torchvision's, ...), an exported "
        "folder or hf:NAME. NAME:POOL pools the frames of an image network in another way. Its "
        "clip settings and normalisation are kept",
        None,
        flag="--from",
        metavar="SOURCE",
    )
    freeze: int | None = option(
        "with --from: number of quarters of the network that are not trained; 0 freezes only the "
        "embeddings",
        None,
        least=0,
        most=3,
    )
    lora: int | None = option(
        "with --from: train adapters of this rank instead of the weights of a transformer",
        None,
        metavar="RANK",
        least=1,
    )
    hours: float | None = option(HOURS, None)
    seeds: tuple[int, ...] | None = option(
        "train one run per random seed, in RUN/seedN", None, least=0, most=_MAX_SEED
    )
    precision: str | None = option(PRECISION, None)
    keep: str | None = option(
        "best: keep the checkpoint with the best held-out score, or the start if none is better; "
        "last: keep the last one (default: last, or best with --from)",
        None,
        choices=(BEST, LAST),
    )
    labels: str | None = option(
        "with --keep best: labels for the score, from the sub-folders ('folders') or a CSV file "
        "of path,label",
        None,
        metavar="folders|CSV",
    )
    group_column: str | None = option(GROUP_COLUMN, None)
    fold_column: str | None = option(FOLD_COLUMN, None)
    all_files: bool = option(ALL_FILES, False)
    track: tuple[str, ...] = option(TRACK, ())
    mirror: str | None = option(MIRROR, None)
    plan: bool = option(PLAN, False)
    resume: bool = option(RESUME, False)
    overwrite: bool = option(OVERWRITE, False)
    width: int | None = option("channels of the network's stem", None, least=1, group=SETTINGS)
    hidden: int | None = option(
        "hidden size of projector and predictor", None, least=1, group=SETTINGS
    )
    embedding: int | None = option("size of an embedding", None, least=1, group=SETTINGS)
    clip_duration: float | None = option(CLIP_DURATION, None)
    frames: int | None = option(FRAMES, None)
    size: int | None = option(SIZE, None)
    batch: int | None = option(BATCH, None)
    epoch_samples: int | None = option(
        "minimum number of clips per epoch, rounded up to whole passes over the videos",
        None,
        least=1,
        group=SETTINGS,
    )
    epochs: int | None = option(EPOCHS, None)
    warmup: float | None = option(WARMUP, None)
    queue: int | None = option(
        "number of keys in the queue: a multiple of the batch size, and less than the number of "
        "videos",
        None,
        least=0,
        group=SETTINGS,
    )
    momentum: float | None = option(
        "initial momentum of the target network", None, least=0, most=1, group=SETTINGS
    )
    lr: float | None = option(LR, None)
    memory: bool | None = option(
        "compute activations again in the backward pass instead of keeping them, which needs less "
        "memory and more time (default: only if the GPU's memory would not suffice)",
        None,
        group=SETTINGS,
    )
    workers: int | None = option(DECODERS, None)
    seed: int | None = option(SEED, None)
    teacher: str | None = option(
        "frozen network to learn from: a run, a checkpoint, hf:NAME or NAME:POOL",
        None,
        metavar="SOURCE",
        group=OF_DISTILL,
    )
    teacher_clips: int | None = option(
        "number of clips per video whose features are computed once with the teacher; 0 runs the "
        "teacher in every step",
        None,
        least=0,
        group=OF_DISTILL,
    )
    objective: str | None = option(
        "what the student learns from the teacher", None, choices=OBJECTIVES, group=OF_DISTILL
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video pretrain VIDEOS --out RUN --hours 2",
        "sce-video pretrain VIDEOS --out RUN --method simclr --epochs 50 --frames 16",
        "sce-video pretrain VIDEOS --out RUN --from SOURCE --freeze 2",
        "sce-video pretrain VIDEOS --out RUN --method distill --teacher SOURCE",
        "sce-video pretrain VIDEOS --out RUN --seeds 0 1 2",
        "sce-video pretrain --out RUN --resume",
    )
    more: ClassVar[str] = (
        "Exit status: 0 trained, 2 wrong usage, 128 + n if signal n has stopped the training.\n"
        "More: docs/pretrain.md, docs/encoders.md"
    )

    @property
    def kept(self) -> str:
        """Choice of the checkpoint that is the result."""
        return self.keep or (LAST if self.start is None else BEST)

    @property
    def named_method(self) -> str | None:
        """Method that the user gave, or that a distillation setting implies."""
        return self.method or ("distill" if self._of_distill() else None)

    def _of_distill(self) -> list[str]:
        """Return the names of the given distillation settings."""
        given = given_options(self)
        return [d.name for d in fields(self) if spec_of(d).group == OF_DISTILL and d.name in given]

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        _check_start(self, kept=("mirror", "seeds", "track"))
        if self.videos is None and not self.resume:
            raise OptionError("give {videos}, a folder or a table, or {resume}")
        if self.seeds is not None and len(set(self.seeds)) < max(1, len(self.seeds)):
            raise OptionError("{seeds} must be one or more different numbers", self.seeds)
        if self.seeds is not None and self.seed is not None:
            raise OptionError("give either {seed} or {seeds}, not both")
        for name in ("freeze", "lora"):
            if getattr(self, name) is not None and self.start is None:
                raise OptionError(f"{{{name}}} needs a network to start from. Add {{start}} SOURCE")
        if self.start is not None and self.width is not None:
            raise OptionError("{width} cannot be changed with {start}. Remove one of them")
        labelled = self.labels or self.group_column or self.fold_column
        if labelled is not None and self.kept != BEST:
            raise OptionError("{labels} needs {keep} best, because labels choose that checkpoint")
        self._check_teacher()

    def _check_teacher(self) -> None:
        """Raise OptionError for distillation settings with another method."""
        if self.named_method != "distill" and (names := self._of_distill()):
            raise OptionError(
                f"{{{names[0]}}} belongs to {{method}} distill. Remove it, or give {{method}} "
                "distill"
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Options):
    """Train a video classifier from a pretrained network, and test it.

    Two routes lead to a classifier. 'frozen' fits a linear classifier on the unchanged features of
    the network, and 'finetune' trains the network. By default, the command compares both on
    labelled videos that it holds out, and prints which one it chooses and why.

    The command prints the settings that it has chosen with a reason for each, and writes them to
    RUN/run.json and RUN/config.py. It trains, tests with several views of each video, and writes
    the page RUN/run.html. Ctrl-C, SIGTERM or SIGHUP completes the current step and writes a
    checkpoint. To continue from it, add --resume, which reads RUN/run.json as data. 'sce-video
    train RUN/config.py' runs the same training, but executes that file.

    TRAIN and TEST are folders with a sub-folder for each class, tables, lists of 'path label' as
    the search page writes them, or CSV files with the columns path and label.
    """

    source: str | None = option(
        "run, checkpoint, exported folder or model of transformers or timm (FOLDER, hf:NAME) to "
        "start from, or an image network with its pool as NAME:POOL; none for random weights",
        None,
        positional=True,
        metavar="SOURCE",
    )
    train: str | None = option(
        "videos to train with: class folders, table (v.lance), list or CSV file", None
    )
    test: str | None = option(
        "videos to test with, in the same formats (default: a quarter of TRAIN is held out)",
        None,
    )
    out: str = option(OUT)
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    group_pattern: str | None = option(
        replace(
            GROUP_PATTERN,
            help="without --test: hold out whole groups, which this regular expression with one "
            "group finds in the paths, for example person(\\d+)",
        ),
        None,
    )
    group_column: str | None = option(GROUP_COLUMN, None)
    fold_column: str | None = option(FOLD_COLUMN, None)
    few: int | None = option("train with N videos of each class, drawn by the seed", None, least=1)
    hours: float | None = option(HOURS, None)
    recipe: str | None = option(
        "recipe of your own to use (default: r3d18_folder)", None, metavar="NAME"
    )
    route: str = option(
        "auto: the route that is better on held-out videos; frozen: a linear classifier on frozen "
        "features; finetune: train the network",
        AUTO,
        choices=(AUTO, FROZEN, FINETUNE),
    )
    head: str | None = option(
        "type of the classifier (default: chosen automatically)", None, choices=HEADS
    )
    precision: str | None = option(PRECISION, None)
    plan: bool = option(PLAN, False)
    resume: bool = option(RESUME, False)
    overwrite: bool = option(OVERWRITE, False)
    frozen: int | None = option(
        "number of stages that are not trained: -1 none, 4 all",
        None,
        least=-1,
        most=4,
        group=SETTINGS,
    )
    width: int | None = option(
        "channels of the network's stem, if the source is none", None, least=1, group=SETTINGS
    )
    dropout: float | None = option(
        "dropout rate of the features before the classifier",
        None,
        least=0,
        most=1,
        group=SETTINGS,
    )
    clip_duration: float | None = option(CLIP_DURATION, None)
    frames: int | None = option(FRAMES, None)
    size: int | None = option(SIZE, None)
    flip: float | None = option(
        "probability that a clip is mirrored (default: 0.5, or 0 if class names distinguish left "
        "and right)",
        None,
        least=0,
        most=1,
        group=SETTINGS,
    )
    batch: int | None = option(BATCH, None)
    epochs: int | None = option(EPOCHS, None)
    warmup: float | None = option(WARMUP, None)
    lr: float | None = option(LR, None)
    weight_decay: float | None = option("weight decay of AdamW", None, least=0, group=SETTINGS)
    clips: int | None = option(
        "number of clips per test video, whose probabilities are averaged",
        None,
        least=1,
        group=SETTINGS,
    )
    crops: int | None = option(
        "number of crops of each test clip", None, choices=(1, 3), group=SETTINGS
    )
    workers: int | None = option(DECODERS, None)
    seed: int | None = option(SEED, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video finetune SOURCE --train TRAIN --test TEST --out RUN --hours 2",
        "sce-video finetune SOURCE --train clips.csv --group-column person --out RUN",
        "sce-video finetune efficientnet-lite0 --train TRAIN --out RUN --route frozen",
        "sce-video finetune none --train TRAIN --out RUN --few 10 --epochs 30",
        "sce-video finetune --out RUN --resume",
    )
    more: ClassVar[str] = (
        "Exit status: 0 trained and tested, 2 wrong usage, 128 + n if signal n has stopped the "
        "training.\nMore: docs/videos.md. Then: sce-video predict RUN VIDEOS"
    )

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        _check_start(self, kept=())
        if not self.resume and (self.source is None or self.train is None):
            raise OptionError(
                "give {source} (a run, a checkpoint, ..., or none) and {train}, or {resume}"
            )
        columns = [n for n in ("group_column", "fold_column") if getattr(self, n) is not None]
        if self.group_pattern is not None and columns:
            raise OptionError(f"give either {{group_pattern}} or {{{columns[0]}}}, not both")
        if self.fold_column is not None and self.test is not None:
            raise OptionError("{fold_column} holds videos out for a test. Remove it or {test}")
        self._check_route()
        if self.width is not None and self.source not in (None, NONE):
            raise OptionError(
                "{width} can be chosen for random weights only. Remove it, or give none as {source}"
            )

    def _check_route(self) -> None:
        """Raise OptionError for settings that frozen features do not have."""
        if self.route != FROZEN:
            return
        if self.source == NONE:
            raise OptionError("{route} frozen needs a pretrained network as {source}, not none")
        for name in OF_GRADIENTS:
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{{route}} frozen trains no network. Remove {{{name}}}, or give {{route}} "
                    "finetune"
                )


LIST = Spec("", metavar="LIST", group="other videos")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Train with a recipe or a config file.

    Ctrl-C, SIGTERM or SIGHUP (a closed terminal) completes the current step, writes a checkpoint
    and exits with status 130, 143 or 129. To continue from there, add --resume. A second Ctrl-C
    stops immediately, without a checkpoint. SIGUSR1 completes the step as well, and requeues the
    Slurm job. A run that torchrun or Slurm restarts resumes by itself. For several processes: bash
    tools/dist_train.sh CONFIG NPROC ...
    """

    config: str = option(
        "path of a config file, or name of a recipe", positional=True, metavar="CONFIG"
    )
    work_dir: str | None = option(
        "folder for logs and checkpoints (default: work_dirs/CONFIG_NAME)", None, metavar="DIR"
    )
    resume: str | None = option(
        "continue this run or checkpoint, with its network. Without a value, continue the newest "
        "checkpoint in the work folder",
        None,
        metavar="RUN",
        alone=NEWEST,
    )
    overwrite: bool = option("remove an earlier training from the work folder first", False)
    pretrained: str | None = option(
        "start from the backbone of this run or checkpoint; 'random' trains from scratch",
        None,
        metavar="RUN",
    )
    amp: str | None = option(
        "mixed precision. Without a value, bfloat16 is used; float32 switches it off",
        None,
        choices=PRECISIONS,
        alone="bfloat16",
    )
    seed: int | None = option("random seed", None, least=0, most=_MAX_SEED)
    deterministic: bool = option(
        "use deterministic algorithms where they exist, which are slower", False
    )
    auto_scale_lr: bool = option(
        "scale the learning rate with the batch, as our recipes always do", False
    )
    cfg_options: tuple[str, ...] = option(
        replace(
            CHANGES,
            help="change the config, for example model.tau_m=0.07; unknown keys are refused",
        ),
        (),
    )
    print_only: bool = option(
        "print every value of the recipe with its source, and do not train", False, flag="--print"
    )
    backend: str | None = option(BACKEND, None)
    track: tuple[str, ...] = option(TRACK, ())
    mirror: str | None = option(MIRROR, None)
    launcher: str = option(LAUNCHER, "none")
    data_root: str | None = option(
        "folder or table of videos", None, metavar="DIR", group="other videos"
    )
    all_files: bool = option(ALL_FILES, False, group="other videos")
    train_list: str | None = option(
        replace(LIST, help="list of videos to train with, 'path label' on every line"), None
    )
    val_list: str | None = option(
        replace(LIST, help="list of videos to validate with, 'path label' on every line"), None
    )
    classes: str | None = option(CLASSES, None, group="other videos")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video train sce_r3d18_folder --data-root VIDEOS --work-dir RUN",
        "sce-video train my_config.py --work-dir RUN --resume",
        "sce-video train r3d18_folder --pretrained RUN --train-list LIST --classes FILE",
        "sce-video train sce_r3d18_folder --cfg-options model.tau_m=0.07 --print",
    )
    more: ClassVar[str] = (
        "Exit status: 0 trained, 2 wrong usage, 128 + n if signal n has stopped the training.\n"
        "More: docs/gpus.md, docs/pretrain.md"
    )

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        if self.resume is not None and self.overwrite:
            raise OptionError("give either {resume} or {overwrite}, not both")
        if self.classes is not None and self.train_list is None and self.val_list is None:
            raise OptionError("{classes} names the labels of a list. Add {train_list} LIST")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """Pretrain and evaluate every point of a sweep, and write a table with published numbers.

    The same command continues an interrupted sweep: finished steps are kept, interrupted runs
    resume, and failed steps are repeated. Points with equal settings are trained only once, even if
    they belong to several sweeps. The command writes OUT/SWEEP.md, .json and .png.
    """

    sweeps: tuple[str, ...] = option(
        "sweep file, or name of a sweep in configs/sweeps", positional=True, metavar="SWEEP"
    )
    out: str = option("folder of all steps and tables", metavar="DIR")
    seeds: tuple[int, ...] | None = option(
        "random seeds to train, instead of the sweeps' own", None, least=0, most=_MAX_SEED
    )
    points: tuple[str, ...] = option("run only these rows of the table", (), metavar="NAME")
    columns: tuple[str, ...] = option("run only these columns of the table", (), metavar="NAME")
    pretrain_options: tuple[str, ...] = option(
        replace(CHANGES, help="change the config of every step that pretrains"), ()
    )
    evaluate_options: tuple[str, ...] = option(
        replace(CHANGES, help="change the config of every step that evaluates"), ()
    )
    jobs: int = option("number of pretraining runs at the same time", 1, least=1)
    nproc: int = option("number of processes of each step, one for each GPU", 1, least=1)
    shard: str = option(
        "do only share I of N of the pretraining runs",
        "1/1",
        metavar="I/N",
        problem=matching(r"\d{1,9}/\d{1,9}", "must be I/N, such as 2/4"),
    )
    list_steps: bool = option("only show the steps and their state", False, flag="--list")
    only_report: bool = option(
        "only write the tables, from the steps that are finished", False, flag="--report"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video sweep video_lambda --out work_dirs/ablations --nproc 8",
        "sce-video sweep configs/sweeps/video_*.py --out work_dirs/ablations --list",
        "sbatch --array=1-24 --gres=gpu:8 tools/slurm_sweep.sh configs/sweeps/video_*.py --out "
        "work_dirs/ablations --nproc 8",
    )
    more: ClassVar[str] = (
        "Exit status: 0 all done, 1 some steps failed, 2 wrong usage, 130 interrupted.\n"
        "More: docs/reproduce.md"
    )

    @property
    def part(self) -> tuple[int, int]:
        """Number of the part, and how many parts there are."""
        number, count = map(int, self.shard.split("/"))
        return number, count

    def check(self) -> None:
        """Raise OptionError for options that exclude each other, or seeds that repeat."""
        number, count = self.part
        if not 1 <= number <= count:
            raise OptionError("{shard} must be I/N with I from 1 to N, such as 2/4", self.shard)
        if self.list_steps and self.only_report:
            raise OptionError("give either {list_steps} or {only_report}, not both")
        if self.seeds is not None and len(set(self.seeds)) < max(1, len(self.seeds)):
            raise OptionError("{seeds} must be one or more different numbers", self.seeds)
