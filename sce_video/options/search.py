"""Options of ``sce-video search``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import CONFIG, DEVICE, RUN

# Weights of the examples, the counter-examples and the text. The values come from Manning et al.,
# Introduction to Information Retrieval, section 9.1.1.
LIKE_WEIGHT = 0.75
UNLIKE_WEIGHT = 0.15
TEXT_WEIGHT = 1.0
#: Number of moments that --refine embeds again.
MOST_REFINED = 5
_SPAN = "moments, of an index of windows"
_PAGE = "a page in the browser, instead of a VIDEO"


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Options):
    """Find the videos of an index that are most similar to examples, or to words.

    The command prints a table and writes a gallery with frames and players to a new file,
    INDEX/queries/VIDEO.html. No labels are needed. With --serve, it opens a local page to search
    and label the videos of the index.
    """

    video: tuple[str, ...] = option(
        "video or image, indexed or not; also a URL, a row of a table, or a moment, "
        "a.mp4@12.5-17. Several are one query",
        (),
        positional=True,
        metavar="VIDEO",
    )
    unlike: tuple[str, ...] = option(
        "videos that results should not resemble", (), flag="--not", metavar="VIDEO"
    )
    text: str | None = option(
        "words that describe the results, alone or with examples; needs a video-text model "
        "(X-CLIP, CLIP)",
        None,
        metavar="WORDS",
    )
    more_like: str | None = option(
        "further examples: the videos with this label. Videos with other labels are "
        "counter-examples",
        None,
        metavar="LABEL",
    )
    weights: tuple[float, ...] = option(
        "weights of all examples, of all counter-examples, and of the text",
        (LIKE_WEIGHT, UNLIKE_WEIGHT, TEXT_WEIGHT),
        metavar=("LIKE", "NOT", "TEXT"),
        least=0,
    )
    index: str | None = option(
        "folder of the index, or a table of videos with a column of features", None, metavar="INDEX"
    )
    column: str | None = option(
        "column of features, if the table has several", None, metavar="NAME"
    )
    where: str | None = option(
        "only list videos that meet this condition in SQL: \"camera = 'north' and date >= "
        "'2026-01-01'\"",
        None,
        metavar="CONDITION",
    )
    columns: str | None = option(
        "CSV file with a header, path and other columns (default: INDEX/columns.csv, if it exists)",
        None,
        metavar="CSV",
    )
    labels: str | None = option(
        "list of labels that the page writes and --more-like reads (default: INDEX/labels.txt)",
        None,
        metavar="LIST",
    )
    k: int = option("number of results", 10, flag="-k", least=1)
    checkpoint: str | None = option(
        replace(RUN, help="current path of the checkpoint, if it has moved"), None
    )
    config: str | None = option(CONFIG, None)
    device: str | None = option(DEVICE, None)
    centred: bool = option("subtract the mean feature of the index first", False)
    plain: bool = option(
        "rank by the features as they are (default for windows: whitened features)", False
    )
    exact: bool = option("compare all videos, even if there is a vector index", False)
    include_self: bool = option("list the query itself, if it is indexed", False)
    html: str | None = option(
        "gallery to write, which replaces an existing file (default: a new file in INDEX/queries)",
        None,
        metavar="PAGE",
    )
    no_html: bool = option("write no gallery", False)
    json: str | None = option("also write the results as JSON", None, metavar="FILE")
    refine: bool = option(
        "also embed windows around the best moments, a quarter of the stride apart",
        False,
        group=_SPAN,
    )
    refine_moments: int | None = option(
        f"number of moments to refine (default: {MOST_REFINED}); use more with a longer stride",
        None,
        least=1,
        group=_SPAN,
    )
    clips: str | None = option(
        "write the moments as frame-accurate video files", None, metavar="DIR", group=_SPAN
    )
    fast: bool = option("with --clips, cut at key frames, without re-encoding", False, group=_SPAN)
    serve: str | None = option(
        "serve a page that searches and labels the videos of an index",
        None,
        metavar="INDEX",
        alone="",
        group=_PAGE,
    )
    port: int = option(
        "port of the page (default: a free one)", 0, least=0, most=65535, group=_PAGE
    )
    no_open: bool = option("only print the link", False, group=_PAGE)
    writable: bool = option(
        "let programs with the token write labels, too (docs/search.md)", False, group=_PAGE
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video search VIDEO.mp4 --index INDEX -k 10",
        "sce-video search IMAGE.jpg VIDEO.mp4 --not OTHER.mp4 --text WORDS --index INDEX",
        "sce-video search --more-like LABEL --where \"camera = 'north'\" --index INDEX",
        "sce-video search --serve INDEX",
    )
    more: ClassVar[str] = "Exit status: 0 searched, 2 wrong usage.\nMore: docs/search.md"

    @property
    def folder(self) -> str:
        """The index: ``--serve INDEX`` and ``--serve --index INDEX`` are the same."""
        return self.serve or self.index or ""

    @property
    def refined(self) -> int:
        """Number of moments to refine."""
        return self.refine_moments or (MOST_REFINED if self.refine else 0)

    def check(self) -> None:
        """Raise OptionError if the query is missing, or if options exclude each other."""
        if self.fast and self.clips is None:
            raise OptionError("{fast} is how {clips} cuts: give {clips} DIR")
        if self.centred and self.plain:
            raise OptionError("{centred} and {plain} exclude each other. Remove one")
        if self.serve is None:
            self._check_query()
        else:
            self._check_page()

    def _check_query(self) -> None:
        """Raise OptionError if nothing is searched for, or no index is named."""
        if not self.video and self.text is None and self.more_like is None:
            found = "{unlike} alone" if self.unlike else "nothing"
            raise OptionError(
                f"{found} to search for: give a {{video}}, an image, {{text}} or {{more_like}}, or "
                "{serve} for a page in the browser"
            )
        if self.index is None:
            if self.text is not None and not self.unlike and len(self.video) < 2:
                index = shlex.quote(self.video[0]) if self.video else "INDEX"
                raise OptionError(
                    f"{{text}} needs an index, as a video does: {{text}} WORDS {{index}} {index}"
                )
            raise OptionError("give the index to search in: {index} INDEX")
        if self.html is not None and not self.video:
            raise OptionError(
                "{html} shows the frames of a query's videos, but this query has none. Give {json}"
            )

    def _check_page(self) -> None:
        """Raise OptionError for options that have no effect on a page in the browser."""
        if self.video or self.text or self.more_like or self.unlike or self.where is not None:
            raise OptionError("give a query or {serve}, not both: videos are dropped on the page")
        if self.refined:
            raise OptionError("{refine} is for a query on the command line, not for {serve}")
        if self.clips is not None:
            raise OptionError(
                "{clips} is for a query on the command line, because the page has a button"
            )
        if self.serve and self.index and self.serve != self.index:
            raise OptionError(
                f"{{serve}} {self.serve} and {{index}} {self.index} are two indexes: give one"
            )
        if not self.folder:
            raise OptionError("{serve} needs the folder of an index: {serve} INDEX")
