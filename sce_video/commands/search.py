"""``sce-video search``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sce_video.options.search import SearchOptions
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.find.query import Match
    from sce_video.find.search import SearchResult

#: If all plain similarities are above this value, they are too close to 1 to tell results apart.
_CLOSE = 0.95


@command(options=SearchOptions)
def main(options: SearchOptions) -> int:
    """Search, or serve the page until Ctrl-C, and return 0."""
    from sce_video.find.search import search

    result = search(options)
    if result is not None:
        print("\n".join(map(printable, _summary(options, result))))
    return 0


def _summary(options: SearchOptions, result: SearchResult) -> list[str]:
    """Return the table of results, notes about them, and the files that were written."""
    lines = [f"not refined: {path}: {reason}" for path, reason in result.not_refined]
    lines += _table(result, f"; where {options.where}" if options.where else "")
    if result.approximate:
        lines.append(
            "note: a vector index was used, which may miss videos; --exact compares all videos"
        )
    plain = not (options.centred or result.whitened)
    if plain and result.matches and result.matches[-1].similarity >= _CLOSE:
        lines.append(
            f"note: all of these similarities are above {_CLOSE}, so compare ranks, not values. "
            "--centred spreads the values out and may change the ranks"
        )
    if result.page is not None:
        lines.append(f"result page: {result.page}")
    if result.clips is not None:
        lines += [f"clips: {result.clips} in {options.clips}", *shown_failures(result.not_cut)]
    return lines


def _table(result: SearchResult, where: str) -> list[str]:
    """List rank, similarity, distance, moment and path of every result."""
    from sce_video.datasets.clip_sampling import format_moment

    index, matches = result.index, result.matches
    what = "videos" if index.windows is None else "windows"
    moments = "" if index.windows is None else f"{'moment':>19}  "

    def line(match: Match) -> str:
        moment = ""
        if match.start is not None and match.end is not None:
            moment = format_moment(match.start, match.end)
        moment = f"{moment:>19}  " if moments else ""
        values = f"{match.rank:5d}  {match.similarity:10.4f}  {match.distance:8.4f}"
        return f"{values}  {moment}{match.path}"

    return [
        f"{result.query.describe()}{where}: the {len(matches)} most similar of {len(index)} {what} "
        f"in {index.root}",
        f" rank  similarity  distance  {moments}path",
        *map(line, matches),
    ]
