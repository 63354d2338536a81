"""Near-duplicates, outliers, clusters and a diverse subset of videos, before training on them.

    sce-video curate INDEX --out CURATED                           # of sce-video index
    sce-video curate features.npz --out CURATED                    # of sce-video embed
    sce-video curate VIDEOS --checkpoint RUN --out CURATED         # embeds them first
    sce-video curate INDEX --out CURATED --overwrite               # replaces earlier results

Writes lists that training reads (keep.txt, subset.txt, clusters.txt), removed.csv with the reason
of every removed video, report.json, and a page with examples, curation.html. Decisions on groups
that the page saves are respected by the next run (with --overwrite). No video is changed.
Exit status: 0 written, 1 written and some videos could not be compared, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.commands.arguments import command_line, number, output
from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.datasets.sources import is_table
from sce_video.jobs import usable_cores
from sce_video.options.declare import chosen
from sce_video.utils.command import command, printable, progress_bar, shown_failures

if TYPE_CHECKING:
    from sce_video.curation.curate import Curation

#: Of :mod:`sce_video.curation.curate`, whose import takes seconds.
FRAMES, FEATURES, NONE = "frames", "features", "none"
THRESHOLDS = {FRAMES: 0.97, FEATURES: 0.99}
#: Of :mod:`sce_video.curation.edited_copies`.
EDITS = ("mirrored", "parts", "speed", "short", "late")
#: Of :mod:`sce_video.curation.near_duplicates`.
PREFERENCES = ("length", "resolution", "bitrate")

_INDEX, _PAGE, _DECISIONS = "index", "curation.html", "decisions.csv"
_RECIPE = "sce_r3d18_folder_small"  # that trains on the list


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; an error for options or paths that cannot be meant."""
    parser, add = command_line(
        "Find near-duplicates, outliers, clusters and a diverse subset of videos."
    )
    add("source", "index, feature file (.npz), table with features; with --checkpoint: videos")
    add("--out", "folder of the lists, the report and the page", output(str), required=True)
    add("--keep LIST", "list to keep (default: OUT/keep.txt)")
    add("--checkpoint", "embed the videos first, into OUT/index: a run, or its checkpoint")
    add.shared("--config", "--device", "--labels", "--all-files")
    add("--column NAME", "of features, if the table has several")
    add("--classes FILE", "names of its labels, one per line")
    kinds = (FRAMES, FEATURES, NONE)
    by = "found by frames (default), by features alone (no video is opened), or not at all (none)"
    add("--duplicates", by, choices=kinds, default=FRAMES)
    limits = ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
    add("--similarity X", f"least of near-duplicates ({limits})", number(float, above=0, most=1))
    edited = (
        "edited copies too: mirrored; parts (crops to 40 %%, pictures in pictures); speed (0.8 to "
        "1.25); short (a shared stretch); late (after the first minute); or all"
    )
    add("--copies", edited, nargs="+", choices=(*EDITS, "all"), default=[])
    prefer = "which video of a group stays (default: length, then resolution, then bitrate)"
    add("--prefer", prefer, nargs="+", choices=PREFERENCES, default=PREFERENCES)
    intros = "a part of more than N videos is an intro, or credits, and no copy (default: 10)"
    add("--intros N", intros, number(int, 1), default=10)
    decisions = f"of an earlier page, respected (default: OUT/{_DECISIONS}, if there is one)"
    add("--decisions FILE", decisions)
    motion = "remove frozen videos, and those below this quantile of motion (default: 0.05)"
    add("--motion Q", motion, number(float, 0, most=0.99), nargs="?", const=0.05)
    add("--neighbours K", "compared with each video (default: 20)", number(int, 1), default=20)
    add("--drop-outliers", "leave outliers out of the list to keep", bool)
    add("--subset K", "list the K most diverse videos", number(int, 0), default=0)
    add("--clusters K", "default: 20", number(int, 1), default=20)
    add("--seed", "of the clusters", number(int, 0), default=0)
    workers = "processes that decode and compare; 0: none besides this one (default: all cores)"
    add("--workers", workers, number(int, 0), default=usable_cores())
    add("--no-page", "do not write the page", bool)
    add("--overwrite", "replace the results of an earlier curation in OUT", bool)
    args = parser.parse_args(argv)
    if "all" in args.copies:
        args.copies = EDITS
    _check(args)
    return args


def _check(args: argparse.Namespace) -> None:
    if args.similarity is not None and args.duplicates == NONE:
        raise ValueError("similarity is that of near-duplicates, which are not searched")
    if args.copies and args.duplicates != FRAMES:
        raise ValueError("copies are found by frames: leave out --duplicates, or --copies")
    if args.classes is not None and args.labels is None:
        raise ValueError("names of classes are those of a list of labels: give it too (--labels)")
    check_exists(args.labels, "file")
    check_exists(args.decisions, "file")
    check_exists(args.classes, "file")
    has_index = any(Path(args.source, name).exists() for name in ("features.npz", "features.lance"))
    folder = os.path.isdir(args.source) and not is_table(args.source)
    if args.checkpoint is None:
        if folder and not has_index:
            raise ValueError(
                f"{args.source} is no index: give the folder of sce-video index, or, to embed the "
                "videos in it, a network (--checkpoint RUN)"
            )
        check_exists(args.source, "index, feature file or table")
        return
    if args.column is not None:
        raise ValueError("--column names features that exist, --checkpoint makes new ones")
    if folder and has_index:
        raise ValueError(f"{args.source} is an index, which has features: leave out --checkpoint")
    check_videos(args.source)
    check_run(args.checkpoint)


@command(interrupted="interrupted; nothing was written but what a next run uses")
def main(argv: Sequence[str] | None = None) -> int:
    """Curate; returns the exit status."""
    args = parse_args(argv)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.curation.curate import CurateOptions, curate, read_decisions
    from sce_video.curation.write import check_curated_folder, write_curation, write_curation_page
    from sce_video.find.stored_features import read_videos

    check_curated_folder(args.out, args.keep, args.overwrite)
    options = chosen(CurateOptions, args)
    out, source = Path(args.out), args.source
    file = args.decisions or out / _DECISIONS
    decisions = read_decisions(file) if os.path.exists(file) else None
    if args.checkpoint is not None:
        source = _embed(args, out / _INDEX)
    videos = read_videos(source, args.labels, args.classes, args.column)
    # After the reading: a wrong source leaves no folder behind.
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        bars: dict[str, Callable[[int, bool], None]] = {}

        def count(what: str, total: int, failed: bool) -> None:
            if what not in bars:
                stack.close()  # finishes the bar before
                bars[what] = stack.enter_context(progress_bar(what))
            bars[what](total, failed)

        found = curate(videos, options, decisions=decisions, folder=out, on_video=count)
    report = write_curation(found, out, args.keep, args.overwrite)
    if not args.no_page:
        write_curation_page(out / _PAGE, found, report)
    print(describe(found, report, out, not args.no_page))
    return 1 if found.duplicates.unread else 0


def _embed(args: argparse.Namespace, folder: Path) -> str:
    """Embed a folder of videos; returns the folder of the index."""
    from sce_video.find.index import build_index
    from sce_video.inference.embed import EmbedOptions
    from sce_video.inference.model import load_model

    model = load_model(args.checkpoint, args.config, args.device)
    with progress_bar("embedding") as count:
        build_index(
            *(model, args.source, str(folder), EmbedOptions(num_workers=args.workers)),
            on_video=lambda done, total, reason: count(total, bool(reason)),
        )
    return str(folder)


def describe(found: Curation, report: dict, out: Path, page: bool) -> str:
    """Text for the terminal: what was found and where it is."""
    counts = report["counts"]
    lines = [
        f"{counts['videos']} videos: {counts['kept']} kept, {counts['removed']} removed",
        f"  {counts['near_duplicates']} near-duplicates in {counts['groups']} groups, of "
        f"{counts['compared_pairs']} compared pairs; kept of a group: {report['kept_of_a_group']}",
        f"  {counts['outliers']} outliers"
        + (" removed" if found.options.drop_outliers else " (kept; --drop-outliers removes them)"),
        f"  {counts['undecodable']} could not be decoded",
    ]
    if counts["shared_parts"]:
        lines.insert(
            2, f"  {counts['shared_parts']} shared parts (intros, credits), which make no copies"
        )
    if found.motion is not None:
        lines.append(
            f"  {counts['little_motion']} removed for little motion: below "
            f"{found.motion.limit:.3f} grey levels, or frozen"
        )
    if found.duplicates.unread:
        lines.append(f"  {counts['not_compared']} could not be compared, and are kept:")
        problems = [(entry["path"], entry["reason"]) for entry in report["not_compared"]]
        lines += ["  " + line for line in shown_failures(problems, ", in report.json")]
    lines += [f"  {note}" for note in report["notes"]]
    lines += [f"{name}: {file}" for name, file in report["lists"].items()]
    lines += [f"why removed: {out / 'removed.csv'}", f"report: {out / 'report.json'}"]
    if page:
        decide = " (decide on groups there)" if found.duplicates.groups else ""
        lines.append(f"page: {out / _PAGE}{decide}")
    data = ("--data-root", str(found.videos.root or "/"), "--train-list", report["lists"]["keep"])
    lines.append(f"next: sce-video train {_RECIPE} {shlex.join(data)}")
    return "\n".join(map(printable, lines))
