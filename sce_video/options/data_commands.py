"""Options of ``sce-video prepare``, and the datasets that it prepares."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, Spec, option
from sce_video.options.shared import RAY, TIMEOUT, WORKERS


@dataclass(frozen=True)
class DataSet:
    """Entry of a dataset in the help.

    Args:
        about: Name of the dataset and the lists that are written.
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
        "FineGym-99, clips cut by repack: {train,val}.txt, {train,val}_{fx_s1,ub_s1}.txt",
        ("videos", "annotations", "samples", "segments"),
    ),
    "ntu60": DataSet("NTU RGB+D, 60 actions: {train,test}_{subject,view}.txt", ("videos",)),
    "epic_kitchens": DataSet(
        "EPIC-KITCHENS-100, clips cut by repack: {train,val}_{verb,noun,action}.txt",
        ("videos", "annotations", "segments"),
    ),
    "tiny_imagenet": DataSet("Tiny-ImageNet: train.txt, val.txt", ()),
    "imagenet": DataSet(
        "ImageNet (ILSVRC2012), or 100 classes of it: imagenet_{train,val}.txt", ("imagenet100",)
    ),
    "ava": DataSet(
        "AVA v2.2: lists of key frames with boxes, actions and person detections",
        (
            "videos",
            "annotations",
            "frames",
            "detections",
            "no_detections",
            "min_score",
            "unannotated",
            "skip_frameless",
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
#: Datasets that are generated and have options of their own
GENERATED = {
    "toy_actions": "generated short videos of 12 actions, to try everything with",
    "digits": "scikit-learn's handwritten digits as image files, to try images with",
}


def check_name(name: str) -> None:
    """Raise ValueError that suggests a similar name, if the dataset is unknown."""
    known = (*DATA_SETS, *GENERATED)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no dataset {name!r}.{meant} The names are {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(Options):
    """Write the annotation lists of a dataset from its unpacked official downloads.

    Every file is opened once, and the counts are shown next to the published ones. Missing and
    unreadable files are left out of the lists and listed in missing_NAME.txt and
    unreadable_NAME.txt.
    """

    name: str = option("name of the dataset", positional=True, metavar="NAME")
    root: str = option("folder of the dataset", positional=True, metavar="ROOT")
    out: str | None = option(
        "folder to write the lists to; paths in them stay relative to ROOT (default: ROOT)",
        None,
        metavar="DIR",
    )
    no_check: bool = option(
        "only check that files exist; do not decode their first frame (images: all of it)", False
    )
    keep_missing: bool = option("keep missing and unreadable files in the lists", False)
    strict: bool = option("return exit status 1 if a count differs from the published one", False)
    force: bool = option("replace existing lists that differ", False)
    videos: str | None = option("folder of the videos", None, metavar="DIR", group="dataset")
    annotations: str | None = option(
        "folder of the official lists", None, metavar="DIR", group="dataset"
    )
    samples: int | None = option(
        "also write a list of about N videos of train_split1.txt (finegym: train.txt), equally "
        "many of each class",
        None,
        least=1,
        group="dataset",
    )
    test: bool = option("also prepare test.csv and test/", False, group="dataset")
    k200: bool = option(
        "also write lists of the 200 classes of Mini-Kinetics-200 (Xie et al. 2018)",
        False,
        group="dataset",
    )
    k200_classes: str | None = option(
        "like --k200, with the classes of this file, one per line",
        None,
        metavar="FILE",
        group="dataset",
    )
    k200_ids: tuple[str, ...] | None = option(
        "with --k200, only the videos with these YouTube ids, one per line: "
        "train_ytid_list.txt and val_ytid_list.txt from the authors of Mini-Kinetics-200",
        None,
        metavar=("TRAIN", "VAL"),
        group="dataset",
    )
    segments: bool = option(
        "write segments.csv for sce-video repack, and no lists", False, group="dataset"
    )
    imagenet100: bool = option(
        "write the lists of the 100 classes of ImageNet100", False, group="dataset"
    )
    frames: str | None = option(
        "folder of frame folders, instead of videos", None, metavar="DIR", group="dataset"
    )
    detections: tuple[str, ...] = option(
        "person detections of train and val: CSV files of SlowFast or pickles of mmaction2",
        (),
        metavar="FILE",
        group="dataset",
    )
    no_detections: bool = option(
        "use no detections; the lists are then not sufficient for a test", False, group="dataset"
    )
    min_score: float = option(
        "leave out detections with a lower score",
        0.9,
        metavar="SCORE",
        least=0,
        most=1,
        group="dataset",
    )
    unannotated: bool = option(
        "also list seconds of val without ground truth, as SlowFast does", False, group="dataset"
    )
    skip_frameless: bool = option(
        "leave out key frames outside of their video, instead of an error", False, group="dataset"
    )
    time_limit: float = option(TIMEOUT, 60.0, group="processes")
    workers: int | None = option(WORKERS, None, group="processes")
    ray: str | None = option(RAY, None, group="processes")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video prepare ucf101 data/ucf101 --workers 8",
        "sce-video prepare kinetics data/kinetics400 --k200",
        "sce-video prepare finegym data/finegym --segments",
        "sce-video prepare toy_actions data/toy_actions",
    )
    more: ClassVar[str] = (
        "'sce-video prepare NAME --help' shows the layout and the options of a dataset.\n"
        "More: docs/data.md"
    )

    def check(self) -> None:
        """Raise an error if the dataset is unknown or does not have a given option."""
        check_name(self.name)
        if self.name in GENERATED:
            raise OptionError(f"{{name}} {self.name} is generated: call prepare_{self.name}()")
        for declared in fields(self):
            if declared.name in options_left_out(self.name):
                if getattr(self, declared.name) != declared.default:
                    raise OptionError(f"{{{declared.name}}} is not an option of {self.name}")
        if self.k200_ids and not (self.k200 or self.k200_classes is not None):
            raise OptionError("{k200_ids} needs {k200} or {k200_classes}")
        if self.k200_ids and len(self.k200_ids) != 2:
            raise OptionError("{k200_ids} needs two files, first train, then val")
        if self.videos is not None and self.frames is not None:
            raise OptionError("give {videos} or {frames}, not both")
        if self.detections and self.no_detections:
            raise OptionError("give {detections} or {no_detections}, not both")


def options_left_out(name: str) -> set[str]:
    """Return the options in :class:`PrepareOptions` that a dataset does not have."""
    own = {each for data_set in DATA_SETS.values() for each in data_set.options}
    return own - {*DATA_SETS[name].options}


def _count(part: str) -> Spec:
    return Spec(f"number of {part} videos, 0 for none", metavar="N", least=0)


@dataclass(frozen=True, kw_only=True)
class ToyActionsOptions(Options):
    """Write ROOT/{train,val,test}/CLASS/NUMBER.mp4: labelled h264 files of generated actions.

    The same command resumes an interrupted one.
    """

    root: str = option("folder to write to", positional=True, metavar="ROOT")
    train: int = option(_count("training"), 480)
    val: int = option(_count("validation"), 120)
    test: int = option(_count("test"), 240)
    seed: int = option("random seed", 0)
    size: int = option("height and width in pixels", 64, least=2)
    num_frames: int = option("number of frames per video", 60, least=1)
    fps: int = option("frames per second", 15, least=1)
    workers: int = option("number of threads that render and encode", 2, least=1)
    patterns: bool = option(
        "also write {train,val,test}_patterns.txt, with patterns as labels", False
    )
    overwrite: bool = option("replace videos made with other parameters", False)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video prepare toy_actions data/toy_actions",
        "sce-video prepare toy_actions data/toy_actions --train 2400 --size 112 --workers 8",
    )


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(Options):
    """Write ROOT/{train,val,test}/{0,...,9}/NUMBER.png: 1,797 images of 8x8 pixels.

    Nothing is downloaded, because scikit-learn (extra 'transfer') contains them.
    """

    root: str = option("folder to write to", positional=True, metavar="ROOT")

    examples: ClassVar[tuple[str, ...]] = ("sce-video prepare digits data/digits",)
