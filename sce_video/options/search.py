"""Options of ``sce-video search``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, option

# Weights of the examples, the counter-examples and the text, as in Manning et al., Introduction to
# Information Retrieval, section 9.1.1
LIKE_WEIGHT = 0.75
UNLIKE_WEIGHT = 0.15
TEXT_WEIGHT = 1.0
#: Default number of moments that --refine embeds again
MOST_REFINED = 5
_INDEX = Group("index")
_OUTPUT = Group("output")
_MOMENTS = Group("moments, if the index contains windows")
_PAGE = Group("search page in the browser, instead of a query")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Options):
    """Find the videos in an index that are most similar to examples or to a text.

    The command prints a table. If the query contains an example, it also writes a result page with
    frames and players to a new file, INDEX/queries/VIDEO.html (for a table, in the folder
    TABLE.queries). No labels are needed. With --serve, it opens a local page on which you can
    search and label the videos in the index.
    """

    video: tuple[str, ...] = option(
        "example video or image, which need not be in the index: a file, a URL, a row of a table, "
        "or a moment such as a.mp4@12.5-17. Several examples form one query",
        (),
        positional=True,
        metavar="VIDEO",
    )
    unlike: tuple[str, ...] = option(
        "videos that results should not resemble", (), flag="--not", metavar="VIDEO"
    )
    text: str | None = option(
        "text that describes the results, with or without examples. The index must belong to a "
        "model that also embeds text (X-CLIP, CLIP)",
        None,
        metavar="WORDS",
    )
    more_like: str | None = option(
        "use the videos with this label as examples, and the videos with other labels as "
        "counter-examples",
        None,
        metavar="LABEL",
    )
    weights: tuple[float, ...] = option(
        "weights of the examples, of the counter-examples and of the text",
        (LIKE_WEIGHT, UNLIKE_WEIGHT, TEXT_WEIGHT),
        metavar=("LIKE", "NOT", "TEXT"),
        least=0,
    )
    k: int = option("number of results", 10, flag="-k", least=1)
    centred: bool = option("subtract the mean feature of the index from all features", False)
    plain: bool = option(
        "rank by the original features. By default, an index of 100 or more windows is ranked by "
        "whitened features, unless the query contains a text",
        False,
    )
    exact: bool = option("compare with all videos, even if there is a vector index", False)
    include_self: bool = option("list the query itself if it is in the index", False)
    index: str | None = _INDEX.option(
        "folder of the index, or table of videos with a feature column", None, metavar="INDEX"
    )
    column: str | None = _INDEX.option(
        "feature column to use, if the table has several", None, metavar="NAME"
    )
    where: str | None = _INDEX.option(
        "SQL condition that the listed videos must meet, for example \"camera = 'north' and date "
        ">= '2026-01-01'\"",
        None,
        metavar="CONDITION",
    )
    columns: str | None = _INDEX.option(
        "CSV file with the column 'path' and the columns that --where uses (default: "
        "INDEX/columns.csv, if it exists)",
        None,
        metavar="CSV",
    )
    labels: str | None = _INDEX.option(
        "list of labels, which the page writes and --more-like reads (default: INDEX/labels.txt)",
        None,
        metavar="LIST",
    )
    checkpoint: str | None = _INDEX.option(
        shared.RUN, None, help="current location of the network, if it has moved"
    )
    config: str | None = _INDEX.option(shared.CONFIG, None)
    device: str | None = _INDEX.option(shared.DEVICE, None)
    html: str | None = _OUTPUT.option(
        "file for the result page; an existing file is overwritten (default: a new file in "
        "INDEX/queries)",
        None,
        metavar="PAGE",
    )
    no_html: bool = _OUTPUT.option("do not write a result page", False)
    json: str | None = _OUTPUT.option("JSON file for the results", None, metavar="FILE")
    refine: bool = _MOMENTS.option(
        "locate the best moments more precisely: embed further windows around them, in steps of a "
        "quarter and then a sixteenth of the stride",
        False,
    )
    refine_moments: int | None = _MOMENTS.option(
        f"number of moments to refine (default: {MOST_REFINED}). Use more with a longer stride",
        None,
        least=1,
    )
    clips: str | None = _MOMENTS.option(
        "save the moments as videos in this folder, cut to the exact frame", None, metavar="DIR"
    )
    fast: bool = _MOMENTS.option("with --clips: cut at key frames, without re-encoding", False)
    serve: str | None = _PAGE.option(
        "open a page in the browser to search and label the videos of this index (default: the "
        "index of --index)",
        None,
        metavar="INDEX",
        alone="",
    )
    port: int = _PAGE.option("port of the page (default: a free one)", 0, least=0, most=65535)
    no_open: bool = _PAGE.option("print the link without opening the browser", False)
    writable: bool = _PAGE.option(
        "also let other programs write labels, if they send the token of the printed link "
        "(docs/search.md)",
        False,
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video search VIDEO.mp4 --index INDEX -k 10",
        "sce-video search IMAGE.jpg VIDEO.mp4 --not OTHER.mp4 --text WORDS --index INDEX",
        "sce-video search --more-like LABEL --where \"camera = 'north'\" --index INDEX",
        "sce-video search --serve INDEX",
    )
    more: ClassVar[str] = "Exit status: 0 searched; 2 usage error.\nMore: docs/search.md"

    @property
    def folder(self) -> str:
        """The index, which ``--serve INDEX`` or ``--index INDEX`` names."""
        return self.serve or self.index or ""

    @property
    def refined(self) -> int:
        """Number of moments to refine."""
        return self.refine_moments or (MOST_REFINED if self.refine else 0)

    def check(self) -> None:
        """Raise OptionError if the query is missing, or if options exclude each other."""
        shared.check_fast(self)
        self.exclude("centred", "plain")
        if self.serve is None:
            self._check_query()
        else:
            self._check_page()

    def _check_query(self) -> None:
        """Raise OptionError if there is nothing to search for, or no index."""
        if not self.video and self.text is None and self.more_like is None:
            only = "only {unlike}" if self.unlike else "nothing"
            raise OptionError(
                f"there is {only} to search for. Add a {{video}}, an image, {{text}} or "
                "{more_like}, or open a page in the browser with {serve}"
            )
        if self.index is None:
            if self.text is not None and not self.unlike and len(self.video) < 2:
                index = shlex.quote(self.video[0]) if self.video else "INDEX"
                raise OptionError(
                    f"{{text}} also needs an index. Use {{text}} WORDS {{index}} {index}"
                )
            raise OptionError("there is no index to search. Add {index} INDEX")
        if self.html is not None and not self.video:
            raise OptionError(
                "{html} shows frames of the query's videos, but this query has none. Use {json}"
            )

    def _check_page(self) -> None:
        """Raise OptionError for options that have no effect on a page in the browser."""
        if self.video or self.text or self.more_like or self.unlike or self.where is not None:
            raise OptionError(
                "a query cannot be combined with {serve}. Remove one of them. On the page, you can "
                "drop videos to search for"
            )
        if self.refined:
            raise OptionError("{refine} needs a query on the command line, so remove {serve}")
        if self.clips is not None:
            raise OptionError("{clips} has no effect on {serve}, because the page has a button")
        if self.serve and self.index and self.serve != self.index:
            raise OptionError(
                f"{{serve}} {self.serve} and {{index}} {self.index} are two indexes. Remove one"
            )
        if not self.folder:
            raise OptionError("{serve} needs the folder of an index. Use {serve} INDEX")
