"""Annotation lists of a data set, from its unpacked official downloads.

    sce-video prepare ucf101 data/ucf101 [--workers N] [--no-check] [--strict] [--force]
    sce-video prepare kinetics data/kinetics400 --k200
    sce-video prepare finegym data/finegym --segments      (which parts of its videos to cut)
    sce-video prepare toy_actions data/toy_actions         (generated: nothing to download)
    sce-video prepare NAME --help                          (layout, options and lists of a set)

Every file is opened once; counts are shown beside the published ones; missing and unreadable files
are left out and listed in missing_NAME.txt and unreadable_NAME.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Unpack

from sce_video.commands.arguments import More, Parser, command_line
from sce_video.utils.command import command

Arguments = argparse.Namespace


def _write_lists(official: Any, located: Any, args: Arguments) -> bool:
    """Whether the counts of lists, whose files were located, are the published ones."""
    from sce_video.data_tools.prepare.lists import PrepareOptions, prepare

    return prepare(official, located, PrepareOptions(**_settings(args)))


def _settings(args: Arguments) -> dict[str, Any]:
    """Settings of PrepareOptions."""
    names = ("root", "out", "workers", "time_limit", "ray", "keep_missing", "force")
    return {"check": not args.no_check, **{name: getattr(args, name) for name in names}}


def _clips(module: ModuleType, name: str, args: Arguments) -> bool | None:
    """Of a set whose lists name its videos, or clips cut from them; None after ``--segments``."""
    from sce_video.data_tools.prepare.official import class_balanced

    if name == "ntu60":  # its file names are its lists
        official, located = module.read_ntu60(args.root, args.videos)
        return _write_lists(official, located, args)
    downloads, read, *clips_of = module.SETS[name]
    official = read(args.root, args.annotations)
    if getattr(args, "segments", False):
        folder = args.videos or args.root / downloads.uncut
        clips = clips_of[0](args.root, official, args.annotations)
        table = (args.out or args.root) / "segments.csv"
        print(module.write_segments(table, args.root, folder, clips))
        return None
    if getattr(args, "samples", None) is not None:  # a smaller list, as SEVERE draws it
        large = next(s for s in official.splits if s.list_name == f"train{_SAMPLED[name]}.txt")
        official = replace(official, splits=(*official.splits, class_balanced(large, args.samples)))
    return _write_lists(official, downloads.locate(args.root, official, args.videos), args)


def _kinetics(module: ModuleType, name: str, args: Arguments) -> bool:
    if args.k200_ids and not (args.k200 or args.k200_classes is not None):
        raise ValueError("--k200-ids needs --k200 or --k200-classes")
    parts = ("train", "val", "test") if args.test else ("train", "val")
    official = module.read_kinetics400(args.root, args.annotations, parts)
    if args.k200 or args.k200_classes is not None:
        names = module.K200_CLASSES
        if args.k200_classes is not None:
            names = module.read_class_list(args.k200_classes, official.class_maps[0].names)
        ids = dict(zip(("train", "val"), args.k200_ids, strict=True)) if args.k200_ids else None
        official = module.add_k200(official, names, ids)
    return _write_lists(official, module.locate_kinetics(args.root, official, args.videos), args)


def _images(module: ModuleType, name: str, args: Arguments) -> bool:
    from sce_video.data_tools.prepare.official import locate_images

    if name in TRANSFER_NAMES:
        return module.prepare_transfer_set(name, module.PrepareOptions(**_settings(args)))
    if name == "imagenet":
        official, folder = module.read_imagenet(args.root, args.imagenet100), args.root
    else:
        official = module.read_tiny_imagenet(args.root)
        folder = module.tiny_imagenet_folder(args.root)
    return _write_lists(official, locate_images(args.root, folder, official), args)


def _ava(module: ModuleType, name: str, args: Arguments) -> bool:
    names = ("annotations", "min_score", "videos", "frames", "skip_frameless", "unannotated")
    options = module.AvaOptions(
        **_settings(args),
        **{name: getattr(args, name) for name in names},
        detections=tuple(args.detections),
        without_detections=args.no_detections,
    )
    return module.prepare_ava(options)


class DataSet(NamedTuple):
    """How a data set is prepared."""

    about: str  # its name, and the lists that are written
    module: str  # below ``data_tools.prepare``
    options: str = "--videos --annotations"  # besides those of all sets
    # Writes the lists; whether their counts agree, None without counts.
    write: Callable[[ModuleType, str, Arguments], bool | None] = _clips


#: Ends of the lists that ``--samples`` draws from.
_SAMPLED = {"ucf101": "_split1", "finegym": ""}
DATA_SETS: dict[str, DataSet] = {
    "kinetics": DataSet(
        "Kinetics-400, and Kinetics-200 from it: k400_{train,val}.txt, k200_{train,val}.txt",
        "kinetics",
        "--videos --annotations --test --k200 --k200-classes --k200-ids",
        _kinetics,
    ),
    "ucf101": DataSet(
        "UCF101: {train,test}_split{1,2,3}.txt", "actions", "--videos --annotations --samples"
    ),
    "hmdb51": DataSet("HMDB51: {train,test}_split{1,2,3}.txt", "actions"),
    "ssv2": DataSet("Something-Something V2: train.txt, val.txt", "actions"),
    "diving48": DataSet("Diving48: train.txt, test.txt", "actions"),
    "finegym": DataSet(
        "FineGym-99, clips cut by repack: {train,val}.txt, {train,val}_{fx_s1,ub_s1}.txt",
        "cut_clips",
        "--videos --annotations --samples --segments",
    ),
    "ntu60": DataSet(
        "NTU RGB+D, 60 actions: {train,test}_{subject,view}.txt", "actions", "--videos"
    ),
    "epic_kitchens": DataSet(
        "EPIC-KITCHENS-100, clips cut by repack: {train,val}_{verb,noun,action}.txt",
        "cut_clips",
        "--videos --annotations --segments",
    ),
    "tiny_imagenet": DataSet("Tiny-ImageNet: train.txt, val.txt", "imagenet", "", _images),
    "imagenet": DataSet(
        "ImageNet (ILSVRC2012), or 100 classes of it: imagenet_{train,val}.txt",
        *("imagenet", "--imagenet100", _images),
    ),
    "ava": DataSet(
        "AVA v2.2: lists of key frames with boxes, actions and person detections",
        "ava",
        "--videos --annotations --frames --detections --no-detections --min-score --unannotated "
        "--skip-frameless",
        _ava,
    ),
}
#: Written by functions of their own.
OTHERS = {
    "toy_actions": "generated: short videos of 12 actions, to try everything with",
    "digits": "scikit-learn's handwritten digits as image files, to try images with",
}
#: The eleven sets of the paper's many-shot table.
TRANSFER_NAMES = (
    "food101", "cifar10", "cifar100", "sun397", "cars", "aircraft", "voc2007", "dtd", "pets",
    "caltech101", "flowers",
)  # fmt: skip


def _parser(name: str, data_set: DataSet, layout: str) -> Parser:
    parser, add = command_line(
        f"Prepare {data_set.about}.",
        as_written=True,
        epilog=f"ROOT holds the unpacked official downloads:\n{layout}",
        prog=f"{sys.argv[0]} {name}",
    )
    add("root ROOT", "folder of the data set", Path)
    out = "write the lists here instead of ROOT; paths in them stay relative to ROOT"
    add("--out DIR", out, Path)
    workers = "processes that check files (default: all cores, of the cluster with --ray)"
    add("--workers", workers, int)
    add("--ray ADDRESS", "check files on a Ray cluster: its address, or 'auto'")
    limit = "a file that takes longer counts as unreadable (default: %(default)s)"
    add("--time-limit SECONDS", limit, float, default=60.0)
    check = "only check that files exist, do not decode their first frame (images: all of it)"
    add("--no-check", check, bool)
    add("--keep-missing", "keep missing and unreadable files in the lists", bool)
    add("--strict", "exit status 1 if a count differs from the published one", bool)
    add("--force", "replace existing lists that differ", bool)
    options = data_set.options.split()

    def own(option: str, text: str, kind: Any = bool, **settings: Unpack[More]) -> None:
        if option.partition(" ")[0] in options:
            add(option, text, kind, **settings)

    own("--videos DIR", "folder of the videos", Path)
    own("--annotations DIR", "folder of the official lists", Path)
    samples = f"also write a list of about N videos of train{_SAMPLED.get(name)}.txt"
    own("--samples N", f"{samples}, as many of every class", int)
    own("--test", "also prepare test.csv and test/")
    own("--k200", "also write lists of the 200 classes of Mini-Kinetics-200 (Xie et al. 2018)")
    own("--k200-classes FILE", "the classes of this file instead, one per line; as --k200", Path)
    ids = "only those of these YouTube ids, one per line: train_ytid_list.txt and "
    ids += "val_ytid_list.txt of the authors of Mini-Kinetics-200"
    own("--k200-ids", ids, Path, nargs=2, metavar=("TRAIN", "VAL"))
    own("--segments", "write segments.csv for repack, and no lists")
    own("--imagenet100", "write the lists of the 100 classes of ImageNet100, for train and val")
    own("--frames DIR", "folder of frame folders, instead of videos", Path)
    detections = "person detections of train and val: SlowFast's csv or mmaction2's pkl"
    own("--detections FILE", detections, Path, nargs="+", default=[])
    own("--no-detections", "use none: the lists cannot serve for testing")
    own("--min-score SCORE", "of detections (default: %(default)s)", float, default=0.9)
    own("--unannotated", "also list seconds of val without ground truth, as SlowFast does")
    own("--skip-frameless", "leave out key frames outside of their video, instead of an error")
    return parser


def _prepare_data_set(name: str, argv: Sequence[str]) -> int:
    about = f"{name} for transfer learning: lists/{{train,val,test}}.txt"
    data_set = DATA_SETS.get(name) or DataSet(about, "transfer_sets", "", _images)
    module = importlib.import_module(f"sce_video.data_tools.prepare.{data_set.module}")
    if name in TRANSFER_NAMES:
        layout = module.TRANSFER_SETS[name].layout
    else:
        layout = module.AVA.layout if name == "ava" else module.SETS[name][0].layout
    args = _parser(name, data_set, layout).parse_args(argv)
    if data_set.write(module, name, args) is not False:
        return 0
    note = "" if args.strict else " (an error with --strict only)"
    print(f"{name}: counts differ from the published ones, see the table{note}", file=sys.stderr)
    return int(args.strict)


def _write_toy_actions(argv: Sequence[str]) -> int:
    parser, add = command_line(
        "Write ROOT/{train,val,test}/CLASS/NUMBER.mp4: labelled h264 files of "
        "generated actions. The same command resumes an interrupted one.",
        prog=f"{sys.argv[0]} toy_actions",
    )
    add("root ROOT", "folder to write to", Path)
    for part, count in (("train", 480), ("val", 120), ("test", 240)):
        add(f"--{part}", "videos of the part, 0 for none", int, default=count)
    add("--seed", None, int, default=0)
    add("--size", "height and width in pixels", int, default=64)
    add("--num-frames", None, int, default=60)
    add("--fps", None, int, default=15)
    add("--workers", "threads that render and encode", int, default=2)
    add("--patterns", "also write {train,val,test}_patterns.txt, with patterns as labels", bool)
    add("--overwrite", "replace videos made with other parameters", bool)
    args = parser.parse_args(argv)
    from sce_video.data_tools.generated import CLASSES, generate_toy_actions, write_pattern_lists

    parts = {"train": args.train, "val": args.val, "test": args.test}
    names = ("size", "num_frames", "fps", "workers", "overwrite")
    start = time.monotonic()
    generate_toy_actions(
        *(args.root, {part: count for part, count in parts.items() if count != 0}, args.seed),
        **{name: getattr(args, name) for name in names},
    )
    if args.patterns:
        write_pattern_lists(args.root)
    count, seconds = sum(parts.values()), time.monotonic() - start
    print(f"{args.root}: {count} videos of {len(CLASSES)} classes ({seconds:.0f} s)")
    return 0


def _write_digits(argv: Sequence[str]) -> int:
    parser, add = command_line(
        "Write ROOT/{train,val,test}/{0,...,9}/NUMBER.png: 1,797 images of 8x8. No "
        "download: scikit-learn (extra 'transfer') holds them.",
        prog=f"{sys.argv[0]} digits",
    )
    add("root ROOT", "folder to write to", Path)
    args = parser.parse_args(argv)
    from sce_video.data_tools.generated import write_digits

    counts = write_digits(args.root)
    listed = ", ".join(f"{part} {count}" for part, count in counts.items())
    print(f"{args.root}: {sum(counts.values()):,} images of 10 classes ({listed})")
    return 0


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the set whose name comes first; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    known = {name: item.about for name, item in DATA_SETS.items()} | OTHERS
    if not words or words[0].startswith("-"):
        about = [f"  {name:<14}  {text}" for name, text in known.items()]
        about += [f"  {', '.join(TRANSFER_NAMES)}", f"{'':18}for transfer with images"]
        parser, add = command_line(
            "\n".join([__doc__ or "", *about]),
            usage=f"{sys.argv[0]} NAME ROOT [options]",
            as_written=True,
        )
        add("NAME", "of the data set")
        parser.parse_args(words)
    name, *rest = words
    if name in DATA_SETS or name in TRANSFER_NAMES:
        return _prepare_data_set(name, rest)
    if name in OTHERS:
        return {"toy_actions": _write_toy_actions, "digits": _write_digits}[name](rest)
    near = difflib.get_close_matches(name, (*known, *TRANSFER_NAMES), 1)
    meant = f", meant {near[0]}?" if near else ""
    raise ValueError(f"no data set {name!r}{meant} (known: {', '.join((*known, *TRANSFER_NAMES))})")
