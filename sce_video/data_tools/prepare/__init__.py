"""``sce-video prepare``: annotation lists from the official downloads of datasets."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.options.data_commands import (
    TRANSFER_NAMES,
    DigitsOptions,
    PrepareOptions,
    ToyActionsOptions,
)

if TYPE_CHECKING:
    from sce_video.data_tools.prepare.official import OfficialLists


@dataclass(frozen=True)
class PrepareResult:
    """Result of a preparation.

    Attributes:
        agrees: Whether all counts agree with the published counts; None without counts.
        text: Summary of the written files for the terminal; empty if counts were printed.
    """

    agrees: bool | None
    text: str = ""


def prepare(options: PrepareOptions) -> PrepareResult:
    """Check the files of a dataset, print their counts, and write its lists.

    Raises:
        FileNotFoundError: If an official file is missing. The message shows the layout.
        ValueError: If an official file is malformed, or existing lists differ.
    """
    if options.name in TRANSFER_NAMES:
        from sce_video.data_tools.prepare.transfer_sets import prepare_transfer_set

        return PrepareResult(prepare_transfer_set(options))
    if options.name == "ava":
        from sce_video.data_tools.prepare.ava_lists import prepare_ava

        return PrepareResult(prepare_ava(options))
    # Import these modules here, so that --help does not load NumPy.
    from sce_video.data_tools.prepare import action_sets, cut_clips, imagenet, kinetics
    from sce_video.data_tools.prepare.lists import write_lists
    from sce_video.data_tools.prepare.official import locate_images

    name, root = options.name, Path(options.root)
    if name in cut_clips.SETS and options.segments:
        return PrepareResult(None, cut_clips.write_segments(options))
    if name == "kinetics":
        official = _read_kinetics(options)
        located = kinetics.locate_kinetics(root, official, options.videos)
    elif name == "ntu60":  # NTU60 defines its lists by file names
        official, located = action_sets.read_ntu60(root, options.videos)
    elif name == "imagenet":
        official = imagenet.read_imagenet(root, options.imagenet100)
        located = locate_images(root, root, official)
    elif name == "tiny_imagenet":
        official = imagenet.read_tiny_imagenet(root)
        located = locate_images(root, imagenet.tiny_imagenet_folder(root), official)
    else:
        downloads, read = {**action_sets.SETS, **cut_clips.SETS}[name]
        official = _with_samples(read(root, options.annotations), options)
        located = downloads.locate(root, official, options.videos)
    return PrepareResult(write_lists(official, located, options))


def layout(name: str) -> str:
    """Return the layout of the unpacked official downloads of a dataset."""
    from sce_video.data_tools.prepare import action_sets, ava_files, cut_clips, imagenet, kinetics

    if name in TRANSFER_NAMES:
        from sce_video.data_tools.prepare.transfer_sets import TRANSFER_SETS

        return TRANSFER_SETS[name].layout
    own = {"kinetics": kinetics.KINETICS, "ava": ava_files.AVA, "ntu60": action_sets.NTU60}
    own |= {"imagenet": imagenet.IMAGENET, "tiny_imagenet": imagenet.TINY_IMAGENET}
    own |= {key: value[0] for key, value in {**action_sets.SETS, **cut_clips.SETS}.items()}
    return own[name].layout


def _read_kinetics(options: PrepareOptions) -> OfficialLists:
    """Read the lists of Kinetics-400, and of the 200 classes if they are requested."""
    from sce_video.data_tools.prepare import kinetics

    parts = ("train", "val", "test") if options.test else ("train", "val")
    official = kinetics.read_kinetics400(Path(options.root), options.annotations, parts)
    if not options.k200 and options.k200_classes is None:
        return official
    names, ids = kinetics.K200_CLASSES, None
    if options.k200_classes is not None:
        known = official.class_maps[0].names
        names = kinetics.read_class_list(Path(options.k200_classes), known)
    if options.k200_ids:
        ids = dict(zip(("train", "val"), map(Path, options.k200_ids), strict=True))
    return kinetics.add_k200(official, names, ids)


def _with_samples(official: OfficialLists, options: PrepareOptions) -> OfficialLists:
    """Add the small training list of the SEVERE benchmark, if it is requested."""
    from sce_video.data_tools.prepare.official import class_balanced

    if options.samples is None:
        return official
    name = {"ucf101": "train_split1.txt", "finegym": "train.txt"}[options.name]
    large = next(split for split in official.splits if split.list_name == name)
    return replace(official, splits=(*official.splits, class_balanced(large, options.samples)))


def prepare_toy_actions(options: ToyActionsOptions) -> PrepareResult:
    """Generate labelled videos of simple actions.

    Raises:
        ValueError: If the folder contains videos that were made with different parameters.
    """
    from sce_video.data_tools.generated import CLASSES, generate_toy_actions, write_pattern_lists

    parts = {"train": options.train, "val": options.val, "test": options.test}
    root, start = Path(options.root), time.monotonic()
    generate_toy_actions(
        root,
        {part: count for part, count in parts.items() if count},
        options.seed,
        size=options.size,
        num_frames=options.num_frames,
        fps=options.fps,
        workers=options.workers,
        overwrite=options.overwrite,
    )
    if options.patterns:
        write_pattern_lists(root)
    count, seconds = sum(parts.values()), time.monotonic() - start
    return PrepareResult(
        None, f"{root}: {count} videos of {len(CLASSES)} classes ({seconds:.0f} s)"
    )


def prepare_digits(options: DigitsOptions) -> PrepareResult:
    """Write scikit-learn's handwritten digits as image files.

    Raises:
        MissingPackageError: If scikit-learn is not installed.
    """
    from sce_video.data_tools.generated import write_digits

    counts = write_digits(Path(options.root))
    listed = ", ".join(f"{part} {count}" for part, count in counts.items())
    text = f"{options.root}: {sum(counts.values()):,} images of 10 classes ({listed})"
    return PrepareResult(None, text)
