"""Options of the commands that prepare videos: verify, repack, import, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import (
    ALL_FILES,
    DATA_ROOT,
    MAX_PIXELS,
    PIXELS,
    RAY,
    TIMEOUT,
    WORKERS,
    table_problem,
)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Options):
    """Decode every file of a dataset completely and list the files with problems.

    The table names files that are missing, bad (they cannot be opened, are truncated, too slow or
    too large, or more than a tenth of their frames is damaged), damaged in fewer frames, too short,
    listed more than once or labelled wrongly (with --classes), and files whose extension or header
    does not match their content. What was found in each file is recorded next to the table. The
    same command therefore resumes an interrupted run, and with other limits nothing is decoded
    again.
    """

    source: str = option(
        "annotation list ('path label' per line) or folder", positional=True, metavar="LIST"
    )
    classes: str | None = option(
        "file of class names, one per line, to check the labels with", None, metavar="FILE"
    )
    out: str | None = option(
        "path of the table, .tsv or .md (default: LIST.verify.tsv, next to LIST)",
        None,
        metavar="TABLE",
    )
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    restart: bool = option("discard the records and decode all files again", False)
    min_frames: int = option(
        # The recipes with the shortest clips read 8 frames per view.
        "a file with fewer frames is too short",
        8,
        least=1,
        group="limits",
    )
    min_duration: float = option(
        # 0.25 s accepts 8 frames at 30 frames per second, which last 0.27 s.
        "a file with fewer seconds is too short",
        0.25,
        metavar="SECONDS",
        least=0,
        group="limits",
    )
    timeout: float = option(TIMEOUT, 120.0, group="limits")
    max_pixels: int = option(PIXELS, MAX_PIXELS, group="limits")
    workers: int | None = option(WORKERS, None, group="processes")
    ray: str | None = option(RAY, None, group="processes")

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


#: Tunings of x264. psnr (no psychovisual optimisation, no adaptive quantisation) saves a seventh of
#: the bytes at the same PSNR, and fastdecode (no CABAC, no deblocking) halves the decoding time.
TUNES = ("psnr", "ssim", "film", "animation", "grain", "stillimage", "fastdecode")
#: Range that ``crf=None`` searches. Below 18 no gain is visible in a training crop.
CRF_RANGE = (18.0, 34.0)
_PRESETS = (
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RepackOptions(Options):
    """Re-encode videos for fast random access, with small frames that are all key frames.

    DST gets the videos under their relative paths with the extension .mp4, the list with the new
    paths, a report with sizes and PSNR (LIST.repack.json) and the files that failed
    (LIST.failed.txt). With --to, every video becomes a row of a table instead. A video keeps its
    frames. A variable frame rate becomes constant, rotation is applied, and audio is dropped. Every
    output is decoded and compared with its source before it gets its final path.
    """

    source: str = option(
        "folder of videos, annotation list ('path label' per line), or table of segments of long "
        "videos (.csv with the columns path, start, end, output and optionally label)",
        positional=True,
        metavar="SRC",
    )
    destination: str | None = option(
        "output folder, which several lists can share", None, positional=True, metavar="DST"
    )
    to: str | None = option(
        "write rows of this table instead of files: videos.lance, s3://bucket/videos.lance",
        None,
        metavar="TABLE",
        problem=table_problem,
    )
    extensions: str | None = option(
        "extensions of the videos in a folder, separated by commas (default: all supported ones)",
        None,
        metavar="EXT",
    )
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    force: bool = option(
        "repack all files again, and replace other files, lists, reports or rows", False
    )
    short_side: int | None = option(
        "length of the shorter side, an even number of pixels; 'none' keeps the size",
        256,
        metavar="PIXELS",
        least=16,
        none="none",
        problem=lambda pixels: "must be an even number" if pixels % 2 else None,
        group="outputs",
    )
    enlarge: bool = option("also scale up smaller videos", False, group="outputs")
    keyint: int = option(
        "number of frames from one key frame to the next; with more, files are smaller and "
        "random access is slower",
        1,
        least=1,
        group="outputs",
    )
    crf: float | None = option(
        "quality for x264, 0 (best) to 51; 'auto' chooses for each file the highest number of "
        f"{CRF_RANGE[0]:g} to {CRF_RANGE[1]:g} that reaches --psnr",
        None,
        least=0,
        most=51,
        none="auto",
        group="outputs",
    )
    psnr: float = option(
        "PSNR that luma and all planes reach with --crf auto, in dB",
        36.0,
        metavar="DB",
        least=10,
        most=60,
        group="outputs",
    )
    preset: str = option(
        "preset of x264: encoding speed against file size",
        "medium",
        choices=_PRESETS,
        group="outputs",
    )
    tune: str = option(
        "tunings of x264, separated by commas; '' for none", "psnr,fastdecode", group="outputs"
    )
    min_psnr: float = option(
        "an output with a lower PSNR fails", 30.0, metavar="DB", least=0, most=100, group="limits"
    )
    timeout: float = option(TIMEOUT, 1800.0, group="limits")
    max_pixels: int = option(PIXELS, MAX_PIXELS, group="limits")
    workers: int | None = option(WORKERS, None, group="processes")
    ray: str | None = option(RAY, None, group="processes")
    threads: int = option(
        "number of threads of the encoder in each process", 1, least=1, group="processes"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video repack data/kinetics400/k400_train.txt data/k400_256 --workers 32",
        "sce-video repack VIDEOS PACKED --short-side none --keyint 8 --crf 20",
        "sce-video repack segments.csv CLIPS --data-root VIDEOS",
        "sce-video repack LIST --to videos.lance --ray auto",
    )
    more: ClassVar[str] = (
        "Exit status: 0 all done, 1 some files failed, 2 wrong usage or disk full, 130 "
        "interrupted.\nMore: docs/repack.md, docs/tables.md, docs/jobs.md (clusters)"
    )

    @property
    def endings(self) -> tuple[str, ...] | None:
        """The extensions with their dots; None for all that are read."""
        if self.extensions is None:
            return None
        names = self.extensions.lower().split(",")
        return tuple(f".{name.removeprefix('.')}" for name in names if name)

    def check(self) -> None:
        """Raise OptionError for outputs or tunings that exclude each other."""
        if (self.destination is None) == (self.to is None):
            raise OptionError("give either {destination}, an output folder, or {to} TABLE")
        if self.to is not None and self.source.endswith(".csv"):
            raise OptionError(
                "segments become files first: repack them to {destination}, then import these "
                "files into the table"
            )
        if self.enlarge and self.short_side is None:
            raise OptionError("{enlarge} needs {short_side}, the size to which it enlarges")
        names = dict.fromkeys(name for name in self.tune.split(",") if name)
        unknown = [name for name in names if name not in TUNES]
        if unknown:
            raise OptionError(f"{{tune}} must be some of {', '.join(TUNES)}", unknown[0])
        # x264 accepts only one of the others. If several are given, it drops all but one and only
        # warns.
        alone = [name for name in names if name != "fastdecode"]
        if len(alone) > 1:
            raise OptionError(
                f"{alone[0]!r} and {alone[1]!r} of {{tune}} exclude each other. Choose one of them"
            )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Import repacked videos into one table (Lance), to train from a disk or an object store.

    A file that cannot become a row (damaged, or not repacked) gets a row with the reason. The same
    command resumes an interrupted run and imports files that have changed. Several processes may
    write to one table at the same time. 'sce-video repack SRC --to TABLE' writes the same rows
    from the original videos.
    """

    source: str = option("folder of videos, or annotation list", positional=True, metavar="SRC")
    table: str = option(
        "path or URL: videos.lance, s3://bucket/videos.lance. Rows are added to an existing table",
        positional=True,
        metavar="TABLE",
        problem=table_problem,
    )
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    retry_failed: bool = option("also import files again that failed before", False)
    timeout: float = option(TIMEOUT, 60.0)
    workers: int | None = option(WORKERS, None)
    ray: str | None = option(RAY, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video import data/k400_256 data/k400.lance --workers 8",
        "sce-video import data/k400_256/k400_train.txt s3://bucket/k400.lance",
        "sce-video import LIST TABLE --ray auto",
    )
    more: ClassVar[str] = (
        "Credentials and endpoint of an object store come from the environment (AWS_...).\n"
        "Exit status: 0 all done, 1 some files failed, 2 wrong usage or a table that cannot be "
        "written,\n130 interrupted.\nMore: docs/tables.md, docs/jobs.md (clusters)"
    )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """Check packages, decoders, GPU and videos, and suggest fixes.

    Every warning and every failure is followed by a line that says how to fix it.
    """

    videos: str | None = option(
        "also check a folder or table of videos, and decode some of them", None, metavar="VIDEOS"
    )
    all_files: bool = option(ALL_FILES, False)
    index: str | None = option(
        "also read a search index completely, and list its damaged files", None, metavar="INDEX"
    )
    out: str = option("folder of the runs, whose disk is checked", ".", metavar="DIR")
    report: bool = option(
        "print a report for an issue, without the names of files and folders; the exit status is 0",
        False,
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video doctor",
        "sce-video doctor --videos VIDEOS --out RUNS",
        "sce-video doctor --report --videos VIDEOS",
    )
    more: ClassVar[str] = "Exit status: 0 ready, 1 something will fail, 2 wrong usage."


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Try everything on generated videos: pretrain, evaluate, build an index and search in it.

    The demo prints the commands that it runs, so that you can repeat them with your own videos. The
    search page opens at the end. A second run keeps the videos and repeats everything else.
    """

    out: str = option(
        "folder of the videos, the run and the index", "work_dirs/demo", metavar="DIR"
    )
    minutes: float = option("training time, in minutes", 3.0, above=0)
    method: str | None = option(
        "method of pretraining, except distill (default: as in sce-video pretrain)", None
    )
    serve: bool = option("open the search page at the end", True)
    smoke: bool = option(
        "use a few videos and steps, to find out whether everything runs here", False
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video demo",
        "sce-video demo --minutes 20 --method sce --out DEMO",
        "sce-video demo --smoke --no-serve",
    )
