"""Segments labelled by hand, kept in the CSV file that finetuning reads."""

from __future__ import annotations

import math
from pathlib import Path

from sce_video.datasets.clip_sampling import check_span
from sce_video.datasets.segments import Segment, read_segments, write_segment_file
from sce_video.find.label_list import class_name
from sce_video.utils.files import remove_unfinished

_UNDONE = 200  # changes that can be taken back
#: Seconds, as a browser tells them: more digits say nothing of a frame.
_DIGITS = 3


class SegmentList:
    """Labelled segments in a file ``path,start,end,label``; every change is written at once.

    Rows of videos that are not in the index are kept.

    Args:
        file: The CSV file, which need not exist.

    Raises:
        ValueError: There is such a file, but it is none of segments.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.segments: list[Segment] = []
        self._undo: list[list[Segment]] = []
        remove_unfinished(file.parent, file.name)
        if file.exists():
            self.segments = read_segments(str(file))
        self._stamp = self._stat()

    @property
    def undo_depth(self) -> int:
        """Number of changes that can be taken back."""
        return len(self._undo)

    def of(self, path: str) -> list[Segment]:
        """Those of a video, by start."""
        return sorted((s for s in self.segments if s.path == path), key=lambda s: (s.start, s.end))

    def classes(self) -> list[str]:
        """The labels, in the order in which they were first given."""
        return list(dict.fromkeys(s.label for s in self.segments))

    def add(self, path: str, start: float, end: float, label: str) -> Segment:
        """Add a segment, which may overlap others; one that is there already is kept.

        Raises:
            ValueError: it has no length, the label is no name, the path cannot be written; or the
                file was changed by another program.
            WriteError: the file cannot be written; nothing is changed then.
        """
        if not (math.isfinite(start) and math.isfinite(end)) or start < 0:
            raise ValueError(f"a segment has a start and an end in seconds, got {start} and {end}")
        segment = Segment(path, round(start, _DIGITS), round(end, _DIGITS), class_name(label))
        check_span("the segment", segment.start, segment.end)
        if path != path.strip() or len(path.splitlines()) != 1:
            raise ValueError(f"no list can hold the name {path!r:.200}: rename the file")
        if segment not in self.segments:
            self._change([*self.segments, segment])
        return segment

    def remove(self, segment: Segment) -> None:
        """Remove a segment; ValueError if it is not there, or as of :meth:`add`."""
        if segment not in self.segments:
            raise ValueError("there is no such segment any more")
        self._change([s for s in self.segments if s != segment])

    def undo(self) -> None:
        """Take the last change back, if there is one."""
        if self._undo:
            self._write(self._undo[-1])
            self._undo.pop()

    def _change(self, segments: list[Segment]) -> None:
        before = self.segments
        self._write(segments)
        self._undo = [*self._undo[1 - _UNDONE :], before]

    def _write(self, segments: list[Segment]) -> None:
        if self._stat() != self._stamp:
            raise ValueError(
                f"{self.file} was changed by another program since this page was opened: start the "
                "page again to read it; the last segment was not written"
            )
        try:
            write_segment_file(self.file, segments)
        finally:
            self._stamp = self._stat()
        self.segments = segments

    def _stat(self) -> tuple[int, int] | None:
        """Size and time of the file."""
        if not self.file.exists():
            return None
        status = self.file.stat()
        return status.st_size, status.st_mtime_ns
