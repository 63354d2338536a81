"""Options of the commands that prepare videos: verify, repack, import, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, Spec, option
from sce_video.options.shared import ALL_FILES, DATA_ROOT, MAX_PIXELS, PIXELS, RAY, TIMEOUT, WORKERS


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Options):
    """Decode every file of a dataset completely and list the files with problems.

    The table names files that are missing, bad (they cannot be opened, are truncated, too slow or
    too large, or more than a tenth of their frames is damaged), damaged in fewer frames, too short,
    listed more than once or labelled wrongly (with --classes), and files whose extension or header
    does not match their content. What was found in each file is recorded next to the table. The
    same command therefore resumes an interrupted run, and other limits need no new decoding.
    """

    source: str = option(
        Spec("annotation list ('path label' per line) or folder", positional=True, metavar="LIST")
    )
    classes: str | None = option(
        Spec("file of class names, one per line, to check the labels with", metavar="FILE"), None
    )
    out: str | None = option(
        Spec(
            "path of the table, .tsv or .md (default: LIST.verify.tsv, next to LIST)",
            metavar="TABLE",
        ),
        None,
    )
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    restart: bool = option(Spec("discard the records and decode all files again"), False)
    min_frames: int = option(
        # The recipes with the shortest clips read 8 frames per view.
        Spec("a file with fewer frames is too short", metavar="N", least=1, group="limits"),
        8,
    )
    min_duration: float = option(
        # 0.25 s accepts 8 frames at 30 frames per second, which last 0.27 s.
        Spec("a file with fewer seconds is too short", metavar="SECONDS", least=0, group="limits"),
        0.25,
    )
    timeout: float = option(TIMEOUT.in_group("limits"), 120.0)
    max_pixels: int = option(PIXELS.in_group("limits"), MAX_PIXELS)
    workers: int | None = option(WORKERS.in_group("processes"), None)
    ray: str | None = option(RAY.in_group("processes"), None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video verify data/ucf101/train_split1.txt --workers 16",
        "sce-video verify data/ucf101/test_split1.txt --classes data/ucf101/classes.txt",
        "sce-video verify VIDEOS --out report/videos.md",
    )
    more: ClassVar[str] = (
        "Exit status: 0 no problems, 1 problems, 2 wrong usage, 130 interrupted.\n"
        "More: docs/data.md, docs/jobs.md (clusters)"
    )

    def check(self) -> None:
        """Raise OptionError for a table of another format."""
        if self.out is not None and not self.out.endswith((".tsv", ".md")):
            raise OptionError("{out} must end in .tsv or .md", self.out)
