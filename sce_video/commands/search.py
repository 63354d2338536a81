"""Search a folder of videos by example: index it once, then query for similar videos.

    python tools/search.py index VIDEOS --checkpoint CKPT.pth --out INDEX
    python tools/search.py query VIDEO.mp4 --index INDEX -k 10
    python tools/search.py query --serve INDEX

No labels are needed. Running `index` again embeds only new and changed files; an interrupted run
resumes where it stopped. `query` prints a table and writes a gallery with frames and players,
INDEX/queries/VIDEO.html, and never over that of an earlier query. With `--serve` it opens a local
page to search and label the videos of the index.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

from sce_video.apis import EmbedOptions, load_model
from sce_video.apis.index import IndexReport, VideoIndex, build_index, read_index
from sce_video.apis.index_files import FEATURES
from sce_video.apis.search import (
    Match,
    check_checkpoint,
    model_of_index,
    query_feature,
    query_index,
    rows_of_file,
)
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.utils.atomic_file import write_json
from sce_video.utils.command import command
from sce_video.utils.printable import printable
from sce_video.utils.progress import Progress
from sce_video.visualization.figures import save_figure
from sce_video.visualization.gallery import draw_gallery, read_entry, write_gallery

_SHOWN_FAILURES = 20
#: Plain similarities above this pile up near 1.
_CLOSE = 0.95
#: Longest name of a page; file systems allow 255 bytes.
_STEM_BYTES = 200
_GALLERY_LIMIT = 100
_INDEX_HELP = "build or update the index of a folder"
_QUERY_HELP = "find the videos most similar to a given one"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Search a folder of videos by example.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_index_options(commands.add_parser("index", help=_INDEX_HELP))
    query = commands.add_parser("query", help=_QUERY_HELP)
    _add_query_options(query)
    args = parser.parse_args(argv)
    if args.command == "query":
        check_query_options(query, args)
    return args


def _add_index_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", help="folder of videos; sub-folders are read too")
    parser.add_argument(
        "--checkpoint",
        help="pretrained or finetuned checkpoint, or the folder of a run; an update needs none: "
        "the index names its own",
    )
    parser.add_argument("--out", required=True, help="folder of the index")
    parser.add_argument("--config", help="config file, if the checkpoint contains none")
    parser.add_argument(
        "--clips", type=int, help="clips per video (default: those of the index, else 4)"
    )
    parser.add_argument(
        "--crops", type=int, choices=(1, 3), help="crops per clip (default: likewise, else 1)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=min(8, len(os.sched_getaffinity(0))),
        help="decoding processes (default: one per core, at most 8)",
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="time limit for decoding a file, s"
    )
    parser.add_argument(
        "--max-views",
        type=int,
        default=32,
        help="largest batch of views (default: 32)",
    )
    parser.add_argument("--rebuild", action="store_true", help="discard the existing index")
    parser.add_argument(
        "--retry-failed", action="store_true", help="try unreadable files again, even if unchanged"
    )
    parser.add_argument("--device", help="cuda:1, cpu, ... (default: a GPU if there is one)")


def _add_query_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("video", nargs="?", help="a video, indexed or not")
    parser.add_argument("--index", help="folder of the index")
    parser.add_argument("-k", type=int, default=10, help="number of results (default: 10)")
    parser.add_argument("--checkpoint", help="current path of the checkpoint, if it has moved")
    parser.add_argument(
        "--config", help="config file, for a network registered by its custom_imports"
    )
    parser.add_argument(
        "--centred", action="store_true", help="subtract the mean feature of the index first"
    )
    parser.add_argument(
        "--include-self", action="store_true", help="list the query itself, if it is indexed"
    )
    parser.add_argument(
        "--html",
        help="gallery to write, over an existing file too (default: a new file in INDEX/queries)",
    )
    parser.add_argument("--no-html", action="store_true", help="write no gallery")
    parser.add_argument("--png", help="also write the gallery as an image")
    parser.add_argument("--json", help="also write the results as JSON")
    parser.add_argument("--device", help="cuda:1, cpu, ... (default: a GPU if there is one)")
    _add_serve_options(parser.add_argument_group("in a browser, instead of a VIDEO"))


def _add_serve_options(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--serve",
        nargs="?",
        const="",
        metavar="INDEX",
        help="open a page on this machine that searches and labels the videos of the index",
    )
    parser.add_argument("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-open", action="store_true", help="only print the link")
    parser.add_argument(
        "--labels",
        metavar="LIST",
        help="list of the labels given on the page (default: INDEX/labels.txt)",
    )


def check_query_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with an error unless there is either a video and an index, or an index to serve."""
    if args.serve is None:
        if args.video is None:
            parser.error("give a VIDEO, or --serve for a page in the browser")
        if args.index is None:
            parser.error("the following arguments are required: --index")
        return
    if args.video is not None:
        parser.error("give a VIDEO or --serve, not both: videos are dropped on the page")
    if args.serve and args.index and args.serve != args.index:
        parser.error(f"--serve {args.serve} and --index {args.index} are two indexes: give one")
    args.index = args.serve or args.index
    if args.index is None:
        parser.error("--serve needs the folder of an index: --serve INDEX")


def run_index(args: argparse.Namespace) -> None:
    """Build or update an index and print what was done."""
    stored = None
    if not args.rebuild and os.path.isfile(os.path.join(args.out, FEATURES)):
        stored = read_index(args.out)
    options = index_options(args, stored)
    if args.checkpoint is not None:
        model = load_model(newest_checkpoint(args.checkpoint), args.config, args.device)
    elif stored is not None:
        model = model_of_index(stored, None, args.config, args.device)
    else:
        raise ValueError(f"give --checkpoint: there is no index in {args.out} that names one")
    progress: Progress | None = None

    def show(done: int, total: int, reason: str) -> None:
        nonlocal progress
        if progress is None:
            progress = Progress(total, "embedding", unit="videos")
        progress.advance(failed=bool(reason))

    try:
        report = build_index(
            model,
            args.dir,
            args.out,
            options,
            rebuild=args.rebuild,
            retry_failed=args.retry_failed,
            on_video=show,
        )
    finally:
        if progress is not None:
            progress.finish()
    print(describe_report(report, args.out))


def index_options(args: argparse.Namespace, stored: VideoIndex | None) -> EmbedOptions:
    """The options of the command line, over the views of the existing index."""
    defaults = EmbedOptions() if stored is None else stored.options
    return EmbedOptions(
        num_clips=defaults.num_clips if args.clips is None else args.clips,
        num_crops=defaults.num_crops if args.crops is None else args.crops,
        max_views=args.max_views,
        num_workers=args.workers,
        timeout=args.timeout,
    )


def describe_report(report: IndexReport, out: str) -> str:
    """Text for the terminal: what a run did."""
    lines = [
        f"{out}: {report.videos} videos in the index, {len(report.failures)} unreadable files",
        f"  this run: {report.new} new, {report.changed} changed, {report.kept} kept, "
        f"{report.dropped} dropped",
    ]
    lines += [f"  {path}: {reason}" for path, reason in report.failures[:_SHOWN_FAILURES]]
    if len(report.failures) > _SHOWN_FAILURES:
        rest = len(report.failures) - _SHOWN_FAILURES
        lines.append(f"  and {rest} more, in {os.path.join(out, 'index.json')}")
    return "\n".join(map(printable, lines))


def run_query(args: argparse.Namespace) -> None:
    """Search, print the table, write JSON and galleries; or serve the page."""
    if args.serve is not None:
        run_serve(args)
        return
    index = read_index(args.index)
    if args.checkpoint is not None:
        if not os.path.isfile(args.checkpoint):
            raise FileNotFoundError(f"no checkpoint at {args.checkpoint}")
        check_checkpoint(index, args.checkpoint)

    feature = query_feature(
        index,
        args.video,
        lambda: model_of_index(index, args.checkpoint, args.config, args.device),
    )
    own = rows_of_file(index, args.video)
    matches = query_index(
        index,
        feature,
        args.k,
        leave_out=[] if args.include_self else own,
        centred=args.centred,
    )
    print(format_table(args.video, index, matches))
    note = remark(matches, args.centred)
    if note is not None:
        print(note)
    if args.json is not None:
        write_json(Path(args.json), describe_query(args, index, matches))
    _write_galleries(args, index, matches)


def run_serve(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    # Imported here: a query on the terminal needs no server.
    from sce_video.apis.search_server.serve import ServeOptions, can_open_browser, serve
    from sce_video.apis.search_server.state import Network

    network = Network(args.checkpoint, args.config, args.device)
    open_browser = can_open_browser() and not args.no_open
    serve(ServeOptions(args.index, network, args.labels, args.port, open_browser))


def format_table(video: str, index: VideoIndex, matches: list[Match]) -> str:
    """Rank, cosine similarity, distance and path."""
    lines = [
        f"{video}: the {len(matches)} most similar of {len(index)} videos in {index.root}",
        " rank  similarity  distance  path",
    ]
    lines += [f"{m.rank:5d}  {m.similarity:10.4f}  {m.distance:8.4f}  {m.path}" for m in matches]
    return "\n".join(map(printable, lines))


def describe_query(
    args: argparse.Namespace, index: VideoIndex, matches: list[Match]
) -> dict[str, object]:
    """The results as written to JSON."""
    return {
        "query": os.path.abspath(args.video),
        "index": os.path.abspath(args.index),
        "root": index.root,
        "checkpoint": index.checkpoint,
        "clips": index.settings["num_clips"],
        "crops": index.settings["num_crops"],
        "centred": args.centred,
        "videos": len(index),
        "results": [
            {"rank": m.rank, "similarity": m.similarity, "distance": m.distance, "path": m.path}
            for m in matches
        ],
    }


def new_page(index: str, video: str) -> str:
    """Path of a page that does not exist yet, named after the query: ``queries/walk.html``, then
    ``queries/walk-2.html``."""
    stem = os.fsdecode(os.fsencode(Path(video).stem)[:_STEM_BYTES])
    names = (f"{stem}{f'-{n}' if n > 1 else ''}.html" for n in itertools.count(1))
    pages = (os.path.join(index, "queries", name) for name in names)
    return next(page for page in pages if not os.path.lexists(page))


def remark(matches: list[Match], centred: bool) -> str | None:
    """Advice for similarities that differ in the last digits only."""
    if centred or not matches or matches[-1].similarity < _CLOSE:
        return None
    return (
        f"note: all of these similarities are above {_CLOSE}: compare the ranks, not the values; "
        "--centred spreads them out and may rank them in another order"
    )


def _write_galleries(args: argparse.Namespace, index: VideoIndex, matches: list[Match]) -> None:
    page = None if args.no_html else args.html or new_page(args.index, args.video)
    if page is None and args.png is None:
        return
    query = read_entry(args.video, args.video)
    shown = matches[:_GALLERY_LIMIT]
    results = [read_entry(m.path, m.file, m.rank, m.similarity) for m in shown]
    views = index.settings["num_clips"] * index.settings["num_crops"]
    note = (
        f"{len(index)} videos in {index.root}; cosine similarity, views per video: {views}"
        f"{', centred' if args.centred else ''}; {os.path.basename(index.checkpoint['path'])}"
    )
    if len(shown) < len(matches):
        note += f"; the first {len(shown)} of {len(matches)} results"
    if page is not None:
        write_gallery(page, query, results, note)
        print(printable(f"gallery: {page}"))
    if args.png is not None:
        save_figure(draw_gallery(query, results, note), args.png)
        print(printable(f"image: {args.png}"))


_INTERRUPTED = "interrupted; finished videos are saved, the same command resumes from here"


@command(interrupted=_INTERRUPTED)
def main(argv: list[str] | None = None) -> int:
    """Run `index` or `query`; returns the exit status."""
    args = parse_args(argv)
    run_index(args) if args.command == "index" else run_query(args)
    return 0


@command(interrupted=_INTERRUPTED)
def index_main(argv: list[str] | None = None) -> int:
    """The command `sce-video index`."""
    parser = argparse.ArgumentParser(description=_INDEX_HELP)
    _add_index_options(parser)
    run_index(parser.parse_args(argv))
    return 0


@command(interrupted=_INTERRUPTED)
def query_main(argv: list[str] | None = None) -> int:
    """The command `sce-video search`."""
    parser = argparse.ArgumentParser(description=_QUERY_HELP)
    _add_query_options(parser)
    args = parser.parse_args(argv)
    check_query_options(parser, args)
    run_query(args)
    return 0
