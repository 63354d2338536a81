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
from typing import Any, NamedTuple

from sce_video.commands.arguments import Parser
from sce_video.utils.command import command

Arguments = argparse.Namespace
#: Content of the official lists, and where each of their videos is.
Found = tuple[Any, Any]


def _find_clips(module: ModuleType, name: str, args: Arguments) -> Found:
    """Of a set whose lists name its videos."""
    downloads, read = module.SETS[name]
    official = _with_samples(read(args.root, args.annotations), args)
    return official, downloads.locate(args.root, official, args.videos)


def _find_cut_clips(module: ModuleType, name: str, args: Arguments) -> Found | None:
    """Of a set whose clips are cut from long videos; None after ``--segments``."""
    from sce_video.data_tools.prepare.cut_clips import write_segments

    downloads, read, clips_of = module.SETS[name]
    official = read(args.root, args.annotations)
    if args.segments:
        folder = args.videos or args.root / downloads.uncut
        clips = clips_of(args.root, official, args.annotations)
        print(write_segments((args.out or args.root) / "segments.csv", args.root, folder, clips))
        return None
    official = _with_samples(official, args)
    return official, downloads.locate(args.root, official, args.videos)


def _find_kinetics(module: ModuleType, name: str, args: Arguments) -> Found:
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
    return official, module.locate_kinetics(args.root, official, args.videos)


def _find_ntu60(module: ModuleType, name: str, args: Arguments) -> Found:
    return module.read_ntu60(args.root, args.videos)  # its file names are its lists


def _find_images(module: ModuleType, name: str, args: Arguments) -> Found:
    from sce_video.data_tools.prepare.official import locate_images

    if name == "imagenet":
        official, folder = module.read_imagenet(args.root, args.imagenet100), args.root
    else:
        official = module.read_tiny_imagenet(args.root)
        folder = module.tiny_imagenet_folder(args.root)
    return official, locate_images(args.root, folder, official)


class DataSet(NamedTuple):
    """How a data set is prepared.

    Attributes:
        about: Its name, and the lists that are written.
        module: Below ``data_tools.prepare``; its ``SETS`` have the set.
        options: Of :data:`OPTIONS`.
        folders: PrepareOptions for other folders than the usual ones.
        find: Reads the lists and locates the files; None if there is nothing more to do.
    """

    about: str
    module: str
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("videos", "annotations")
    find: Callable[[ModuleType, str, Arguments], Found | None] = _find_clips


DATA_SETS: dict[str, DataSet] = {
    "kinetics": DataSet(
        "Kinetics-400, and Kinetics-200 from it: k400_{train,val}.txt, k200_{train,val}.txt",
        "kinetics",
        ("--test", "--k200", "--k200-classes", "--k200-ids"),
        find=_find_kinetics,
    ),
    "ucf101": DataSet(
        "UCF101: {train,test}_split{1,2,3}.txt", "actions", ("--samples train_split1.txt",)
    ),
    "hmdb51": DataSet("HMDB51: {train,test}_split{1,2,3}.txt", "actions"),
    "ssv2": DataSet("Something-Something V2: train.txt, val.txt", "actions"),
    "diving48": DataSet("Diving48: train.txt, test.txt", "actions"),
    "finegym": DataSet(
        "FineGym-99, clips cut by repack: {train,val}.txt, {train,val}_{fx_s1,ub_s1}.txt",
        "cut_clips",
        ("--samples train.txt", "--segments"),
        find=_find_cut_clips,
    ),
    "ntu60": DataSet(
        "NTU RGB+D, 60 actions: {train,test}_{subject,view}.txt",
        "actions",
        folders=("videos",),
        find=_find_ntu60,
    ),
    "epic_kitchens": DataSet(
        "EPIC-KITCHENS-100, clips cut by repack: {train,val}_{verb,noun,action}.txt",
        "cut_clips",
        ("--segments",),
        find=_find_cut_clips,
    ),
    "tiny_imagenet": DataSet(
        "Tiny-ImageNet: train.txt, val.txt", "imagenet", folders=(), find=_find_images
    ),
    "imagenet": DataSet(
        "ImageNet (ILSVRC2012), or 100 classes of it: imagenet_{train,val}.txt",
        "imagenet",
        ("--imagenet100",),
        folders=(),
        find=_find_images,
    ),
}
#: Prepared by functions of their own.
OTHERS = {
    "ava": "AVA v2.2: lists of key frames with boxes, actions and person detections",
    "toy_actions": "generated: short videos of 12 actions, to try everything with",
    "digits": "scikit-learn's handwritten digits as image files, to try images with",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "--test": dict(action="store_true", help="also prepare test.csv and test/"),
    "--k200": dict(
        action="store_true",
        help="also write lists of the 200 classes of Mini-Kinetics-200 (Xie et al. 2018)",
    ),
    "--k200-classes": dict(
        type=Path,
        metavar="FILE",
        help="use the classes of this file instead, one name per line (implies --k200)",
    ),
    "--k200-ids": dict(
        type=Path,
        nargs=2,
        metavar=("TRAIN", "VAL"),
        help="only the videos of these classes whose YouTube ids are listed, one per line: "
        "train_ytid_list.txt and val_ytid_list.txt of the authors of Mini-Kinetics-200",
    ),
    "--segments": dict(action="store_true", help="write segments.csv for repack, and no lists"),
    "--imagenet100": dict(
        action="store_true",
        help="write the lists of the 100 classes of ImageNet100, for train and val",
    ),
    "--frames": dict(type=Path, metavar="DIR", help="folder of frame folders, instead of videos"),
    "--detections": dict(
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="person detections of train and val: SlowFast's csv or mmaction2's pkl",
    ),
    "--no-detections": dict(
        action="store_true", help="use none: the lists cannot serve for testing"
    ),
    "--min-score": dict(
        type=float,
        default=0.9,
        metavar="SCORE",
        help="leave out detections with a lower score (default: %(default)s)",
    ),
    "--unannotated": dict(
        action="store_true",
        help="also list seconds of val with detections but no ground truth, as SlowFast does",
    ),
    "--skip-frameless": dict(
        action="store_true",
        help="leave out key frames outside of their video, instead of an error",
    ),
}
_AVA_OPTIONS = tuple(OPTIONS)[-6:]


def _parser(name: str, about: str, layout: str) -> Parser:
    """PrepareOptions that all sets of downloads share."""
    parser = Parser(
        f"{sys.argv[0]} {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"ROOT holds the unpacked official downloads:\n{layout}",
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder of the data set")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the lists here instead of ROOT; paths in them stay relative to ROOT",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that check files (default: all cores, of the cluster with --ray)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="check files on a Ray cluster: its address, or 'auto'"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a file that takes longer counts as unreadable (default: %(default)s)",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="only check that files exist, do not decode their first frame (images: all of it)",
    )
    parser.add_argument(
        "--keep-missing",
        action="store_true",
        help="keep missing and unreadable files in the lists",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 if a count differs from the published one",
    )
    parser.add_argument("--force", action="store_true", help="replace existing lists that differ")
    return parser


def _add_options(parser: Parser, names: Sequence[str], other_folders: Sequence[str]) -> None:
    if "videos" in other_folders:
        parser.add_argument("--videos", type=Path, metavar="DIR", help="folder of the videos")
    if "annotations" in other_folders:
        parser.add_argument(
            "--annotations", type=Path, metavar="DIR", help="folder of the official lists"
        )
    for name in names:
        option, _, list_name = name.partition(" ")
        if option == "--samples":
            parser.set_defaults(samples_of=list_name)
            parser.add_argument(
                "--samples",
                type=int,
                metavar="N",
                help=f"also write a list of about N videos of {list_name}, as many of every class",
            )
        else:
            parser.add_argument(option, **OPTIONS[option])


def _with_samples(official: Any, args: Arguments) -> Any:
    """The lists and, with ``--samples``, a smaller one, as SEVERE draws them."""
    from sce_video.data_tools.prepare.official import class_balanced

    if getattr(args, "samples", None) is None:
        return official
    split = next(split for split in official.splits if split.list_name == args.samples_of)
    return replace(official, splits=(*official.splits, class_balanced(split, args.samples)))


def _prepare_data_set(name: str, argv: Sequence[str]) -> int:
    data_set = DATA_SETS[name]
    module = importlib.import_module(f"sce_video.data_tools.prepare.{data_set.module}")
    parser = _parser(name, f"Prepare {data_set.about}.", module.SETS[name][0].layout)
    _add_options(parser, data_set.options, data_set.folders)
    args = parser.parse_args(argv)
    found = data_set.find(module, name, args)
    if found is None:
        return 0
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.data_tools.prepare.lists import prepare

    return _status(name, args, prepare(*found, _options_of(args)))


def _prepare_ava(argv: Sequence[str]) -> int:
    from sce_video.data_tools.prepare.ava import AvaOptions, prepare_ava
    from sce_video.data_tools.prepare.ava_files import LAYOUT

    parser = _parser("ava", f"Prepare {OTHERS['ava']}.", LAYOUT)
    _add_options(parser, _AVA_OPTIONS, ("videos", "annotations"))
    args = parser.parse_args(argv)
    options = AvaOptions(
        **vars(_options_of(args)),
        annotations=args.annotations,
        detections=tuple(args.detections),
        without_detections=args.no_detections,
        min_score=args.min_score,
        videos=args.videos,
        frames=args.frames,
        skip_frameless=args.skip_frameless,
        unannotated=args.unannotated,
    )
    return _status("ava", args, prepare_ava(options))


def _prepare_transfer_set(name: str, argv: Sequence[str]) -> int:
    from sce_video.data_tools.prepare.transfer_sets import TRANSFER_SETS, prepare_transfer_set

    about = f"Prepare {name} for transfer learning: lists/{{train,val,test}}.txt."
    args = _parser(name, about, TRANSFER_SETS[name].layout).parse_args(argv)
    return _status(name, args, prepare_transfer_set(name, _options_of(args)))


def _options_of(args: Arguments) -> Any:
    from sce_video.data_tools.prepare.lists import PrepareOptions

    return PrepareOptions(
        root=args.root,
        out=args.out,
        workers=args.workers,
        time_limit=args.time_limit,
        ray=args.ray,
        check=not args.no_check,
        keep_missing=args.keep_missing,
        force=args.force,
    )


def _status(name: str, args: Arguments, agrees: bool) -> int:
    """1 if, with ``--strict``, a count differs from the published one."""
    if not agrees:
        note = "" if args.strict else " (an error with --strict only)"
        print(
            f"{name}: counts differ from the published ones, see the table{note}", file=sys.stderr
        )
    return 1 if args.strict and not agrees else 0


def _write_toy_actions(argv: Sequence[str]) -> int:
    parser = Parser(
        f"{sys.argv[0]} toy_actions",
        description="Write ROOT/{train,val,test}/CLASS/NUMBER.mp4: labelled h264 files of "
        "generated actions. The same command resumes an interrupted one.",
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder to write to")
    for part, count in (("train", 480), ("val", 120), ("test", 240)):
        parser.add_argument(
            f"--{part}", type=int, default=count, help="videos of the part, 0 for none"
        )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels")
    parser.add_argument("--num-frames", type=int, default=60)
    parser.add_argument("--fps", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2, help="threads that render and encode")
    parser.add_argument(
        "--patterns",
        action="store_true",
        help="also write {train,val,test}_patterns.txt, lists with the pattern as the label, which "
        "a single frame shows",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace videos made with other parameters"
    )
    args = parser.parse_args(argv)
    from sce_video.data_tools.generated import CLASSES, generate_toy_actions, write_pattern_lists

    parts = {"train": args.train, "val": args.val, "test": args.test}
    start = time.monotonic()
    generate_toy_actions(
        args.root,
        {part: count for part, count in parts.items() if count != 0},
        args.seed,
        size=args.size,
        num_frames=args.num_frames,
        fps=args.fps,
        workers=args.workers,
        overwrite=args.overwrite,
    )
    if args.patterns:
        write_pattern_lists(args.root)
    count, seconds = sum(parts.values()), time.monotonic() - start
    print(f"{args.root}: {count} videos of {len(CLASSES)} classes ({seconds:.0f} s)")
    return 0


def _write_digits(argv: Sequence[str]) -> int:
    parser = Parser(
        f"{sys.argv[0]} digits",
        description="Write ROOT/{train,val,test}/{0,...,9}/NUMBER.png: 1,797 images of 8x8. No "
        "download: scikit-learn (extra 'transfer') holds them.",
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder to write to")
    args = parser.parse_args(argv)
    from sce_video.data_tools.generated import write_digits

    counts = write_digits(args.root)
    listed = ", ".join(f"{part} {count}" for part, count in counts.items())
    print(f"{args.root}: {sum(counts.values()):,} images of 10 classes ({listed})")
    return 0


#: The eleven sets of the paper's many-shot table.
TRANSFER_NAMES = (
    "food101", "cifar10", "cifar100", "sun397", "cars", "aircraft", "voc2007", "dtd", "pets",
    "caltech101", "flowers",
)  # fmt: skip


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare the set whose name comes first; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    known = {name: item.about for name, item in DATA_SETS.items()} | OTHERS
    if not words or words[0].startswith("-"):
        about = [f"  {name:<14}  {text}" for name, text in known.items()]
        about += [f"  {', '.join(TRANSFER_NAMES)}", f"{'':18}for transfer with images"]
        parser = Parser(
            usage=f"{sys.argv[0]} NAME ROOT [options]",
            description="\n".join([__doc__ or "", *about]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("NAME", help="of the data set")
        parser.parse_args(words)
    name, *rest = words
    if name in DATA_SETS:
        return _prepare_data_set(name, rest)
    if name in TRANSFER_NAMES:
        return _prepare_transfer_set(name, rest)
    others = {"ava": _prepare_ava, "toy_actions": _write_toy_actions, "digits": _write_digits}
    if name in others:
        return others[name](rest)
    near = difflib.get_close_matches(name, (*known, *TRANSFER_NAMES), 1)
    meant = f", meant {near[0]}?" if near else ""
    raise ValueError(f"no data set {name!r}{meant} (known: {', '.join((*known, *TRANSFER_NAMES))})")
