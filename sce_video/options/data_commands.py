"""Options of ``sce-video prepare``, and the datasets that it prepares."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, Spec, given_options, option


@dataclass(frozen=True)
class DataSet:
    """A dataset that ``sce-video prepare`` supports.

    Args:
        about: Name of the dataset and the lists that are written, for the help.
        options: Options in :class:`PrepareOptions` that only some datasets have.
    """

    about: str
    options: tuple[str, ...] = ("videos", "annotations")


DATA_SETS = {
    "kinetics": DataSet(
        "Kinetics-400, and Kinetics-200 from it: k400_{train,val}.txt, k200_{train,val}.txt",
        ("videos", "annotations", "test", "k200", "k200_classes", "k200_ids"),
    ),
    "ucf101": DataSet(
        "UCF101: {train,test}_split{1,2,3}.txt", ("videos", "annotations", "samples")
    ),
    "hmdb51": DataSet("HMDB51: {train,test}_split{1,2,3}.txt"),
    "ssv2": DataSet("Something-Something V2: train.txt, val.txt"),
    "diving48": DataSet("Diving48: train.txt, test.txt"),
    "finegym": DataSet(
        "FineGym-99, cut into clips by repack: {train,val}.txt, {train,val}_{fx_s1,ub_s1}.txt",
        ("videos", "annotations", "samples", "segments"),
    ),
    "ntu60": DataSet("NTU RGB+D, 60 actions: {train,test}_{subject,view}.txt", ("videos",)),
    "epic_kitchens": DataSet(
        "EPIC-KITCHENS-100, cut into clips by repack: {train,val}_{verb,noun,action}.txt",
        ("videos", "annotations", "segments"),
    ),
    "tiny_imagenet": DataSet("Tiny-ImageNet: train.txt, val.txt", ()),
    "imagenet": DataSet(
        "ImageNet (ILSVRC2012), or 100 classes of it: imagenet_{train,val}.txt", ("imagenet100",)
    ),
    "ava": DataSet(
        "AVA v2.2: lists of key frames with boxes, actions and person detections",
        (
            *("videos", "annotations", "frames", "detections", "no_detections"),
            *("min_score", "unannotated", "skip_frameless"),
        ),
    ),
}
#: The eleven image datasets in the paper's many-shot table for transfer learning
TRANSFER_NAMES = (
    "food101", "cifar10", "cifar100", "sun397", "cars", "aircraft", "voc2007", "dtd", "pets",
    "caltech101", "flowers",
)  # fmt: skip
DATA_SETS |= {
    name: DataSet(f"{name}: lists/{{train,val,test}}.txt for transfer learning", ())
    for name in TRANSFER_NAMES
}
#: Generated datasets, which have their own options
GENERATED = {
    "toy_actions": "short generated videos of 12 actions, to try everything out",
    "digits": "scikit-learn's handwritten digits as image files, for a quick test with images",
}
_DATASET = Group("dataset")


def check_name(name: str) -> None:
    """Raise ValueError if the dataset is unknown, and suggest a similar name."""
    known = (*DATA_SETS, *GENERATED)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no dataset {name!r}.{meant} Known: {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """Write the annotation lists of a dataset from its unpacked official downloads.

    The command checks that every file can be opened, and prints a table that compares the numbers
    of files with the published ones. Missing and unreadable files are left out of the lists, and
    are listed in missing_NAME.txt and unreadable_NAME.txt (for kinetics, NAME is k400).
    """

    name: str = option("name of the dataset", positional=True, metavar="NAME")
    root: str = option("folder of the dataset", positional=True, metavar="ROOT")
    out: str | None = option(
        "folder for the lists, in which paths stay relative to ROOT (default: ROOT, or ROOT/lists "
        "for the datasets of sce-video transfer)",
        None,
        metavar="DIR",
    )
    no_check: bool = option(
        "only check that the files exist, without decoding the first frame of a video or an image",
        False,
    )
    keep_missing: bool = option("keep missing and unreadable files in the lists", False)
    strict: bool = option("exit with status 1 if a number differs from the published one", False)
    force: bool = option("replace existing lists with different content", False)
    videos: str | None = _DATASET.option("folder of the videos", None, metavar="DIR")
    annotations: str | None = _DATASET.option("folder of the official lists", None, metavar="DIR")
    samples: int | None = _DATASET.option(
        "also write a list of about N videos from train_split1.txt (finegym: train.txt), with the "
        "same number for each class",
        None,
        least=1,
    )
    test: bool = _DATASET.option(
        "also write k400_test.txt, from test.csv and the videos in test/", False
    )
    k200: bool = _DATASET.option(
        "also write lists of the 200 classes in Mini-Kinetics-200 (Xie et al. 2018)", False
    )
    k200_classes: str | None = _DATASET.option(
        "like --k200, but with the classes in this file, one per line", None, metavar="FILE"
    )
    k200_ids: tuple[str, ...] | None = _DATASET.option(
        "with --k200 or --k200-classes: files of the YouTube ids to which the lists are limited, "
        "one per line, such as train_ytid_list.txt and val_ytid_list.txt from the authors of "
        "Mini-Kinetics-200",
        None,
        metavar=("TRAIN", "VAL"),
    )
    segments: bool = _DATASET.option(
        "instead of lists, write segments.csv for sce-video repack", False
    )
    imagenet100: bool = _DATASET.option("write only lists of the 100 classes in ImageNet100", False)
    frames: str | None = _DATASET.option(
        "folder with one folder of frames per video, instead of videos", None, metavar="DIR"
    )
    detections: tuple[str, ...] = _DATASET.option(
        "person detections for train and val: CSV files from SlowFast or pickles from mmaction2",
        (),
        metavar="FILE",
    )
    no_detections: bool = _DATASET.option(
        "write lists without detections, which are not sufficient for a test", False
    )
    min_score: float = _DATASET.option(
        "minimum score of a detection", 0.9, metavar="SCORE", least=0, most=1
    )
    unannotated: bool = _DATASET.option(
        "also add the seconds of val that have detections but no ground truth, so that these "
        "detections count as false positives, as in SlowFast",
        False,
    )
    skip_frameless: bool = _DATASET.option(
        "leave out key frames beyond the end of their video, instead of raising an error", False
    )
    time_limit: float = shared.PROCESSES.option(shared.TIMEOUT, 60.0)
    workers: int | None = shared.PROCESSES.option(shared.WORKERS, None)
    ray: str | None = shared.PROCESSES.option(shared.RAY, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video prepare ucf101 data/ucf101 --workers 8",
        "sce-video prepare kinetics data/kinetics400 --k200",
        "sce-video prepare finegym data/finegym --segments",
        "sce-video prepare toy_actions data/toy_actions",
    )
    more: ClassVar[str] = (
        "'sce-video prepare NAME --help' shows the folder layout and the options of a dataset.\n"
        "More: docs/data.md"
    )

    def check(self) -> None:
        """Raise an error if the dataset is unknown, or does not support a given option."""
        check_name(self.name)
        if self.name in GENERATED:
            raise OptionError(f"{self.name} is generated. Call prepare_{self.name}() instead")
        for name in given_options(self):
            if name in options_left_out(self.name):
                raise OptionError(f"{{{name}}} is not an option of {self.name}")
        if self.k200_ids and not (self.k200 or self.k200_classes is not None):
            raise OptionError("{k200_ids} needs {k200} or {k200_classes}")
        self.exclude("videos", "frames")
        self.exclude("detections", "no_detections")


def options_left_out(name: str) -> set[str]:
    """Return the options in :class:`PrepareOptions` that a dataset does not support."""
    own = {each for data_set in DATA_SETS.values() for each in data_set.options}
    return own - {*DATA_SETS[name].options}


_COUNT = Spec("", metavar="N", least=0)


@dataclass(frozen=True, kw_only=True)
class ToyActionsOptions(Options):
    """Generate labelled videos of simple actions: ROOT/{train,val,test}/CLASS/NUMBER.mp4.

    The files are encoded with h264. To resume an interrupted run, repeat the same command.
    """

    root: str = option("folder for the videos", positional=True, metavar="ROOT")
    train: int = option(_COUNT, 480, help="number of training videos, which may be 0")
    val: int = option(_COUNT, 120, help="number of validation videos, which may be 0")
    test: int = option(_COUNT, 240, help="number of test videos, which may be 0")
    seed: int = option("random seed", 0)
    size: int = option("height and width, in pixels", 64, least=2)
    num_frames: int = option("number of frames per video", 60, least=1)
    fps: int = option("frame rate, in frames per second", 15, least=1)
    workers: int = option("number of threads that render and encode videos", 2, least=1)
    patterns: bool = option(
        "also write {train,val,test}_patterns.txt, in which patterns are the labels", False
    )
    overwrite: bool = option("replace videos that were made with different parameters", False)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video prepare toy_actions data/toy_actions",
        "sce-video prepare toy_actions data/toy_actions --train 2400 --size 112 --workers 8",
    )


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(Options):
    """Write 1,797 images of digits, 8x8 pixels each: ROOT/{train,val,test}/{0,...,9}/NUMBER.png.

    Nothing is downloaded, because scikit-learn (extra 'transfer') contains the images.
    """

    root: str = option("folder for the images", positional=True, metavar="ROOT")

    examples: ClassVar[tuple[str, ...]] = ("sce-video prepare digits data/digits",)
