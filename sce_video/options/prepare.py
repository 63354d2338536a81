"""Options of the commands that prepare videos: verify, repack, import, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, option

_LIMITS = Group("limits")
_OUTPUTS = Group("outputs")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Options):
    """Decode every file of a dataset completely, and list the files with problems.

    The table lists files that are missing, bad, damaged, too short, listed more than once or, with
    --classes, labelled wrongly. Bad files cannot be opened, are truncated, take too long, contain
    frames that are too large or packets that cannot be decoded, or have errors in more than a tenth
    of their frames. Files with fewer errors are listed as damaged. The table also lists files whose
    timestamps restart or jump, and files whose extension or header does not match their content.
    The findings are recorded next to the table, so the same command resumes an interrupted run, and
    a different --min-frames or --min-duration does not require decoding again.
    """

    source: str = option(
        "annotation list ('path label' on every line) or folder", positional=True, metavar="LIST"
    )
    classes: str | None = option(
        shared.CLASSES, None, help=f"{shared.CLASSES.help}, with which the labels are checked"
    )
    out: str | None = option(
        "file for the table, which ends in .tsv or .md (default: LIST.verify.tsv, next to LIST)",
        None,
        metavar="TABLE",
    )
    data_root: str | None = option(shared.DATA_ROOT, None)
    all_files: bool = option(shared.ALL_FILES, False)
    restart: bool = option("discard the records, and decode all files again", False)
    min_frames: int = _LIMITS.option(
        # The shortest clips in the recipes have 8 frames per view.
        "number of frames below which a file is too short",
        8,
        least=1,
    )
    min_duration: float = _LIMITS.option(
        # This accepts 8 frames at 30 frames per second, which take 0.27 s.
        "duration, in seconds, below which a file is too short",
        0.25,
        metavar="SECONDS",
        least=0,
    )
    timeout: float = _LIMITS.option(shared.TIMEOUT, 120.0)
    max_pixels: int = _LIMITS.option(shared.PIXELS, shared.MAX_PIXELS)
    workers: int | None = shared.PROCESSES.option(shared.WORKERS, None)
    ray: str | None = shared.PROCESSES.option(shared.RAY, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video verify data/ucf101/train_split1.txt --workers 16",
        "sce-video verify data/ucf101/test_split1.txt --classes data/ucf101/classes.txt",
        "sce-video verify VIDEOS --out report/videos.md",
    )
    more: ClassVar[str] = (
        "Exit status: 0 no problems; 1 problems; 2 usage error; 130 interrupted.\n"
        "More: docs/data.md, docs/jobs.md (clusters)"
    )

    def check(self) -> None:
        """Raise OptionError for a table of another format."""
        if self.out is not None and not self.out.endswith((".tsv", ".md")):
            raise OptionError("{out} must end in .tsv or .md", self.out)


#: x264's tunings. psnr (no psychovisual optimisation, no adaptive quantisation) makes files a
#: seventh smaller at the same PSNR, and fastdecode (no CABAC, no deblocking) halves the decoding
#: time.
TUNES = ("psnr", "ssim", "film", "animation", "grain", "stillimage", "fastdecode")
#: Range of crf values to search if ``crf=None``. Values below 18 do not improve a crop visibly.
CRF_RANGE = (18.0, 34.0)
_PRESETS = (
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RepackOptions(Options):
    """Re-encode videos with a smaller frame size and only key frames, for fast random access.

    The command writes the videos to DST under their relative paths, with the extension .mp4. It
    also writes a report with sizes and PSNR (repack.json) and a list of the files that failed
    (failed.txt). If SRC is a list, these two files are named LIST.repack.json and LIST.failed.txt,
    and a copy of the list with the new paths is written to DST. With --to, every video becomes a
    table row instead of a file, and no report or list is written. A variable frame rate becomes
    constant, which may repeat or drop frames. Rotation is applied, and audio is dropped. With
    --keyint, not every frame is a key frame. Every output is decoded and compared with its source
    before it is moved to its final path.
    """

    source: str = option(
        "folder of videos, annotation list ('path label' on every line), or CSV file of segments "
        "of long videos (with the columns path, start, end, output and optionally label)",
        positional=True,
        metavar="SRC",
    )
    destination: str | None = option(
        "output folder, which several lists can share", None, positional=True, metavar="DST"
    )
    to: str | None = option(
        "table to which rows are written instead of files, for example videos.lance or "
        "s3://bucket/videos.lance",
        None,
        metavar="TABLE",
        problem=shared.table_problem,
    )
    extensions: str | None = option(
        "file extensions of videos in a folder, separated by commas (default: all supported ones)",
        None,
        metavar="EXT",
    )
    data_root: str | None = option(shared.DATA_ROOT, None)
    all_files: bool = option(shared.ALL_FILES, False)
    force: bool = option(
        "repack all files again, and replace existing files, lists, reports or rows", False
    )
    short_side: int | None = _OUTPUTS.option(
        "length of the shorter side, an even number of pixels; 'none' keeps the original size",
        256,
        metavar="PIXELS",
        least=16,
        none="none",
        problem=lambda pixels: "must be an even number" if pixels % 2 else None,
    )
    enlarge: bool = _OUTPUTS.option("also scale smaller videos up", False)
    keyint: int = _OUTPUTS.option(
        "number of frames from one key frame to the next. Larger numbers make files smaller, but "
        "random access slower",
        1,
        least=1,
    )
    crf: float | None = _OUTPUTS.option(
        "constant rate factor of x264, from 0 (best quality) to 51; 'auto' chooses for each file "
        f"the highest value from {CRF_RANGE[0]:g} to {CRF_RANGE[1]:g} that reaches --psnr",
        None,
        least=0,
        most=51,
        none="auto",
    )
    psnr: float = _OUTPUTS.option(
        "with --crf auto: minimum PSNR of luma and of all planes together, in dB",
        36.0,
        metavar="DB",
        least=10,
        most=60,
    )
    preset: str = _OUTPUTS.option(
        "preset of x264, which trades encoding speed for file size", "medium", choices=_PRESETS
    )
    tune: str = _OUTPUTS.option(
        "tunings of x264, separated by commas; '' uses none", "psnr,fastdecode"
    )
    min_psnr: float = _LIMITS.option(
        "PSNR below which an output fails, in dB", 30.0, metavar="DB", least=0, most=100
    )
    timeout: float = _LIMITS.option(shared.TIMEOUT, 1800.0)
    max_pixels: int = _LIMITS.option(shared.PIXELS, shared.MAX_PIXELS)
    workers: int | None = shared.PROCESSES.option(shared.WORKERS, None)
    ray: str | None = shared.PROCESSES.option(shared.RAY, None)
    threads: int = shared.PROCESSES.option("number of encoder threads in each process", 1, least=1)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video repack data/kinetics400/k400_train.txt data/k400_256 --workers 32",
        "sce-video repack VIDEOS PACKED --short-side none --keyint 8 --crf 20",
        "sce-video repack segments.csv CLIPS --data-root VIDEOS",
        "sce-video repack LIST --to videos.lance --ray auto",
    )
    more: ClassVar[str] = (
        "Exit status: 0 all done; 1 some files failed; 2 usage error or disk full; 130 "
        "interrupted.\nMore: docs/repack.md, docs/tables.md, docs/jobs.md (clusters)"
    )

    @property
    def endings(self) -> tuple[str, ...] | None:
        """The extensions with their dots, or None for all supported ones."""
        if self.extensions is None:
            return None
        names = self.extensions.lower().split(",")
        return tuple(f".{name.removeprefix('.')}" for name in names if name)

    def check(self) -> None:
        """Raise OptionError for outputs or tunings that exclude each other."""
        if (self.destination is None) == (self.to is None):
            raise OptionError("either {destination}, an output folder, or {to} TABLE is needed")
        if self.to is not None and self.source.endswith(".csv"):
            raise OptionError(
                "segments cannot be repacked directly into a table. Repack them to {destination}, "
                "and then import the files into the table"
            )
        if self.enlarge and self.short_side is None:
            raise OptionError("{enlarge} needs {short_side}, the size to which videos are enlarged")
        names = dict.fromkeys(name for name in self.tune.split(",") if name)
        unknown = [name for name in names if name not in TUNES]
        if unknown:
            raise OptionError(f"{{tune}} must be some of {', '.join(TUNES)}", unknown[0])
        # Besides fastdecode, x264 accepts only one tuning. If given several, it uses one and only
        # warns.
        alone = [name for name in names if name != "fastdecode"]
        if len(alone) > 1:
            raise OptionError(
                f"{alone[0]!r} and {alone[1]!r} of {{tune}} exclude each other. Choose one of them"
            )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Import repacked videos into a Lance table, to train from a disk or an object store.

    A file that is damaged or not repacked cannot be imported. It gets a row that contains the
    reason. The same command resumes an interrupted run, and imports files that have changed.
    Several processes may write to one table at the same time. 'sce-video repack SRC --to TABLE'
    writes the same rows directly from the original videos.
    """

    source: str = option("folder of videos, or annotation list", positional=True, metavar="SRC")
    table: str = option(
        "path or URL of the table, for example videos.lance or s3://bucket/videos.lance. If it "
        "exists, rows are added",
        positional=True,
        metavar="TABLE",
        problem=shared.table_problem,
    )
    data_root: str | None = option(shared.DATA_ROOT, None)
    all_files: bool = option(shared.ALL_FILES, False)
    retry_failed: bool = option("retry files that failed before", False)
    timeout: float = option(shared.TIMEOUT, 60.0)
    workers: int | None = option(shared.WORKERS, None)
    ray: str | None = option(shared.RAY, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video import data/k400_256 data/k400.lance --workers 8",
        "sce-video import data/k400_256/k400_train.txt s3://bucket/k400.lance",
        "sce-video import LIST TABLE --ray auto",
    )
    more: ClassVar[str] = (
        "Credentials and endpoint of an object store come from the environment (AWS_...).\n"
        "Exit status: 0 all done; 1 some files failed; 2 usage error or a table that cannot be "
        "written;\n130 interrupted.\nMore: docs/tables.md, docs/jobs.md (clusters)"
    )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """Check packages, decoders, GPU and videos, and suggest fixes.

    Each warning or failure is followed by a line that explains how to fix it.
    """

    videos: str | None = option(
        "folder or table of videos to check; only a sample is decoded", None, metavar="VIDEOS"
    )
    all_files: bool = option(shared.ALL_FILES, False)
    index: str | None = option(
        "search index to read completely; damaged files are listed", None, metavar="INDEX"
    )
    out: str = option("folder for runs; the free space on its disk is checked", ".", metavar="DIR")
    report: bool = option(
        "print a report to paste into an issue, without names of files and folders. The exit "
        "status is then 0 even if a check fails",
        False,
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video doctor",
        "sce-video doctor --videos VIDEOS --out RUNS",
        "sce-video doctor --report --videos VIDEOS",
    )
    more: ClassVar[str] = "Exit status: 0 ready; 1 something will fail; 2 usage error."


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Try everything on generated videos: pretrain, evaluate, build an index and search it.

    The demo prints the commands that it runs, so that you can repeat them with your own videos. At
    the end, it opens the search page. A second run reuses the videos and repeats everything else.
    """

    out: str = option(
        "folder for the videos, the run and the index", "work_dirs/demo", metavar="DIR"
    )
    minutes: float = option("training time, in minutes", 3.0, above=0)
    method: str | None = option(
        "self-supervised method, except distill (default: as in sce-video pretrain)", None
    )
    serve: bool = option("open the search page at the end", True)
    smoke: bool = option(
        "use few videos and steps, only to check that everything runs on this machine", False
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video demo",
        "sce-video demo --minutes 20 --method sce --out DEMO",
        "sce-video demo --smoke --no-serve",
    )
