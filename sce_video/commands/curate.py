"""``sce-video curate``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.options.find import CurateOptions
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.curation.curate import CurateResult

_RECIPE = "sce_r3d18_folder_small"  # recipe that trains on the list


@command(
    options=CurateOptions,
    interrupted="interrupted; nothing was written, but the next run reuses finished work",
)
def main(options: CurateOptions) -> int:
    """Curate the videos, and return 1 if some of them could not be compared, else 0."""
    from sce_video.curation.curate import curate

    result = curate(options)
    print(describe_curation(result, Path(options.out)))
    return 1 if result.found.duplicates.unread else 0


def describe_curation(result: CurateResult, out: Path) -> str:
    """Describe the results of a curation and where they are, for the terminal."""
    found, report = result.found, result.report
    counts = report.counts
    lines = [
        f"{counts.videos} videos: {counts.kept} kept, {counts.removed} removed",
        f"  {counts.near_duplicates} near-duplicates in {counts.groups} groups, from "
        f"{counts.compared_pairs} compared pairs; kept in each group: {report.kept_of_a_group}",
        f"  {counts.outliers} outliers "
        + ("removed" if found.options.drop_outliers else "(kept; --drop-outliers removes them)"),
        f"  {counts.undecodable} could not be decoded",
    ]
    if counts.shared_parts:
        lines.insert(
            2, f"  {counts.shared_parts} shared parts (intros, credits), which do not make copies"
        )
    if found.motion is not None:
        lines.append(
            f"  {counts.little_motion} removed because of little motion: below "
            f"{found.motion.limit:.3f} grey levels, or frozen"
        )
    if found.duplicates.unread:
        lines.append(f"  {counts.not_compared} could not be compared and are kept:")
        problems = [(found.videos.paths[row], why) for row, why in found.duplicates.unread]
        lines += ["  " + line for line in shown_failures(problems, ", in report.json")]
    lines += [f"  {note}" for note in report.notes]
    lines += [f"{name}: {file}" for name, file in report.lists.items()]
    lines += [f"reasons for removal: {out / 'removed.csv'}", f"report: {out / 'report.json'}"]
    if result.page is not None:
        decide = " (you can decide about groups there)" if found.duplicates.groups else ""
        lines.append(f"page: {result.page}{decide}")
    data = ("--data-root", str(found.videos.root or "/"), "--train-list", report.lists["keep"])
    lines.append(f"next: sce-video train {_RECIPE} {shlex.join(data)}")
    return "\n".join(map(printable, lines))
