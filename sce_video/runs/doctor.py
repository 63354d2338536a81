"""``sce-video doctor``, which checks whether this machine is ready for training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_exists, tell_others
from sce_video.datasets.sources import listed_extensions
from sce_video.find.reading import find_store
from sce_video.options.prepare import DoctorOptions

if TYPE_CHECKING:
    from sce_video.runs.machine_checks import Finding


@dataclass(frozen=True)
class DoctorResult:
    """Findings about a machine, in the order of the checks."""

    findings: list[Finding]

    @property
    def failures(self) -> int:
        """Number of findings that will make training fail."""
        return sum(finding.will_fail for finding in self.findings)


def doctor(
    options: DoctorOptions, on_finding: Callable[[Finding], None] | None = None
) -> DoctorResult:
    """Check packages, decoders, GPU, system limits, videos and a search index.

    Args:
        options: Options of the command.
        on_finding: Function that is called with each finding immediately, because some checks take
            seconds.

    Raises:
        FileNotFoundError: If the folder or table of videos does not exist.
        ValueError: If the folder contains fewer than two videos, or there is no index in the folder
            of the index.
        TableError: If the table cannot be read.
    """
    videos, found = options.videos, []
    check_exists(videos, "folder or table of videos")
    store = None if options.index is None else find_store(Path(options.index))
    if options.index is not None and store is None:
        raise ValueError(
            f"there is no index in {options.index}. Give the folder that sce-video index writes"
        )
    if videos is not None and os.path.isdir(videos) and not options.report:
        tell_others(videos, listed_extensions(options.all_files))
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.runs.machine_checks import examine

    for finding in examine(options, store):
        found.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return DoctorResult(found)
