"""Options of the commands that evaluate files, and of finetune-splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, given_options, option
from sce_video.options.training import PRECISIONS

_NPZ = shared.matching(r".*\.npz", "must end in .npz")
_LINEAR = Group("protocol linear")
_SVM = Group("protocol svm")


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(Options):
    """Run kNN, a linear probe and other evaluation protocols on feature files.

    The files are written by sce-video embed, or contain the same arrays: features, labels and
    paths. The weight decay of the linear probe is selected on held-out training features. The
    protocol "time" also needs features of shuffled, reversed and still clips. 'sce-video test
    --dump' saves them if the config's metrics include SenseOfTime.
    """

    test: str = option("file of the features to evaluate", metavar="FILE.npz")
    train: str | None = option("file of labelled training features", None, metavar="FILE.npz")
    group_pattern: str | None = option(shared.GROUP_PATTERN, None)
    folds: int | str | None = option(shared.FOLDS, None)
    protocols: tuple[str, ...] = option(
        f"protocols to compute: {', '.join(shared.PROTOCOLS)}, or metrics of your own",
        ("knn", "linear"),
        metavar="NAME",
        problem=shared.protocol_problem,
    )
    k: int | None = option("knn: number of neighbours (default: 20)", None, least=1)
    temperature: float | None = option(
        "knn: temperature of the neighbours' weights (default: 0.07)", None, above=0
    )
    seed: int | None = option(
        "linear: random seed of the validation split (default: 0)", None, least=0
    )
    pairs: str | None = option(shared.PAIRS, None)
    factors: str | None = option(shared.FACTORS, None)
    json: str | None = option(shared.JSON, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video probe --train train.npz --test test.npz",
        "sce-video probe --train train.npz --test test.npz --protocols knn --k 7 --json probe.json",
        "sce-video probe --test features.npz --group-pattern 'person(\\d+)' --folds loo",
    )
    more: ClassVar[str] = "More: docs/metrics.md"

    def settings(self) -> dict[str, dict[str, object]]:
        """Return the given arguments of each protocol, by protocol and name."""
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
            raise OptionError("either {train} or {group_pattern} is needed")
        if self.folds is not None and self.group_pattern is None:
            raise OptionError("{folds} divides groups. Add {group_pattern}")
        used = {name for settings in self.settings().values() for name in settings}
        for name in ("k", "temperature", "seed", "pairs", "factors"):
            if getattr(self, name) is not None and name not in used:
                raise OptionError(f"{{{name}}} belongs to a protocol that {{protocols}} lacks")


@dataclass(frozen=True, kw_only=True)
class RetrieveOptions(Options):
    """Compute R@k from feature files, with centred and with plain cosine similarity.

    The files are written by sce-video embed, or contain the same arrays: features, labels and
    paths. The search is exact and works in blocks, so it needs little memory besides the features.
    A gallery video with the same path as the query is left out, so both files may be the same.
    """

    query: str = option("file of the query features", metavar="FILE.npz")
    bank: str = option("file of the gallery features", metavar="FILE.npz")
    ks: tuple[int, ...] = option("values of k", (1, 5, 10), metavar="K", least=1)
    json: str | None = option(shared.JSON, None)
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
    """Fuse several tests of the same videos into the weighted mean of their class probabilities.

    The files are written by 'sce-video test CONFIG CHECKPOINT --dump scores.npz'. Videos are
    matched by path. The command prints the accuracies of each file and of the fusion.
    """

    scores: tuple[str, ...] = option(
        "two or more files of scores", positional=True, metavar="SCORES.npz"
    )
    weights: tuple[float, ...] = option(
        "one weight per file (default: equal weights)", (), metavar="X", least=0
    )
    json: str | None = option(shared.JSON, None)
    out: str | None = option("file for the fused scores", None, metavar="FUSED.npz", problem=_NPZ)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video fuse-scores a.npz b.npz",
        "sce-video fuse-scores a.npz b.npz --weights 2 1 --json fused.json",
        "sce-video fuse-scores a.npz b.npz c.npz --out fused.npz",
    )

    def check(self) -> None:
        """Raise OptionError for a single file, or unless every file has a weight."""
        if len(self.scores) < 2:
            raise OptionError("fusion needs two or more files of scores")
        if self.weights and len(self.weights) != len(self.scores):
            raise OptionError(
                f"{{weights}} must contain a weight for each of the {len(self.scores)} files",
                self.weights,
            )
        if self.weights and not sum(self.weights):
            raise OptionError("at least one of {weights} must be above 0", self.weights)


@dataclass(frozen=True, kw_only=True)
class TransferOptions(Options):
    """Measure how well image features transfer, with linear classifiers or with SVMs on VOC2007.

    The command reads features that sce-video embed has computed for the lists of sce-video prepare.
    'linear' is the many-shot protocol, which fits logistic regression. Its C is chosen on the
    validation split, or on a fifth of the training images if the dataset has none. 'svm' is the
    low-shot protocol, which fits one SVM per class of VOC2007. Test images are used only for the
    final score.
    """

    protocol: str = option("protocol", positional=True, choices=("linear", "svm"))
    train: str = option("file of training features", metavar="FILE.npz")
    test: str = option("file of test features", metavar="FILE.npz")
    val: str | None = option(
        "file of features of the official validation split", None, metavar="FILE.npz"
    )
    labels: str | None = option(
        "folder that contains {train,val,test}_labels.txt (VOC2007)", None, metavar="DIR"
    )
    json: str | None = option(shared.JSON, None)
    set: str | None = _LINEAR.option(
        "name of a dataset in the paper, for example dtd, which determines the metric",
        None,
        metavar="NAME",
    )
    metric: str | None = _LINEAR.option(
        "metric for your own dataset", None, choices=("top1", "mean_class")
    )
    c: float | None = _LINEAR.option(
        "scikit-learn's C (default: chosen on the validation split)", None, above=0
    )
    shots: tuple[int | str, ...] = _SVM.option(
        "numbers of training images per class; full uses all images",
        (16, 32, 64, "full"),
        metavar="K",
        least=1,
        words=("full",),
    )
    draws: int = _SVM.option("number of training sets that are drawn for each K", 5, least=1)
    seed: int = _SVM.option("random seed for drawing training sets", 0, least=0)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video transfer linear --set dtd --train train.npz --val val.npz --test test.npz",
        "sce-video transfer linear --metric top1 --train train.npz --test test.npz",
        "sce-video transfer svm --labels ROOT/lists --train train.npz --val val.npz --test t.npz",
    )
    more: ClassVar[str] = "More: docs/transfer.md"

    def check(self) -> None:
        """Raise OptionError for options of the other protocol, or for missing ones."""
        others = ("shots", "draws", "seed") if self.protocol == "linear" else ("set", "metric", "c")
        for name in others:
            if name in given_options(self):
                raise OptionError(f"{{{name}}} has no effect on the protocol {self.protocol}")
        if self.protocol == "linear" and (self.set is None) == (self.metric is None):
            raise OptionError("linear needs either {set} or {metric}")
        if self.protocol == "svm" and self.labels is None:
            raise OptionError("svm needs {labels}, the folder with the labels of VOC2007")


@dataclass(frozen=True, kw_only=True)
class FinetuneSplitsOptions(Options):
    """Finetune and test all splits of a dataset, and report each result and the mean.

    The same command resumes an interrupted run: finished splits are kept, and an unfinished one
    continues from its last checkpoint. The results of each split are written to
    WORK_DIR/split<N>/results.json, and their mean to WORK_DIR/splits.json. These are the results of
    the last epoch of each split. If the recipe keeps the best epoch (save_best), split<N>/best.json
    and the entry "best" in splits.json contain the results of the best epoch. The recipes select it
    on the test videos, as the code of the paper's authors does.
    """

    config: str = option(
        "recipe that sets 'split = 1' and whose lists have 'split1' in their names", positional=True
    )
    splits: tuple[str, ...] = option("splits to train and test", ("1", "2", "3"), metavar="N")
    pretrained: str | None = option(
        "checkpoint whose backbone the training starts from; 'random' trains from scratch",
        None,
        metavar="CHECKPOINT",
    )
    work_dir: str | None = option(
        "folder for all splits (default: work_dirs/CONFIG_NAME_splits)", None, metavar="DIR"
    )
    amp: str | None = option(
        "numeric precision of the training (default: as in the config)", None, choices=PRECISIONS
    )
    seed: int | None = option("random seed (default: as in the config)", None, least=0)
    cfg_options: tuple[str, ...] = option(shared.CHANGES, ())
    backend: str | None = option(shared.BACKEND, None)
    launcher: str = option(shared.LAUNCHER, "none")

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
            raise OptionError("{splits} must be one or more different splits", self.splits)
