"""Where a network looks: the cells of its features that speak for a class, or resemble a frame.

    sce-video look CHECKPOINT VIDEO ... --out look.png
    sce-video look RUN --query A.mp4 --key B.mp4 --out look.html

The first needs a finetuned classifier: class-activation maps of the predicted class, or of --class,
for the frames of each video. The second takes any network: the cosine similarity of the cells of
one frame of the query to every cell of the key. Images are videos of one frame.
Exit status: 0 drawn, 1 some files could not be decoded, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.commands.arguments import command_line, number, output
from sce_video.datasets.named_files import check_exists, check_run, class_names_of
from sce_video.utils.command import command, printable

if TYPE_CHECKING:
    from sce_video.pages.cell_map_strip import MapStrip

#: Of :mod:`sce_video.inference.cell_maps`, whose import takes seconds.
MEAN, BEST = "mean", "best"

_FORMATS = (".png", ".html")


def _cell(text: str) -> str | tuple[int, int]:
    """``mean``, ``best``, or row and column of ``2,3``."""
    if text in (MEAN, BEST):
        return text
    matched = re.fullmatch(r"(\d{1,4}),(\d{1,4})", text)
    if matched is None:
        raise argparse.ArgumentTypeError(
            f"must be {MEAN}, {BEST} or a row and a column as 2,3: got {text!r}"
        )
    return int(matched[1]), int(matched[2])


def _limits(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        message = f"must be LOW,HIGH, for example 0,1: got {text!r}"
        raise argparse.ArgumentTypeError(message) from None
    return low, high


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ValueError for options that do not belong together."""
    parser, add = command_line(
        "Where a network looks: which cells of the frames speak for a class, or "
        "resemble a frame of another video."
    )
    add("checkpoint", "checkpoint, or folder of a run (its newest one)")
    add("videos", "videos or images to explain the class of", nargs="*")
    add("--query FILE", "video or image whose frame is searched")
    add("--key FILE", "video or image in which it is searched")
    add("--out", "look.png or look.html", output(Path), required=True)
    add("--class NAME", "default: the predicted", dest="class_name")
    add("--frame", "frame of the query's clip (default: the middle)", number(int, 0))
    add(
        "--cell Y,X",
        f"row and column of a cell of that frame; {MEAN}: the mean of all (default); {BEST}: "
        "all, of which the most similar counts",
        _cell,
        default=MEAN,
    )
    add("--clips", "clips of each video or of the key (default: the centre one)", number(int, 1))
    add("--at S", "second of the clip (of the query)", number(float, 0))
    add("--size", "pixels of the frames (default: those of the test)", number(int, 1))
    add("--frames", "frames shown of a clip (default: 8)", number(int, 1), default=8)
    add("--scale LOW,HIGH", "values of the darkest and the brightest colour", _limits)
    add("--classes FILE", "class names, if the checkpoint has none")
    add.shared("--config", "--device")
    args = parser.parse_args(argv)
    if args.out.suffix.lower() not in _FORMATS:
        raise ValueError(f"--out must end in {' or '.join(_FORMATS)}, got {str(args.out)!r}")
    if (args.query is None) != (args.key is None):
        raise ValueError("--query and --key belong together: give both, or videos without them")
    if args.query is not None:
        given = {"videos": args.videos, "--class": args.class_name, "--classes": args.classes}
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} explain a class: leave out --query and --key")
    elif not args.videos:
        raise ValueError(
            "give videos to explain the class of, or --query FILE --key FILE to compare two"
        )
    elif args.frame is not None or args.cell != MEAN:
        raise ValueError("--frame and --cell are of a query: give --query FILE --key FILE")
    elif args.at is not None and args.clips is not None:
        raise ValueError("--at chooses one clip: leave out --clips")
    return args


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Draw the maps; returns the exit status."""
    args = parse_args(argv)
    check_run(args.checkpoint)
    for path in (*args.videos, args.query, args.key):
        check_exists(path, "video or image")
    check_exists(args.classes, "file of class names")
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.pages.cell_map_strip import Scale, common_scale, write_maps

    failures: list[tuple[str, str]] = []
    if args.query is None:
        strips, quantity, grid, title = _look_for_class(args, failures)
    else:
        strips, quantity, grid, title = _look_for_frame(args)
    # One scale for all strips, so that colours can be compared.
    if args.scale is None:
        scale = common_scale([s.maps for s in strips if s.maps is not None], quantity)
    else:
        low, high = args.scale
        scale = Scale(low, high, quantity)
    note = f"{grid}; colours from {scale.low:.3g} to {scale.high:.3g}, the same for all frames"
    write_maps(args.out, strips, scale, title, note)
    lines = [f"{strip.name}: {strip.note}" for strip in strips]
    lines += [grid, *(f"left out: {path}: {reason}" for path, reason in failures)]
    print("\n".join(map(printable, [*lines, f"written: {args.out}"])))
    return 1 if failures else 0


def _look_for_class(
    args: argparse.Namespace, failures: list[tuple[str, str]]
) -> tuple[list[MapStrip], str, str, str]:
    """Strips, the quantity of their maps, the grid and the title, for a classifier."""
    from sce_video.datasets.readers.base import VideoDecodeError
    from sce_video.inference.cell_maps import class_activation
    from sce_video.inference.classifier import NoClassifierError, load_classifier
    from sce_video.pages.cell_map_strip import activation_strips, describe_grid

    try:
        names = class_names_of(args.classes)
        classifier = load_classifier(args.checkpoint, args.config, args.device, names)
    except NoClassifierError as error:
        raise ValueError(
            f"{error}; or compare two videos with it: sce-video look {args.checkpoint} --query "
            "FILE --key FILE"
        ) from None
    strips, grid, shown = [], "", []
    # A network of images sees one frame of a clip: several clips show the video.
    one_frame = classifier.settings.num_frames == 1 and args.at is None
    clips = args.clips or (args.frames if one_frame else 1)
    for path in args.videos:
        try:
            found = class_activation(classifier, path, args.class_name, clips, args.at, args.size)
        except VideoDecodeError as error:
            failures.append((path, error.reason))
            continue
        strips += activation_strips(classifier, found, args.frames)
        grid = describe_grid(found.clips[0], found.maps[0].shape)
        shown.append(classifier.classes[found.label])
    if not strips:
        raise ValueError("none of the files can be decoded: " + "; ".join(map(": ".join, failures)))
    title = f"What speaks for {', '.join(dict.fromkeys(shown))}"
    return strips, "added to the score", grid, title


def _look_for_frame(args: argparse.Namespace) -> tuple[list[MapStrip], str, str, str]:
    """The same for a query and a key."""
    from sce_video.inference.cell_maps import cell_similarity
    from sce_video.inference.model import load_model
    from sce_video.pages.cell_map_strip import describe_grid, similarity_strips

    model = load_model(args.checkpoint, args.config, args.device)
    clips = args.clips or (args.frames if model.settings.num_frames == 1 else 1)
    found = cell_similarity(
        *(model, args.query, args.key, args.frame, args.cell),
        num_clips=clips,
        at=args.at,
        size=args.size,
    )
    grid = describe_grid(found.keys[0], found.maps[0].shape)
    strips = similarity_strips(found, args.frames)
    return strips, "cosine similarity", grid, "What resembles the marked frame"
