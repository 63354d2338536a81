"""Options of the commands that train: pretrain, finetune, train, sweep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from sce_video.options import shared
from sce_video.options.declare import (
    Group,
    OptionError,
    Options,
    Spec,
    given_options,
    option,
    spec_of,
)

PRECISIONS = ("float32", "bfloat16", "float16")
#: ``keep`` values for the checkpoint that becomes the result of a pretraining run.
BEST = "best"
LAST = "last"
#: ``labels`` value that takes the classes from the sub-folders.
FOLDERS = "folders"
#: Classifiers for finetuning
HEADS = ("linear", "attentive")
#: Ways to finetune: choose one of the other two, fit a linear classifier to frozen features, or
#: train by gradient descent.
AUTO = "auto"
FROZEN = "frozen"
FINETUNE = "finetune"
#: Finetuning options that affect only training by gradient descent.
OF_GRADIENTS = (
    *("head", "precision", "frozen", "width", "dropout", "flip"),
    *("epochs", "warmup", "lr", "weight_decay"),
)
#: Objectives for distillation
OBJECTIVES = ("cosine", "tokens", "relations", "frames")
#: ``source`` value for finetuning from random weights.
NONE = "none"
#: ``resume`` value for the newest checkpoint in the work folder.
NEWEST = "auto"


@dataclass(frozen=True)
class Tracker:
    """An experiment tracker that a training run can log to.

    Attributes:
        backend: Name of the visualizer backend that writes to the tracker.
        package: Package that the backend needs.
    """

    backend: str
    package: str


#: Trackers by name
TRACKERS = {
    "mlflow": Tracker("MLflowVisBackend", "mlflow"),
    "wandb": Tracker("WandbVisBackend", "wandb"),
}
#: Maximum seed that NumPy accepts.
_MAX_SEED = 2**32 - 1
#: Groups whose options are settings of a recipe.
SETTINGS = Group("settings (chosen for your videos and this machine unless you set them)")
DISTILLATION = Group("settings for --method distill")
_STARTING_NETWORK = Group("starting from another network")
_HELD_OUT = Group("held-out videos")
_RUN_FOLDER = Group("starting, resuming and logging")
_RESUMING = Group("starting and resuming")
_OTHER_VIDEOS = Group("videos instead of those in the config")
#: Options that decide where and how a run starts, not what is trained.
_OF_THE_START = ("mirror", "out", "overwrite", "plan", "resume", "seeds", "track")

OUT = Spec("folder of the run", metavar="RUN")
HOURS = Spec("time budget in hours, instead of --epochs", above=0)
PRECISION = Spec(
    "numeric precision of the training (default: the fastest on this machine)", choices=PRECISIONS
)
PLAN = Spec("write RUN/run.json and RUN/config.py, and stop before training starts")
RESUME = Spec("continue the training run in RUN")
OVERWRITE = Spec("delete an earlier training run in RUN first")
TRACK = Spec(
    "also log to Weights & Biases or MLflow (docs/logging.md)",
    metavar="TRACKER",
    choices=tuple(TRACKERS),
)
MIRROR = Spec(
    "folder in an object store, s3://BUCKET/RUN, to which checkpoints and logs are copied. If it "
    "contains a newer checkpoint of this run than the local folder does, a plain --resume "
    "downloads the checkpoint and the logs first (docs/tables.md)",
    metavar="URL",
)
HELD_OUT_FOLD = replace(
    shared.FOLD_COLUMN,
    help="column of the CSV file that assigns each video to a fold. NAME=VALUE holds out the fold "
    "VALUE, and NAME alone holds out the first fold",
)
CLIP_DURATION = Spec("length of a clip, in seconds", above=0)
FRAMES = Spec("number of frames per clip", least=1)
SIZE = Spec("height and width of a clip, in pixels", least=1)
BATCH = Spec("number of videos per optimiser step, over all processes", least=1)
EPOCHS = Spec("number of epochs", least=1)
WARMUP = Spec("number of epochs over which the learning rate warms up", least=0)
LR = Spec("peak learning rate, which is reached after the warm-up", least=0)
DECODERS = Spec("number of processes that decode videos", least=0)
SEED = Spec("random seed", least=0, most=_MAX_SEED)


def given_settings(options: Options) -> dict[str, Any]:
    """Return the recipe settings that the user gave, by name."""
    groups = {declared.name: spec_of(declared).group for declared in fields(options)}
    own = (SETTINGS.title, DISTILLATION.title)
    return {name: v for name, v in given_options(options).items() if groups[name] in own}


def request_of(options: Options) -> dict[str, object]:
    """Return what the user requested for a training run, without where and how it starts."""
    return {name: v for name, v in given_options(options).items() if name not in _OF_THE_START}


def _check_start(options: PretrainOptions | FinetuneOptions, kept: Collection[str]) -> None:
    """Raise OptionError for options that cannot be combined at the start of a run.

    Args:
        options: The options.
        kept: Options that may accompany ``resume``.
    """
    options.exclude("resume", "overwrite")
    options.exclude("hours", "epochs")
    more = [name for name in given_options(options) if name not in ("out", "resume", *kept)]
    if options.resume and more:
        raise OptionError(f"{{resume}} reads everything from RUN/run.json. Remove {{{more[0]}}}")


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(Options):
    """Pretrain a network on a folder or a table of videos. Labels are not needed.

    The command examines the videos and the machine, chooses all settings, and prints them with the
    reason for each choice. It writes them to RUN/run.json and RUN/config.py, and then it trains.
    On Ctrl-C, SIGTERM or SIGHUP (a closed terminal), it completes the current step and writes a
    checkpoint. To continue from there, add --resume, which reads RUN/run.json as data.
    'sce-video train RUN/config.py' runs the same training, but executes that file.

    With --seeds, the settings are chosen once, and the seeds are trained one after another in
    RUN/seed0, RUN/seed1 and so on. The command then writes the page RUN/compare.html, and prints
    means and standard deviations. With --resume, finished seeds are kept, and the others are
    resumed or added.
    """

    videos: str | None = option(
        "folder, which is searched for videos recursively, or table of videos (v.lance)",
        None,
        positional=True,
        metavar="VIDEOS",
    )
    out: str = option(OUT)
    method: str | None = option(
        "self-supervised method. The default is distill if --teacher or another option of a "
        "distillation is given. Without --from, --width, --hidden, --embedding, --queue and "
        "--momentum, it is also distill if the 'teacher' extra is installed and the short side of "
        "the videos is at least 112 pixels. Otherwise, it is sce on a GPU or with --queue or "
        "--momentum, and else simclr",
        None,
    )
    hours: float | None = option(HOURS, None)
    seeds: tuple[int, ...] | None = option(
        "random seeds, each of which trains a separate run in RUN/seedN",
        None,
        least=0,
        most=_MAX_SEED,
    )
    precision: str | None = option(PRECISION, None)
    all_files: bool = option(shared.ALL_FILES, False)
    start: str | None = _STARTING_NETWORK.option(
        "network to start from: a run, a checkpoint (also from torchvision and other projects), an "
        "exported folder or hf:NAME. Its clip settings and normalisation are kept. NAME:POOL "
        "changes how the features of frames are pooled",
        None,
        flag="--from",
        metavar="SOURCE",
    )
    freeze: int | None = _STARTING_NETWORK.option(
        "number of quarters of the network to freeze, from the input (0 to 3); 0 freezes only the "
        "stem, or the patch and position embeddings",
        None,
        least=0,
        most=3,
    )
    lora: int | None = _STARTING_NETWORK.option(
        "rank of LoRA adapters, which are trained instead of a transformer's weights",
        None,
        metavar="RANK",
        least=1,
    )
    keep: str | None = _HELD_OUT.option(
        "best: keep the checkpoint with the best score on held-out videos, or the initial network "
        "if training does not improve it; last: keep the last checkpoint (default: last, or best "
        "with --from)",
        None,
        choices=(BEST, LAST),
    )
    labels: str | None = _HELD_OUT.option(
        "with --keep best: labels for the score, either the names of the sub-folders ('folders') "
        "or a CSV file with the columns path and label",
        None,
        metavar="folders|CSV",
    )
    group_column: str | None = _HELD_OUT.option(shared.GROUP_COLUMN, None)
    fold_column: str | None = _HELD_OUT.option(HELD_OUT_FOLD, None)
    plan: bool = _RUN_FOLDER.option(PLAN, False)
    resume: bool = _RUN_FOLDER.option(RESUME, False)
    overwrite: bool = _RUN_FOLDER.option(OVERWRITE, False)
    track: tuple[str, ...] = _RUN_FOLDER.option(TRACK, ())
    mirror: str | None = _RUN_FOLDER.option(MIRROR, None)
    width: int | None = SETTINGS.option("number of channels in the network's stem", None, least=1)
    hidden: int | None = SETTINGS.option(
        "hidden size of the projector and the predictor", None, least=1
    )
    embedding: int | None = SETTINGS.option("size of the embeddings", None, least=1)
    clip_duration: float | None = SETTINGS.option(CLIP_DURATION, None)
    frames: int | None = SETTINGS.option(FRAMES, None)
    size: int | None = SETTINGS.option(SIZE, None)
    batch: int | None = SETTINGS.option(BATCH, None)
    epoch_samples: int | None = SETTINGS.option(
        "minimum number of clips per epoch, rounded up to whole passes over the videos",
        None,
        least=1,
    )
    epochs: int | None = SETTINGS.option(EPOCHS, None)
    warmup: float | None = SETTINGS.option(WARMUP, None)
    queue: int | None = SETTINGS.option(
        "number of keys in the queue: a multiple of the batch size, and smaller than the number of "
        "videos",
        None,
        least=0,
    )
    momentum: float | None = SETTINGS.option(
        "initial momentum of the target network", None, least=0, most=1
    )
    lr: float | None = SETTINGS.option(LR, None)
    memory: bool | None = SETTINGS.option(
        "recompute activations in the backward pass instead of storing them, which saves memory "
        "but takes more time (default: only if the GPU's memory would not suffice)",
        None,
    )
    workers: int | None = SETTINGS.option(DECODERS, None)
    seed: int | None = SETTINGS.option(SEED, None)
    teacher: str | None = DISTILLATION.option(
        "frozen teacher network: a run, a checkpoint, hf:NAME or efficientnet-lite0, optionally "
        "with :POOL",
        None,
        metavar="SOURCE",
    )
    teacher_clips: int | None = DISTILLATION.option(
        "number of clips per video for which the teacher's features are computed once, before "
        "training; with 0, the teacher runs in every step",
        None,
        least=0,
    )
    objective: str | None = DISTILLATION.option(
        "target that the student learns: the teacher's features of whole clips (cosine), of "
        "positions (tokens) or of frames (frames), or the similarities between videos, according "
        "to the teacher's features of clips (relations)",
        None,
        choices=OBJECTIVES,
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
        "Exit status: 0 trained; 2 usage error; 128 + n if signal n stopped the training.\n"
        "More: docs/pretrain.md, docs/encoders.md"
    )

    @property
    def kept(self) -> str:
        """The checkpoint that becomes the result, ``best`` or ``last``."""
        return self.keep or (LAST if self.start is None else BEST)

    @property
    def named_method(self) -> str | None:
        """The method that the user gave, or that a distillation setting implies."""
        return self.method or ("distill" if self._given_for_distill() else None)

    def _given_for_distill(self) -> list[str]:
        """Return the names of the distillation settings that the user gave."""
        return [n for n in ("teacher", "teacher_clips", "objective") if n in given_options(self)]

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        _check_start(self, kept=("mirror", "seeds", "track"))
        self.exclude("seed", "seeds")
        shared.check_seeds(self)
        if self.videos is None and not self.resume:
            raise OptionError(
                "{videos}, a folder or a table, is missing. Only {resume} works without it"
            )
        for name in ("freeze", "lora"):
            if getattr(self, name) is not None and self.start is None:
                raise OptionError(f"{{{name}}} needs a network to start from. Add {{start}} SOURCE")
        self.exclude("start", "width")
        labelled = self.labels or self.group_column or self.fold_column
        if labelled is not None and self.kept != BEST:
            raise OptionError("{labels} needs {keep} best, because labels choose that checkpoint")
        if self.named_method != "distill" and (names := self._given_for_distill()):
            raise OptionError(
                f"{{{names[0]}}} belongs to {{method}} distill. Remove it, or use {{method}} "
                "distill"
            )


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Options):
    """Train a video classifier from a pretrained network, and test it.

    There are two routes to a classifier: 'frozen' fits a linear classifier to features of the
    unchanged network, and 'finetune' trains the network. By default, the command compares both on
    labelled videos that it holds out, and prints which one it chooses and why.

    The command chooses all settings and prints them with the reason for each choice. It writes
    them to RUN/run.json and RUN/config.py, trains, tests with several views of each video, and
    writes the page RUN/run.html. On Ctrl-C, SIGTERM or SIGHUP, it completes the current step and
    writes a checkpoint. To continue from there, add --resume, which reads RUN/run.json as data.
    'sce-video train RUN/config.py' runs the same training, but executes that file.

    TRAIN and TEST can be folders with a sub-folder for each class, tables, lists with 'path label'
    on every line (as the search page writes them), or CSV files with the columns path and label.
    """

    source: str | None = option(
        "pretrained network: a run, a checkpoint, an exported folder, or a transformers or timm "
        "model (FOLDER or hf:NAME). NAME:POOL changes how the features of frames are pooled. "
        "'none' starts from random weights",
        None,
        positional=True,
        metavar="SOURCE",
    )
    train: str | None = option(
        "training videos: class folders, a table (v.lance), a list or a CSV file", None
    )
    test: str | None = option(
        "test videos, in the same formats (default: a quarter of TRAIN is held out)", None
    )
    out: str = option(OUT)
    data_root: str | None = option(shared.DATA_ROOT, None)
    all_files: bool = option(shared.ALL_FILES, False)
    few: int | None = option(
        "number of training videos per class, drawn with the random seed (default: all)",
        None,
        least=1,
    )
    hours: float | None = option(HOURS, None)
    recipe: str | None = option(
        "recipe of your own to use instead of r3d18_folder (docs/extend.md)", None, metavar="NAME"
    )
    route: str = option(
        "auto: use the route that is better on held-out videos; frozen: fit a linear classifier to "
        "frozen features; finetune: train the network",
        AUTO,
        choices=(AUTO, FROZEN, FINETUNE),
    )
    head: str | None = option(
        "type of the classifier (default: chosen automatically)", None, choices=HEADS
    )
    precision: str | None = option(PRECISION, None)
    group_pattern: str | None = _HELD_OUT.option(
        shared.GROUP_PATTERN,
        None,
        help="regular expression to find in each video's path. Its one capturing group, as in "
        "person(\\d+), names the video's group. The videos of a group stay together when the "
        "routes are compared and, without --test, when videos are held out for the test",
    )
    group_column: str | None = _HELD_OUT.option(shared.GROUP_COLUMN, None)
    fold_column: str | None = _HELD_OUT.option(HELD_OUT_FOLD, None)
    plan: bool = _RESUMING.option(PLAN, False)
    resume: bool = _RESUMING.option(RESUME, False)
    overwrite: bool = _RESUMING.option(OVERWRITE, False)
    frozen: int | None = SETTINGS.option(
        "number of stages to freeze; -1 freezes nothing, 0 freezes only the stem or the "
        "embeddings, and 4 freezes the whole network",
        None,
        least=-1,
        most=4,
    )
    width: int | None = SETTINGS.option(
        "number of channels in the network's stem, if SOURCE is none", None, least=1
    )
    dropout: float | None = SETTINGS.option(
        "dropout rate before the classifier", None, least=0, most=1
    )
    clip_duration: float | None = SETTINGS.option(CLIP_DURATION, None)
    frames: int | None = SETTINGS.option(FRAMES, None)
    size: int | None = SETTINGS.option(SIZE, None)
    flip: float | None = SETTINGS.option(
        "probability of mirroring a clip (default: 0.5, or 0 if class names distinguish left and "
        "right)",
        None,
        least=0,
        most=1,
    )
    batch: int | None = SETTINGS.option(BATCH, None)
    epochs: int | None = SETTINGS.option(EPOCHS, None)
    warmup: float | None = SETTINGS.option(WARMUP, None)
    lr: float | None = SETTINGS.option(LR, None)
    weight_decay: float | None = SETTINGS.option("weight decay of AdamW", None, least=0)
    clips: int | None = SETTINGS.option(
        "number of clips per test video, whose class probabilities are averaged", None, least=1
    )
    crops: int | None = SETTINGS.option("number of crops per test clip", None, choices=(1, 3))
    workers: int | None = SETTINGS.option(DECODERS, None)
    seed: int | None = SETTINGS.option(SEED, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video finetune SOURCE --train TRAIN --test TEST --out RUN --hours 2",
        "sce-video finetune SOURCE --train clips.csv --group-column person --out RUN",
        "sce-video finetune efficientnet-lite0 --train TRAIN --out RUN --route frozen",
        "sce-video finetune none --train TRAIN --out RUN --few 10 --epochs 30",
        "sce-video finetune --out RUN --resume",
    )
    more: ClassVar[str] = (
        "Exit status: 0 trained and tested; 2 usage error; 128 + n if signal n stopped the "
        "training.\nMore: docs/videos.md. To use the classifier: sce-video predict RUN VIDEOS"
    )

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        _check_start(self, kept=())
        if not self.resume and (self.source is None or self.train is None):
            raise OptionError(
                "{source} (a run, a checkpoint, ..., or none) or {train} is missing. Only {resume} "
                "works without them"
            )
        self.exclude("group_pattern", "group_column")
        self.exclude("group_pattern", "fold_column")
        self.exclude("fold_column", "test")
        if self.width is not None and self.source not in (None, NONE):
            raise OptionError(
                "{width} can be set only for random weights. Remove it, or set {source} to none"
            )
        if self.route == FROZEN and self.source == NONE:
            raise OptionError("{route} frozen needs a pretrained network as {source}, not none")
        for name in OF_GRADIENTS if self.route == FROZEN else ():
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{{{name}}} has no effect, because {{route}} frozen trains no network. Remove "
                    "one of them"
                )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """Train with a recipe or a config file.

    On Ctrl-C, SIGTERM or SIGHUP (a closed terminal), the command completes the current step, writes
    a checkpoint and exits with status 130, 143 or 129. To continue from there, add --resume. After
    a second Ctrl-C, it stops immediately, without a checkpoint. On SIGUSR1, it also completes the
    step and writes a checkpoint, and then requeues the Slurm job. If torchrun or Slurm restarts a
    run, it resumes automatically. To train with several processes, use 'bash tools/dist_train.sh
    CONFIG NPROC ...'.
    """

    config: str = option(
        "path of a config file, or name of a recipe", positional=True, metavar="CONFIG"
    )
    work_dir: str | None = option(
        "folder for logs and checkpoints (default: work_dirs/CONFIG_NAME)", None, metavar="DIR"
    )
    resume: str | None = option(
        "run or checkpoint to continue. Without a value, continue from the newest checkpoint in "
        "the work folder. The settings of the network and of the training views come from the "
        "checkpoint instead of CONFIG",
        None,
        metavar="RUN",
        alone=NEWEST,
    )
    overwrite: bool = option("delete an earlier training run in the work folder first", False)
    pretrained: str | None = option(
        "run or checkpoint whose backbone the training starts from; 'random' trains from scratch",
        None,
        metavar="RUN",
    )
    amp: str | None = option(
        "mixed precision. Without a value, bfloat16 is used; float32 turns it off",
        None,
        choices=PRECISIONS,
        alone="bfloat16",
    )
    seed: int | None = option("random seed", None, least=0, most=_MAX_SEED)
    deterministic: bool = option(
        "use deterministic algorithms where they exist, although they are slower", False
    )
    auto_scale_lr: bool = option(
        "scale the learning rate with the batch size, for configs of other projects that set "
        "auto_scale_lr.base_batch_size. It is not needed for the shipped recipes, which already "
        "state whether to scale it",
        False,
    )
    cfg_options: tuple[str, ...] = option(
        shared.CHANGES,
        (),
        help="change config values, for example model.tau_m=0.07. Unknown keys are refused",
    )
    print_only: bool = option(
        "do not train, but print every value of the recipe and where it comes from",
        False,
        flag="--print",
    )
    backend: str | None = option(shared.BACKEND, None)
    track: tuple[str, ...] = option(TRACK, ())
    mirror: str | None = option(MIRROR, None)
    launcher: str = option(shared.LAUNCHER, "none")
    data_root: str | None = _OTHER_VIDEOS.option("folder or table of videos", None, metavar="DIR")
    all_files: bool = _OTHER_VIDEOS.option(shared.ALL_FILES, False)
    train_list: str | None = _OTHER_VIDEOS.option(
        "list of training videos, with 'path label' on every line", None, metavar="LIST"
    )
    val_list: str | None = _OTHER_VIDEOS.option(
        "list of validation videos, with 'path label' on every line", None, metavar="LIST"
    )
    classes: str | None = _OTHER_VIDEOS.option(shared.CLASSES, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video train sce_r3d18_folder --data-root VIDEOS --work-dir RUN",
        "sce-video train my_config.py --work-dir RUN --resume",
        "sce-video train r3d18_folder --pretrained RUN --train-list LIST --classes FILE",
        "sce-video train sce_r3d18_folder --cfg-options model.tau_m=0.07 --print",
    )
    more: ClassVar[str] = (
        "Exit status: 0 trained; 2 usage error; 128 + n if signal n stopped the training.\n"
        "More: docs/gpus.md, docs/pretrain.md"
    )

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        self.exclude("resume", "overwrite")
        shared.check_classes(self, "train_list", "val_list")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """Pretrain and evaluate all points of a sweep, and compare the results with published numbers.

    The same command continues an interrupted sweep: finished steps are kept, interrupted runs are
    resumed, and failed steps are repeated. Points with equal settings are trained only once, even
    if they belong to several sweeps. The command writes DIR/SWEEP.md, .json and .png.
    """

    sweeps: tuple[str, ...] = option(
        "file of a sweep, or name of a sweep in configs/sweeps", positional=True, metavar="SWEEP"
    )
    out: str = option("folder for all steps and tables", metavar="DIR")
    seeds: tuple[int, ...] | None = option(
        "random seeds of the training runs (default: those of each sweep)",
        None,
        least=0,
        most=_MAX_SEED,
    )
    points: tuple[str, ...] = option(
        "run only these points (rows of the table)", (), metavar="NAME"
    )
    columns: tuple[str, ...] = option(
        "run only the evaluations in these columns of the table", (), metavar="NAME"
    )
    pretrain_options: tuple[str, ...] = option(
        shared.CHANGES, (), help="change config values of every pretraining step"
    )
    evaluate_options: tuple[str, ...] = option(
        shared.CHANGES, (), help="change config values of every evaluation step"
    )
    jobs: int = option("number of pretraining runs at a time", 1, least=1)
    nproc: int = option("number of processes per step, one for each GPU", 1, least=1)
    shard: str = option(
        "run only part I of N of the pretraining runs and their evaluations",
        "1/1",
        metavar="I/N",
        problem=shared.matching(r"\d{1,9}/\d{1,9}", "must be I/N, such as 2/4"),
    )
    list_steps: bool = option("show the steps and their state, and stop", False, flag="--list")
    only_report: bool = option(
        "write the tables from the finished steps, and stop", False, flag="--report"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video sweep video_lambda --out work_dirs/ablations --nproc 8",
        "sce-video sweep configs/sweeps/video_*.py --out work_dirs/ablations --list",
        "sbatch --array=1-24 --gres=gpu:8 tools/slurm_sweep.sh configs/sweeps/video_*.py --out "
        "work_dirs/ablations --nproc 8",
    )
    more: ClassVar[str] = (
        "Exit status: 0 all done; 1 some steps failed; 2 usage error; 130 interrupted.\n"
        "More: docs/reproduce.md"
    )

    @property
    def part(self) -> tuple[int, int]:
        """The number of the selected part, and the number of parts."""
        number, count = map(int, self.shard.split("/"))
        return number, count

    def check(self) -> None:
        """Raise OptionError for options that exclude each other, or a repeated seed."""
        number, count = self.part
        if not 1 <= number <= count:
            raise OptionError("{shard} must be I/N with I from 1 to N, such as 2/4", self.shard)
        self.exclude("list_steps", "only_report")
        shared.check_seeds(self)
