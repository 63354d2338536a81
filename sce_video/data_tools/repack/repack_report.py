"""Results of repacking: lists and reports in files, and a summary for the terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.plan import RepackPlan
from sce_video.datasets.text_tables import tsv_cell
from sce_video.datasets.video_list import annotation_line
from sce_video.jobs import Item, Record
from sce_video.utils.command import printable_utf8, shown_failures
from sce_video.utils.files import write_text

#: Kinds of failures, with their descriptions in the summary.
KINDS = {
    "missing": "do not exist",
    "denied": "may not be read",
    "bad": "cannot be decoded",
    "encode": "cannot be encoded",
    "quality": "are below the minimum PSNR",
    "check": "have a wrong output",
    "timeout": "took too long",
    "crash": "crashed the decoder or encoder",
    "name": "have an output with too long a name",
}

#: Facts about finished files that the report adds up.
_SUMMED = (
    "size", "bytes", "source_video_bytes", "video_bytes", "seconds", "cpu_seconds", "psnr",
    "psnr_luma", "frames_not_shown",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RepackRun:
    """Source, destination and progress of a run.

    Attributes:
        source: Folder or list, as the user gave it.
        source_path: Real path of the source.
        entries: Hash of the source's paths and labels.
        destination: Output folder, as the user gave it.
        settings: Settings of the outputs.
        away: Number of finished files whose source is missing now.
        elapsed_seconds: Duration of the run.
        done_before: Number of files that earlier runs have finished.
    """

    source: str
    source_path: str
    entries: str
    destination: str
    settings: dict[str, Any]
    away: int
    elapsed_seconds: float
    done_before: int


@dataclass(frozen=True)
class ReportedBytes:
    """Sizes in bytes of files and of their video streams.

    ``unscaled_ratio`` compares the streams of videos that were not scaled. It is None without them.
    """

    source: int
    output: int
    source_video: int
    output_video: int
    unscaled_ratio: float | None


@dataclass(frozen=True)
class ReportedPsnr:
    """PSNR in dB. For the worst file, the lower value of luma and all planes is given."""

    mean: float | None
    mean_luma: float | None
    worst: float | None
    worst_path: str | None


@dataclass(frozen=True)
class RepackFailure:
    """A file that was not repacked. ``kind`` is a key of :data:`KINDS`."""

    path: str
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RepackReport(RepackRun):
    """Totals over the files of a run.

    Attributes:
        files, done, failed: Numbers of files.
        bytes: Sizes of sources and outputs.
        seconds: Total duration of the videos.
        cpu_seconds: Processor time.
        psnr: Quality of the outputs.
        crf: Lowest and highest crf.
        resampled: Number of files whose variable frame rate became constant.
        frames_not_shown: Number of frames that are missing in the outputs.
        damaged: Paths of files with frames that do not decode or are damaged.
        failures: Files that were not repacked.
    """

    files: int
    done: int
    failed: int
    bytes: ReportedBytes
    seconds: float
    cpu_seconds: float
    psnr: ReportedPsnr
    crf: list[float | None]
    resampled: int
    frames_not_shown: int
    damaged: list[str]
    failures: list[RepackFailure]


def repack_report(
    items: list[Item], record_of: Callable[[str], Record | None], run: RepackRun
) -> RepackReport:
    """Return the totals over the records of all files."""
    sums: Counter[str] = Counter()
    crf: list[float] = []
    worst: tuple[float | None, str | None] = (None, None)
    damaged: list[str] = []
    failures: list[RepackFailure] = []
    for record in filter(None, (record_of(item.key) for item in items)):
        if not record.done:
            crashed = "crash" if record.kind in ("error", "lost") else record.kind
            kind = "bad" if record.kind == "changed" else crashed
            hint = " (--timeout)" if kind == "timeout" else ""
            failures.append(RepackFailure(record.key, kind, record.reason + hint))
            continue
        entry = {**(record.source or {}), **record.facts}
        sums.update({"done": 1, **{name: entry[name] for name in _SUMMED}})
        if not entry["scaled"]:
            sums["unscaled_source"] += entry["source_video_bytes"]
            sums["unscaled_output"] += entry["video_bytes"]
        sums["resampled"] += not entry["constant"]
        crf = [f([*crf, entry["crf"]]) for f in (min, max)]
        psnr = min(entry["psnr"], entry["psnr_luma"])
        if worst[0] is None or psnr < worst[0]:
            worst = psnr, record.key
        missing = entry["source_promised"] - entry["source_frames"]
        if missing > 0 or entry.get("source_damaged"):
            damaged.append(record.key)

    def share(name: str, of: str, digits: int) -> float | None:
        return round(sums[name] / sums[of], digits) if sums[of] else None

    return RepackReport(
        **vars(run),
        files=len(items),
        done=sums["done"],
        failed=len(failures),
        bytes=ReportedBytes(
            source=sums["size"],
            output=sums["bytes"],
            source_video=sums["source_video_bytes"],
            output_video=sums["video_bytes"],
            unscaled_ratio=share("unscaled_output", "unscaled_source", 4),
        ),
        seconds=round(sums["seconds"], 3),
        cpu_seconds=round(sums["cpu_seconds"], 3),
        psnr=ReportedPsnr(
            mean=share("psnr", "done", 3),
            mean_luma=share("psnr_luma", "done", 3),
            worst=worst[0],
            worst_path=worst[1],
        ),
        crf=[*crf] or [None, None],
        resampled=sums["resampled"],
        frames_not_shown=sums["frames_not_shown"],
        damaged=sorted(damaged),
        failures=failures,
    )


def result_paths(folder: Path, plan: RepackPlan) -> list[Path]:
    """Return the paths of the report, the failures and, if the source is a list, the new list."""
    names = [f"{plan.prefix}repack.json", f"{plan.prefix}failed.txt"]
    return [folder / name for name in (*names, plan.list_name) if name]


def write_results(
    folder: Path, plan: RepackPlan, items: list[Item], report: RepackReport
) -> list[Path]:
    """Write the files of :func:`result_paths`; return their paths.

    Failures are lines ``path<TAB>reason``. Without failures, their file is removed.
    """
    written = result_paths(folder, plan)
    write_text(written[0], json.dumps(asdict(report), indent=2) + "\n")
    failures = written[1]
    if report.failures:
        rows = ((failure.path, failure.reason) for failure in report.failures)
        lines = [f"{tsv_cell(path)}\t{tsv_cell(reason)}\n" for path, reason in rows]
        write_text(failures, "".join(lines))
    else:
        failures.unlink(missing_ok=True)
        written.remove(failures)
    if plan.listed is not None:
        assert plan.labels is not None
        failed = {failure.path for failure in report.failures}
        outputs = {item.key: item.output or "" for item in items if item.key not in failed}
        lines = [
            f"{annotation_line(outputs[path], label)}\n"
            for path, label in zip(plan.listed, plan.labels, strict=True)
            if path in outputs
        ]
        write_text(written[-1], "".join(lines))
    return written


def describe_repack(report: RepackReport) -> str:
    """Describe a run for the terminal."""
    size, psnr = report.bytes, report.psnr
    lines = [f"{report.files:,} files: {report.done:,} done, {report.failed:,} failed"]
    if report.done:
        ratio = size.unscaled_ratio
        unscaled = "" if ratio is None else f", {ratio:.2f} x for videos that were not scaled"
        files, streams = (
            f"{before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB"
            for before, after in (
                (size.source, size.output),
                (size.source_video, size.output_video),
            )
        )
        lines += [
            f"  size: {files}; video streams alone {streams}{unscaled}",
            f"  PSNR: {psnr.mean:.2f} dB on average (luma {psnr.mean_luma:.2f}), worst "
            f"{psnr.worst:.2f} ({printable_utf8(str(psnr.worst_path))}); "
            f"crf {report.crf[0]:g} to {report.crf[1]:g}",
            f"  time: {report.seconds:,.0f} s of video in {report.cpu_seconds:,.0f} s of one "
            "core's time",
        ]
    if report.away:
        lines.append(f"  {report.away} finished files whose source is missing now")
    if report.resampled:
        hidden = report.frames_not_shown
        lost = f"; {hidden:,} of their frames are left out" if hidden else ""
        lines.append(f"  {report.resampled} with variable frame rate, which is constant now{lost}")
    if report.damaged:
        damaged, first = len(report.damaged), printable_utf8(report.damaged[0])
        lines.append(
            f"  {damaged} with frames that do not decode or are damaged, for example {first}"
        )
    for kind, words in KINDS.items():
        of_kind = [(f.path, f.reason) for f in report.failures if f.kind == kind]
        if of_kind:
            lines.append(f"  failed: {len(of_kind)} {words}")
            lines += [f"  {line}" for line in shown_failures(of_kind, most=5)]
    return "\n".join(lines)
