"""Search the videos of an index by examples, by words, or on a page in the browser.

    sce-video search VIDEO.mp4 --index INDEX -k 10
    sce-video search IMAGE.jpg VIDEO.mp4 --not OTHER.mp4 --text WORDS --index INDEX
    sce-video search --more-like LABEL --where "camera = 'north'" --index INDEX
    sce-video search --serve INDEX

No labels are needed. Prints a table and writes a gallery with frames and players,
INDEX/queries/VIDEO.html, and never over that of an earlier query. With `--serve` it opens a local
page to search and label the videos of the index.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sce_video.commands.arguments import command_line, number
from sce_video.datasets.clip_sampling import format_moment
from sce_video.datasets.named_files import check_exists, check_index, check_run
from sce_video.datasets.sources import Query, is_table_folder, parse_query
from sce_video.find.columns import check_condition
from sce_video.find.label_list import LabelList, label_file
from sce_video.utils.command import command, printable, rare_collections, shown_failures
from sce_video.utils.files import write_json
from sce_video.utils.storage import absolute, exists

if TYPE_CHECKING:
    from sce_video.datasets.sources import Query
    from sce_video.find.query import Match, SearchQuery
    from sce_video.find.store import VideoIndex

#: Of :mod:`sce_video.find.search`, whose import takes seconds.
MOST_REFINED = 5
#: Plain similarities above this pile up near 1.
_CLOSE = 0.95
#: Longest name of a page; file systems allow 255 bytes.
_STEM_BYTES = 200
_GALLERY_LIMIT = 100


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends with an error unless there is a query, or an index to serve."""
    parser, add = command_line("find the videos most similar to examples, or to words")
    video = "video or image, indexed or not; also a URL, a row of a table, or a moment, "
    add("video", f"{video}a.mp4@12.5-17; several are searched for together", nargs="*")
    add("--not VIDEO", "what results should not be like", nargs="+", default=[], dest="unlike")
    text = "what results show, alone or with examples; needs a video-text model (X-CLIP, CLIP)"
    add("--text WORDS", text)
    label = "further examples: the videos with this label; those with others are not liked"
    add("--more-like LABEL", label)
    add(
        "--weights",
        "of all examples, of all that are not liked, and of the text (default: 0.75 0.15 1)",
        number(float, 0),
        nargs=3,
        metavar=("LIKE", "NOT", "TEXT"),
        default=[0.75, 0.15, 1.0],
    )
    add("--index", "folder of the index, or a table of videos with a column of features")
    add("--column", "of a table with several columns of features")
    where = (
        "only videos for which this holds, in SQL: \"camera = 'north' and date >= '2026-01-01'\""
    )
    add("--where CONDITION", where)
    columns = "file with a header, path and other columns (default: INDEX/columns.csv, if there)"
    add("--columns CSV", columns)
    add("-k", "number of results (default: 10)", number(int, 1), default=10)
    add("--checkpoint", "current path of the checkpoint, if it has moved")
    add("--config", "config file, for a network registered by its custom_imports")
    ranking = add.exclusive()
    ranking("--centred", "subtract the mean feature of the index first", bool)
    ranking("--plain", "rank by the features as they are; windows are whitened otherwise", bool)
    add("--exact", "compare all videos, also with a vector index", bool)
    refine = "of windows: also embed those around the best moments, a quarter of the stride apart"
    add("--refine", refine, bool)
    moments = f"moments to refine (default: {MOST_REFINED}); with a longer stride more are worth it"
    add("--refine-moments N", moments, number(int, 1))
    add("--include-self", "list the query itself, if it is indexed", bool)
    html = "gallery to write, over an existing file too (default: a new file in INDEX/queries)"
    add("--html", html)
    add("--no-html", "write no gallery", bool)
    add("--json", "also write the results as JSON")
    add("--clips DIR", "of windows: write the moments found as files, exact to the frame")
    add("--fast", "with --clips: cut at key frames, without re-encoding", bool)
    add.shared("--device")
    page = add.group("in a browser, instead of a VIDEO")
    page("--serve INDEX", "a page that searches and labels its videos", nargs="?", const="")
    page("--port", "of the page (default: a free one)", number(int, 0, most=65535), default=0)
    page("--no-open", "only print the link", bool)
    page("--writable", "let programs with the token write labels, too (docs/search.md)", bool)
    page("--labels LIST", "labels given on the page, or of --more-like (default: INDEX/labels.txt)")
    args = parser.parse_args(argv)
    if problem := _what_is_wrong(args):
        parser.error(problem)
    if args.fast and args.clips is None:
        raise ValueError("--fast is how --clips cuts: give --clips DIR")
    if args.clips is not None and args.serve is not None:
        raise ValueError("--clips is for a query on the command line: the page has a button")
    # `--serve INDEX` and `--serve --index INDEX` are the same.
    args.index = args.serve or args.index
    args.refine_moments = args.refine_moments or (MOST_REFINED if args.refine else 0)
    return args


def _what_is_wrong(args: argparse.Namespace) -> str:
    """What contradicts itself or is missing; empty if nothing."""
    query = bool(args.video) or args.text is not None or args.more_like is not None
    if args.serve is None:
        if not query:
            found = "--not alone" if args.unlike else "nothing"
            return (
                f"{found} to search for: give a VIDEO, an image, --text or --more-like, or --serve "
                "for a page in the browser"
            )
        if args.index is None:
            if args.text is not None and not args.unlike and len(args.video) < 2:
                index = shlex.quote(args.video[0]) if args.video else "INDEX"
                return f"--text takes the index as a video does: --text WORDS --index {index}"
            return "the following arguments are required: --index"
        if args.html is not None and not args.video:
            return "--html shows the frames of a query's videos; here are none: give --json"
        return ""
    if query or args.unlike or args.where is not None:
        return "give a query or --serve, not both: videos are dropped on the page"
    if args.refine or args.refine_moments:
        return "--refine is for a query on the command line, not for --serve"
    if args.serve and args.index and args.serve != args.index:
        return f"--serve {args.serve} and --index {args.index} are two indexes: give one"
    return "--serve needs the folder of an index: --serve INDEX" * (not (args.serve or args.index))


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Search, print the table, write JSON and the gallery; or serve the page."""
    args = parse_args(argv)
    check_index(args.index)
    check_exists(args.columns, "file of columns")
    if args.checkpoint is not None:
        check_run(args.checkpoint)
    if args.serve is not None:
        return _serve(args)
    examples = _checked_query(args)
    with rare_collections():
        return _search(args, examples)


def _search(args: argparse.Namespace, examples: list[list[Query]]) -> int:
    """Search, print the table, write JSON and the gallery."""
    # Imported here, as in all commands: a wrong command line must not wait for them.
    from sce_video.find.query import SearchQuery, Weights, searches_approximately
    from sce_video.find.reading import read_index
    from sce_video.find.search import search

    like, unlike, text = args.weights
    weights = Weights(text=text, like=like, unlike=unlike)
    query = SearchQuery(examples[0], examples[1], args.text, args.more_like, weights)
    index = read_index(args.index, args.column)
    if args.clips is not None and index.windows is None:
        raise ValueError(
            f"the index {args.index} is one of whole videos, which are files: --clips cuts moments "
            "out (sce-video index --windows 5s)"
        )
    if args.checkpoint is not None:
        from sce_video.inference.model import checkpoint_of

        args.checkpoint = checkpoint_of(args.checkpoint)
        if not exists(args.checkpoint):
            raise FileNotFoundError(f"no checkpoint at {args.checkpoint}")
    # Features of a text are distributed otherwise than those of videos.
    whitened = index.whitens and args.text is None and not args.plain and not args.centred
    names = "columns", "labels", "checkpoint", "config", "device", "include_self", "centred"
    matches = search(
        *(index, query, args.k),
        **{name: getattr(args, name) for name in names},
        where=args.where or "",
        exact=args.exact,
        whitened=whitened,
        refine=args.refine_moments,
        on_failure=lambda path, reason: print(printable(f"not refined: {path}: {reason}")),
    )
    where = f"; where {args.where}" if args.where else ""
    print(format_matches(describe_query(query) + where, index, matches))
    approximate = not args.exact and searches_approximately(index, args.centred)
    if approximate:
        print("note: found by a vector index, which may miss some; --exact compares all videos")
    if not (args.centred or whitened) and matches and matches[-1].similarity >= _CLOSE:
        print(
            f"note: all of these similarities are above {_CLOSE}: compare the ranks, not the "
            "values; --centred spreads them out and may rank them in another order"
        )
    if args.json is not None:
        how = {"centred": args.centred, "whitened": whitened}
        how |= {"refined": args.refine_moments > 0, "approximate": approximate}
        how |= {"where": args.where or ""}
        write_json(args.json, _search_as_json(args, query, index, how, matches))
    if query.like and not args.no_html:
        _write_gallery(args, query, index, matches, whitened)
    if args.clips is not None:
        _write_clips(args, matches)
    return 0


def _write_clips(args: argparse.Namespace, matches: Sequence[Match]) -> None:
    """Write the moments found as files into ``--clips``, and say how many, and which not.

    A moment that cannot be cut (a file that is gone) does not stop the others.
    """
    from sce_video.inference.clips import write_clips

    written, failures = write_clips(args.clips, ((m.file, *m.span) for m in matches), args.fast)
    lines = [f"clips: {len(written)} in {args.clips}", *shown_failures(failures)]
    print("\n".join(map(printable, lines)))


def _checked_query(args: argparse.Namespace) -> list[list[Query]]:
    """Examples and counter-examples; ValueError or FileNotFoundError for a part that is wrong."""
    check_exists(args.labels, "list")
    examples = [[parse_query(video) for video in videos] for videos in (args.video, args.unlike)]
    for video in (*examples[0], *examples[1]):
        check_exists(video.video, "video")
        if os.path.isdir(video.video):
            raise ValueError(f"{video.video} is a folder: a query is a video, an image, a.mp4@2-4")
    if args.more_like is not None:
        LabelList(label_file(args.index, args.labels)).number(args.more_like)
    if args.where is not None:
        check_condition(args.index, args.columns, args.where)
    return examples


def _serve(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    if is_table_folder(args.index):
        raise ValueError(
            f"{args.index} is a table of videos: the page needs the folder of an index, where it "
            "keeps labels (sce-video index TABLE --out INDEX)"
        )
    from sce_video.find.search_page import PageFiles, serve
    from sce_video.find.search_state import Network
    from sce_video.inference.model import checkpoint_of

    checkpoint = None if args.checkpoint is None else checkpoint_of(args.checkpoint)
    network = Network(checkpoint, args.config, args.device)
    own = PageFiles(args.labels, args.columns)
    serve(args.index, network, own, args.port, not args.no_open, args.writable)
    return 0


def describe_query(query: SearchQuery) -> str:
    """What is searched for; of several parts with their weights."""
    weights, label = query.weights, query.label
    parts = [
        ([_shown(q) for q in query.like], "", weights.like),
        ([f"the label {label!r}"] * (label is not None), "", weights.like),
        ([repr(query.text)] * (query.text is not None), "", weights.text),
        ([_shown(q) for q in query.unlike], "not ", weights.unlike),
        (["other labels"] * (label is not None), "not ", weights.unlike),
    ]
    given = [(names, sign, weight) for names, sign, weight in parts if names]
    if len(given) == 1:
        return ", ".join(given[0][0])
    return "; ".join(f"{sign}{', '.join(names)} ({weight:g})" for names, sign, weight in given)


def _shown(query: Query) -> str:
    moment = "" if query.start is None else f"@{query.start:g}-{query.end:g}"
    return f"{query.video}{moment}"


def format_matches(video: str, index: VideoIndex, matches: list[Match]) -> str:
    """Rank, cosine similarity, distance and path."""
    what = "videos" if index.windows is None else "windows"
    moments = "" if index.windows is None else f"{'moment':>19}  "
    lines = [
        f"{video}: the {len(matches)} most similar of {len(index)} {what} in {index.root}",
        f" rank  similarity  distance  {moments}path",
    ]
    for m in matches:
        moment = "" if m.start is None or m.end is None else format_moment(m.start, m.end)
        moment = f"{moment:>19}  " if moments else ""
        lines.append(f"{m.rank:5d}  {m.similarity:10.4f}  {m.distance:8.4f}  {moment}{m.path}")
    return "\n".join(map(printable, lines))


def _search_as_json(
    args: argparse.Namespace,
    query: SearchQuery,
    index: VideoIndex,
    how: dict[str, Any],
    matches: list[Match],
) -> dict[str, object]:
    """Query, index, settings and results."""
    asked: dict[str, Any] = {
        name: [{**asdict(q), "video": absolute(q.video)} for q in part]
        for name, part in (("like", query.like), ("not", query.unlike))
    }
    asked |= {"text": query.text, "label": query.label, "weights": asdict(query.weights)}
    names = ("rank", "similarity", "distance", "path")
    moment = ("start", "end")
    results = [
        {n: getattr(m, n) for n in (*names, *(() if m.start is None else moment))} for m in matches
    ]
    return {
        **asked,
        "index": os.path.abspath(args.index),
        "root": index.root,
        "checkpoint": index.checkpoint,
        "pool": index.settings["model"]["backbone"].get("pool"),
        "clips": index.settings["num_clips"],
        "crops": index.settings["num_crops"],
        **how,
        **({} if index.windows is None else {"windows": index.windows.to_dict()}),
        "videos" if index.windows is None else "rows": len(index),
        "results": results,
    }


def new_page(index: str, video: str) -> str:
    """A page that does not exist yet: ``queries/walk.html``, then ``queries/walk-2.html``.

    It is named after the query, in the folder of the index; for a table of videos in this folder.
    """
    table = f"{os.path.basename(index.rstrip('/'))}.queries"
    folder = table if is_table_folder(index) else os.path.join(index, "queries")
    stem = os.path.join(folder, os.fsdecode(os.fsencode(Path(video).stem)[:_STEM_BYTES]))
    pages = (f"{stem}{f'-{n}' if n > 1 else ''}.html" for n in itertools.count(1))
    return next(page for page in pages if not os.path.lexists(page))


def _write_gallery(
    args: argparse.Namespace,
    query: SearchQuery,
    index: VideoIndex,
    matches: list[Match],
    whitened: bool,
) -> None:
    """Write the page of the first matches."""
    from sce_video.pages.gallery import read_entry, write_gallery

    page = args.html or new_page(args.index, query.like[0].video)
    shown = matches[:_GALLERY_LIMIT]
    like, unlike = (
        [read_entry(q.video, q.video, start=q.start, end=q.end) for q in part[:_GALLERY_LIMIT]]
        for part in (query.like, query.unlike)
    )
    results = [
        read_entry(m.path, m.file, m.rank, m.similarity, start=m.start, end=m.end) for m in shown
    ]
    views = index.settings["num_clips"] * index.settings["num_crops"]
    note = (
        f"{len(index)} {'videos' if index.windows is None else index.windows} in {index.root}; "
        f"cosine similarity, views each: {views}"
        f"{', centred' if args.centred else ''}{', whitened' if whitened else ''}; "
        f"{os.path.basename(index.checkpoint['path'])}"
    )
    if len(shown) < len(matches):
        note += f"; the first {len(shown)} of {len(matches)} results"
    if len(query.like) + len(query.unlike) > 1 or query.text is not None or query.label is not None:
        note = f"{describe_query(query)}; {note}"
    if args.where:
        note += f"; where {args.where}"
    write_gallery(page, like, results, note, unlike)
    print(printable(f"gallery: {page}"))
