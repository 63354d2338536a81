"""Options of protocols on files: probe, retrieve, transfer, fuse-scores; and finetune-splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import (
    BACKEND,
    CHANGES,
    FACTORS,
    FOLDS,
    GROUP_PATTERN,
    JSON,
    LAUNCHER,
    PAIRS,
    matching,
    protocol_problem,
)
from sce_video.options.training import PRECISIONS

_NPZ = matching(r".*\.npz", "must end in .npz")


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(Options):
    """Compute kNN, a linear probe and other protocols from files of features.

    The files are written by sce-video embed, or contain features, labels and paths. The weight
    decay of the linear probe is selected on a held-out part of the training features. The protocol
    time also needs features of altered clips, which 'sce-video test --dump' saves.
    """

    test: str = option("features to evaluate", metavar="FILE.npz")
    train: str | None = option("labelled training features", None, metavar="FILE.npz")
    group_pattern: str | None = option(GROUP_PATTERN, None)
    folds: int | str | None = option(FOLDS, None)
    protocols: tuple[str, ...] = option(
        "protocols, or metrics of your own",
        ("knn", "linear"),
        metavar="NAME",
        problem=protocol_problem,
    )
    k: int | None = option("knn: number of neighbours (default: 20)", None, least=1)
    temperature: float | None = option(
        "knn: temperature of the neighbours' weights (default: 0.07)", None, above=0
    )
    seed: int | None = option("linear: seed of the validation split (default: 0)", None, least=0)
    pairs: str | None = option(PAIRS, None)
    factors: str | None = option(FACTORS, None)
    json: str | None = option(JSON, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video probe --train train.npz --test test.npz",
        "sce-video probe --train train.npz --test test.npz --protocols knn --k 7 --json probe.json",
        "sce-video probe --test features.npz --group-pattern 'person(\\d+)' --folds loo",
    )
    more: ClassVar[str] = "More: docs/metrics.md"

    def settings(self) -> dict[str, dict[str, object]]:
        """Return the arguments of each protocol, by its name."""
        of_protocol = {
            "knn": ("k", "temperature"),
            "linear": ("seed",),
            "time": ("pairs", "factors"),
        }
        given = {name: getattr(self, name) for names in of_protocol.values() for name in names}
        return {
            protocol: {n: given[n] for n in of_protocol.get(protocol, ()) if given[n] is not None}
            for protocol in self.protocols
        }

    def check(self) -> None:
        """Raise OptionError for options of protocols that are not computed."""
        if (self.train is None) == (self.group_pattern is None):
            raise OptionError("give either {train} or {group_pattern}")
        if self.folds is not None and self.group_pattern is None:
            raise OptionError("{folds} needs groups. Give {group_pattern}")
        used = {name for settings in self.settings().values() for name in settings}
        for name in ("k", "temperature", "seed", "pairs", "factors"):
            if getattr(self, name) is not None and name not in used:
                raise OptionError(f"{{{name}}} belongs to a protocol that {{protocols}} lacks")


@dataclass(frozen=True, kw_only=True)
class RetrieveOptions(Options):
    """Compute R@k from files of features: cosine similarity, centred and plain.

    The files are written by sce-video embed, or contain features, labels and paths. The search is
    exact and works in blocks, so besides the features, memory depends only on the block sizes. A
    gallery video with the path of the query is excluded, so both files may be the same.
    """

    query: str = option("features of the queries", metavar="FILE.npz")
    bank: str = option("features of the gallery", metavar="FILE.npz")
    ks: tuple[int, ...] = option("ranks", (1, 5, 10), metavar="K", least=1)
    json: str | None = option(JSON, None)
    neighbours: str | None = option(
        "file for the nearest gallery rows of each query", None, metavar="OUT.npz", problem=_NPZ
    )
    block: int = option("number of queries compared at a time", 1024, least=1)
    bank_block: int | None = option(
        "number of gallery rows compared at a time; fewer need less memory", None, least=1
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video retrieve --query test.npz --bank train.npz",
        "sce-video retrieve --query test.npz --bank train.npz --ks 1 5 10 20 --json r.json",
        "sce-video retrieve --query all.npz --bank all.npz --neighbours neighbours.npz",
    )
    more: ClassVar[str] = "More: docs/metrics.md"


@dataclass(frozen=True, kw_only=True)
class FuseScoresOptions(Options):
    """Fuse several tests of the same videos: the weighted mean of their class probabilities.

    The files are written by 'sce-video test CONFIG CHECKPOINT --dump scores.npz'. Videos are
    matched by path. The command prints the accuracies of each file and of the fusion.
    """

    scores: tuple[str, ...] = option(
        "files of scores, two or more", positional=True, metavar="SCORES.npz"
    )
    weights: tuple[float, ...] = option(
        "weight of each file (default: equal weights)", (), metavar="X", least=0
    )
    json: str | None = option(JSON, None)
    out: str | None = option("file for the fused scores", None, metavar="FUSED.npz", problem=_NPZ)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video fuse-scores a.npz b.npz",
        "sce-video fuse-scores a.npz b.npz --weights 2 1 --json fused.json",
        "sce-video fuse-scores a.npz b.npz c.npz --out fused.npz",
    )

    def check(self) -> None:
        """Raise OptionError for a single file, or another number of weights than of files."""
        if len(self.scores) < 2:
            raise OptionError("fusion needs two files of scores or more")
        if self.weights and len(self.weights) != len(self.scores):
            raise OptionError(
                f"{{weights}} must have a weight for each of {len(self.scores)} files",
                self.weights,
            )
        if self.weights and not sum(self.weights):
            raise OptionError("one of {weights} must be above 0", self.weights)


@dataclass(frozen=True, kw_only=True)
class TransferOptions(Options):
    """Measure transfer from files of features: linear classifiers, or SVMs on VOC2007.

    The files are written by sce-video embed on the lists of sce-video prepare. 'linear' fits
    many-shot logistic regression (tab:many-shot). Its C is chosen on the validation split, or on a
    fifth of the training images if the set has none. 'svm' fits one SVM per class of VOC2007
    (tab:low-shot-voc). Test images are used only for the last score.
    """

    protocol: str = option("protocol", positional=True, choices=("linear", "svm"))
    train: str = option("features of the training split", metavar="FILE.npz")
    test: str = option("features of the test split", metavar="FILE.npz")
    val: str | None = option("features of the official validation split", None, metavar="FILE.npz")
    labels: str | None = option(
        "folder of {train,val,test}_labels.txt (VOC2007)", None, metavar="DIR"
    )
    json: str | None = option(JSON, None)
    set: str | None = option("dataset of the paper", None, metavar="NAME", group="linear")
    metric: str | None = option(
        "metric of a dataset of your own",
        None,
        choices=("top1", "mean_class"),
        group="linear",
    )
    c: float | None = option(
        "fixed C of scikit-learn, instead of choosing it", None, above=0, group="linear"
    )
    shots: tuple[int | str, ...] = option(
        "training images per class, or full",
        (16, 32, 64, "full"),
        metavar="K",
        least=1,
        words=("full",),
        group="svm",
    )
    draws: int = option("number of training sets drawn for each K", 5, least=1, group="svm")
    seed: int = option("random seed of the draws", 0, least=0, group="svm")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video transfer linear --set dtd --train train.npz --val val.npz --test test.npz",
        "sce-video transfer linear --metric top1 --train train.npz --test test.npz",
        "sce-video transfer svm --labels ROOT/lists --train train.npz --val val.npz --test t.npz",
    )
    more: ClassVar[str] = "More: docs/transfer.md"

    def check(self) -> None:
        """Raise OptionError for options that the protocol does not have, or that it lacks."""
        if self.protocol == "linear":
            if (self.set is None) == (self.metric is None):
                raise OptionError("linear needs either {set} or {metric}")
            if (self.shots, self.draws, self.seed) != ((16, 32, 64, "full"), 5, 0):
                raise OptionError("{shots}, {draws} and {seed} belong to the protocol svm")
        elif self.set is not None or self.metric is not None or self.c is not None:
            raise OptionError("{set}, {metric} and {c} belong to the protocol linear")
        elif self.labels is None:
            raise OptionError("svm needs {labels}, the folder of the tables of labels")


@dataclass(frozen=True, kw_only=True)
class FinetuneSplitsOptions(Options):
    """Finetune and test all splits of a dataset, and report each result and the mean.

    The same command resumes an interrupted run: finished splits are kept, and an unfinished one
    continues from its last checkpoint. Every split has its results in
    WORK_DIR/split<N>/results.json, and WORK_DIR/splits.json contains their mean. The results belong
    to the last epoch of each split. If the recipe keeps the best epoch (save_best),
    split<N>/best.json and the entry "best" of splits.json describe it. The recipes choose it on the
    test videos, as the authors' code does.
    """

    config: str = option("recipe with split = 1 and lists named *split1*", positional=True)
    splits: tuple[str, ...] = option("splits to train and test", ("1", "2", "3"), metavar="N")
    pretrained: str | None = option(
        "start from the backbone of this checkpoint; 'random' trains from scratch",
        None,
        metavar="CHECKPOINT",
    )
    work_dir: str | None = option(
        "folder for all splits (default: work_dirs/CONFIG_NAME_splits)", None, metavar="DIR"
    )
    amp: str | None = option(
        "precision of the training (default: the config's)",
        None,
        choices=PRECISIONS,
    )
    seed: int | None = option("random seed (default: the config's)", None, least=0)
    cfg_options: tuple[str, ...] = option(CHANGES, ())
    backend: str | None = option(BACKEND, None)
    launcher: str = option(LAUNCHER, "none")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video finetune-splits CONFIG --pretrained CHECKPOINT",
        "sce-video finetune-splits CONFIG --splits 1 2 --pretrained random",
        "torchrun --nproc_per_node 8 -m sce_video finetune-splits CONFIG --launcher pytorch "
        "--pretrained CHECKPOINT",
    )
    more: ClassVar[str] = "More: docs/reproduce.md"

    def check(self) -> None:
        """Raise OptionError for a split that is given twice."""
        if len({*self.splits}) != len(self.splits) or not self.splits:
            raise OptionError("{splits} must be given once each", self.splits)
