"""``sce-video search``, which finds videos in an index that resemble examples, text or a label."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sce_video.datasets.named_files import check_exists, check_index, check_run
from sce_video.datasets.sources import is_table_folder, parse_query
from sce_video.find.columns import columns_of_index
from sce_video.find.examples import (
    Examples,
    examples_of_label,
    join_examples,
    read_example,
)
from sce_video.find.index_network import IndexNetwork, checkpoint_of_index, model_of_index
from sce_video.find.label_list import LabelList, label_file
from sce_video.find.query import Match, SearchQuery, Weights, query_index, searches_approximately
from sce_video.find.reading import read_index
from sce_video.find.refined_moments import refine_moments, windows_near
from sce_video.find.store import VideoIndex
from sce_video.options.search import SearchOptions
from sce_video.utils.command import rare_collections
from sce_video.utils.files import write_json
from sce_video.utils.storage import absolute

# Import this only to embed a file, because a search for an indexed video needs only NumPy.
if TYPE_CHECKING:
    from sce_video.inference.model import VideoModel

#: Longest name of a page in bytes. File systems allow 255, including the number and the suffix.
_STEM_BYTES = 200
#: Largest number of results shown in a gallery
_GALLERY_LIMIT = 100


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Result of a search.

    Attributes:
        query: Query of the search.
        index: Index that was searched.
        matches: Videos or moments, the most similar first.
        whitened: Whether features were whitened.
        approximate: Whether a vector index was used, which may miss results.
        not_refined: Path and reason of each moment that could not be refined.
        page: Path of the gallery; None if none was written.
        clips: Number of moments that were written as video files; None if none were requested.
        not_cut: Path and reason of each moment that could not be written.
    """

    query: SearchQuery
    index: VideoIndex
    matches: list[Match]
    whitened: bool
    approximate: bool
    not_refined: list[tuple[str, str]]
    page: str | None = None
    clips: int | None = None
    not_cut: list[tuple[str, str]] = field(default_factory=list)


def search(options: SearchOptions, index: VideoIndex | None = None) -> SearchResult | None:
    """Find the most similar videos or moments, or serve the search page.

    Args:
        options: Options of the command.
        index: Index that was already opened; None opens it.

    Returns:
        The results; None after serving the page until Ctrl-C.

    Raises:
        FileNotFoundError: If the index, checkpoint, video or CSV file does not exist.
        VideoDecodeError: If a video cannot be decoded.
        ValueError: If the index, the checkpoint, the condition or an option is not valid.
    """
    check_index(options.folder)
    check_exists(options.columns, "CSV file with columns")
    if options.checkpoint is not None:
        check_run(options.checkpoint)
    if options.serve is not None:
        # Only the page needs a web server and torch.
        from sce_video.find.search_page import serve

        serve(options)
        return None
    query = _checked_query(options)
    with rare_collections():
        index = read_index(options.folder, options.column) if index is None else index
        if options.clips is not None and index.windows is None:
            raise ValueError(
                f"the index {options.folder} contains whole videos, but --clips cuts moments. "
                "Build an index of moments with sce-video index --windows 5s"
            )
        return _write(options, _find(options, query, index))


def _checked_query(options: SearchOptions) -> SearchQuery:
    """Return the query that the options describe, after checking its files and its label.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a video is a folder, or the label does not exist.
    """
    check_exists(options.labels, "list")
    like, unlike, text = options.weights
    query = SearchQuery(
        like=tuple(map(parse_query, options.video)),
        unlike=tuple(map(parse_query, options.unlike)),
        text=options.text,
        label=options.more_like,
        weights=Weights(text, like, unlike),
    )
    for example in (*query.like, *query.unlike):
        check_exists(example.video, "video")
        if os.path.isdir(example.video):
            raise ValueError(
                f"{example.video} is a folder. A query is a video, an image or a moment such as "
                "a.mp4@2-4"
            )
    if query.label is not None:
        LabelList(label_file(options.folder, options.labels)).number(query.label)
    return query


def _find(options: SearchOptions, query: SearchQuery, index: VideoIndex) -> SearchResult:
    """Search the index for a query, and refine the results if requested."""
    # Evaluate the condition first, so that a mistake is reported before torch loads.
    passing = None
    if options.where:
        passing = columns_of_index(index, options.columns).matching(options.where)
    network = IndexNetwork(options.checkpoint, options.config, options.device)
    if network.checkpoint is not None:
        checkpoint_of_index(index, network.checkpoint)  # checked even if nothing is embedded

    @cache
    def model() -> VideoModel:
        return model_of_index(index, network)

    given = _read_query(options, query, index, model)
    out = np.empty(0, np.int64) if options.include_self else given.rows
    if passing is not None:
        out = np.concatenate([out, np.flatnonzero(~passing)])
    # Whitening fits video features. Text features have another distribution.
    whitened = index.whitens and query.text is None and not (options.plain or options.centred)
    matches = query_index(
        *(index, given.features, max(options.k, options.refined)),
        leave_out=out,
        centred=options.centred,
        exact=options.exact,
        whitened=whitened,
    )
    failures: list[tuple[str, str]] = []
    if options.refined:
        matches, failures = refine_moments(
            *(index, given.features, matches, partial(windows_near, model(), index.options)),
            centred=options.centred,
            whitened=whitened,
            without={} if options.include_self else given.moments,
            count=options.refined,
        )
    approximate = not options.exact and searches_approximately(index, options.centred)
    return SearchResult(query, index, matches[: options.k], whitened, approximate, failures)


def _read_query(
    options: SearchOptions,
    query: SearchQuery,
    index: VideoIndex,
    model: Callable[[], VideoModel],
) -> Examples:
    """Return the features of a query's examples, text and label."""
    like, unlike = (
        [read_example(index, each, model) for each in examples]
        for examples in (query.like, query.unlike)
    )
    if query.label is not None:
        known = LabelList(label_file(index.folder, options.labels))
        own, others = examples_of_label(index, known, query.label)
        like, unlike = [*like, own], [*unlike, others]
    text = None
    if query.text is not None:
        from sce_video.inference.encoders.text import text_feature

        path = checkpoint_of_index(index, options.checkpoint)
        text = text_feature(path, index.header.model["backbone"], query.text)
    return join_examples(like, unlike, text, query.weights)


def _write(options: SearchOptions, result: SearchResult) -> SearchResult:
    """Write the requested JSON file, gallery and clips."""
    if options.json is not None:
        write_json(options.json, _as_json(options, result))
    if result.query.like and not options.no_html:
        page = options.html or new_page(options.folder, result.query.like[0].video)
        _write_gallery(page, options, result)
        result = replace(result, page=page)
    if options.clips is not None:
        from sce_video.inference.clips import write_clips

        moments = ((match.file, *match.span) for match in result.matches)
        written, failures = write_clips(options.clips, moments, options.fast)
        result = replace(result, clips=len(written), not_cut=failures)
    return result


def _as_json(options: SearchOptions, result: SearchResult) -> dict[str, Any]:
    """Return the query, the settings and the results as JSON data."""
    query, index = result.query, result.index
    like, unlike = (
        [{**asdict(example), "video": absolute(example.video)} for example in part]
        for part in (query.like, query.unlike)
    )
    names = ("rank", "similarity", "distance", "path", "start", "end")
    return {
        "like": like,
        "not": unlike,
        "text": query.text,
        "label": query.label,
        "weights": asdict(query.weights),
        "index": os.path.abspath(options.folder),
        "root": index.root,
        "checkpoint": index.header.to_dict()["checkpoint"],
        "pool": index.header.model["backbone"].get("pool"),
        "clips": index.header.num_clips,
        "crops": index.header.num_crops,
        "centred": options.centred,
        "whitened": result.whitened,
        "refined": options.refined > 0,
        "approximate": result.approximate,
        "where": options.where or "",
        **({} if index.windows is None else {"windows": index.windows.to_dict()}),
        "videos" if index.windows is None else "rows": len(index),
        "results": [
            {name: value for name in names if (value := getattr(match, name)) is not None}
            for match in result.matches
        ],
    }


def new_page(index: str, video: str) -> str:
    """Return the path of a new page for a query, such as ``queries/walk-2.html`` for ``walk.mp4``.

    The folder ``queries`` is in the folder of the index. For a table of videos, the folder is next
    to the table's name in the current folder.
    """
    table = f"{os.path.basename(index.rstrip('/'))}.queries"
    folder = table if is_table_folder(index) else os.path.join(index, "queries")
    stem = os.path.join(folder, os.fsdecode(os.fsencode(Path(video).stem)[:_STEM_BYTES]))
    pages = (f"{stem}{f'-{n}' if n > 1 else ''}.html" for n in itertools.count(1))
    return next(page for page in pages if not os.path.lexists(page))


def _write_gallery(page: str, options: SearchOptions, result: SearchResult) -> None:
    """Write the gallery with the query and the best matches."""
    from sce_video.pages.gallery import GalleryEntry, read_entry, write_gallery

    query, index = result.query, result.index
    shown = result.matches[:_GALLERY_LIMIT]
    like, unlike = (
        [GalleryEntry(q.video, q.video, start=q.start, end=q.end) for q in part[:_GALLERY_LIMIT]]
        for part in (query.like, query.unlike)
    )
    results = [
        GalleryEntry(m.path, m.file, rank=m.rank, similarity=m.similarity, start=m.start, end=m.end)
        for m in shown
    ]
    views = index.header.num_clips * index.header.num_crops
    note = (
        f"{len(index)} {'videos' if index.windows is None else index.windows} in {index.root}; "
        f"cosine similarity, {views} view{'s' * (views != 1)} per video"
        f"{', centred' if options.centred else ''}{', whitened' if result.whitened else ''}; "
        f"{os.path.basename(index.header.checkpoint)}"
    )
    if len(shown) < len(result.matches):
        note += f"; the first {len(shown)} of {len(result.matches)} results"
    if len(query.like) + len(query.unlike) > 1 or query.text is not None or query.label is not None:
        note = f"{query.describe()}; {note}"
    if options.where:
        note += f"; where {options.where}"
    like, results, unlike = (list(map(read_entry, part)) for part in (like, results, unlike))
    write_gallery(page, like, results, note, unlike)
