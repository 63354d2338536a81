"""Results of a run: lists and reports in files, and a summary for the terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.plan import RepackPlan
from sce_video.jobs import Item, Record
from sce_video.utils.files import write_text
from sce_video.utils.printable import printable_utf8

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

#: Facts of a finished file that are added up.
_SUMMED = (
    "size",
    "bytes",
    "source_video_bytes",
    "video_bytes",
    "seconds",
    "cpu_seconds",
    "psnr",
    "psnr_luma",
    "frames_not_shown",
)


def repack_report(
    items: list[Item],
    record_of: Callable[[str], Record | None],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Totals over some files.

    Args:
        items: The files of the report, each with a record.
        record_of: The record of a path.
        facts: Facts about the run, which come first. ``away``: number of finished files whose
            source does not exist now.

    Returns:
        ``facts``, and:

        - ``files``, ``done``, ``failed``, ``seconds`` of video, ``cpu_seconds``.
        - ``bytes``: ``source``, ``output``, ``source_video``, ``output_video`` (video streams
          alone), ``unscaled_ratio`` (of the streams that were not scaled; None without any).
        - ``psnr`` in dB: ``mean``, ``mean_luma``, ``worst`` (the lower of luma and all planes),
          ``worst_path``; ``crf``: lowest and highest.
        - ``resampled``: files of variable rate, now constant; ``frames_not_shown``: frames of the
          sources that no output frame shows; ``damaged``: files of which not all frames decode.
        - ``failures``: list of ``path``, ``kind``, ``reason``.
    """
    totals = _Totals()
    for item in items:
        record = record_of(item.key)
        if record is not None:
            totals.add(record)
    return {**facts, "files": len(items), **totals.report()}


class _Totals:
    """Totals over records, of which only failures and damaged files are kept."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._crf: list[float] = []  # lowest and highest
        self._worst: tuple[float, str] | None = None
        self._damaged: list[str] = []
        self._failures: list[dict[str, str]] = []

    def add(self, record: Record) -> None:
        """Count a record."""
        if not record.done:
            failure = {"path": record.key, "kind": _kind(record), "reason": _reason(record)}
            self._failures.append(failure)
            return
        entry = {**(record.source or {}), **record.facts}
        self._sums.update({"done": 1, **{name: entry[name] for name in _SUMMED}})
        if not entry["scaled"]:
            self._sums["unscaled_source"] += entry["source_video_bytes"]
            self._sums["unscaled_output"] += entry["video_bytes"]
        self._sums["resampled"] += not entry["constant"]
        self._crf = [f([*self._crf, entry["crf"]]) for f in (min, max)]
        psnr = min(entry["psnr"], entry["psnr_luma"])
        if self._worst is None or psnr < self._worst[0]:
            self._worst = psnr, record.key
        if entry["source_frames"] < entry["source_promised"]:
            self._damaged.append(record.key)

    def report(self) -> dict[str, Any]:
        """The entries of :func:`repack_report` besides the facts."""
        sums, worst = self._sums, self._worst or (None, None)
        source, output = sums["unscaled_source"], sums["unscaled_output"]
        return {
            "done": sums["done"],
            "failed": len(self._failures),
            "bytes": {
                "source": sums["size"],
                "output": sums["bytes"],
                "source_video": sums["source_video_bytes"],
                "output_video": sums["video_bytes"],
                "unscaled_ratio": round(output / source, 4) if source else None,
            },
            "seconds": round(sums["seconds"], 3),
            "cpu_seconds": round(sums["cpu_seconds"], 3),
            "psnr": {
                "mean": self._mean("psnr"),
                "mean_luma": self._mean("psnr_luma"),
                "worst": worst[0],
                "worst_path": worst[1],
            },
            "crf": self._crf or [None, None],
            "resampled": sums["resampled"],
            "frames_not_shown": sums["frames_not_shown"],
            "damaged": sorted(self._damaged),
            "failures": self._failures,
        }

    def _mean(self, name: str) -> float | None:
        done = self._sums["done"]
        return round(self._sums[name] / done, 3) if done else None


def _kind(record: Record) -> str:
    """The kind of a failure as a key of :data:`KINDS`."""
    return {"changed": "bad", "error": "crash", "lost": "crash"}.get(record.kind, record.kind)


def _reason(record: Record) -> str:
    return f"{record.reason} (--timeout)" if record.kind == "timeout" else record.reason


def result_paths(folder: Path, plan: RepackPlan) -> list[Path]:
    """Paths of the report, the failures and, for a list, the new list."""
    names = [f"{plan.base}repack.json", f"{plan.base}failed.txt"]
    return [folder / name for name in (*names, plan.list_name) if name]


def write_results(
    folder: Path, plan: RepackPlan, items: list[Item], report: dict[str, Any]
) -> list[Path]:
    """Write the report, the failures (``path<TAB>reason``) and, for a list, the new list.

    Args:
        folder: Folder to write to.
        plan: The data set.
        items: The files of the report.
        report: From :func:`repack_report`.

    Returns:
        The paths of the files written.
    """
    written = result_paths(folder, plan)
    write_text(written[0], json.dumps(report, indent=2) + "\n")
    failures = written[1]
    if report["failures"]:
        rows = (f"{_line(f['path'])}\t{_line(f['reason'])}\n" for f in report["failures"])
        write_text(failures, "".join(rows))
    else:
        failures.unlink(missing_ok=True)
        written.remove(failures)
    if plan.listed is not None:
        failed = {failure["path"] for failure in report["failures"]}
        outputs = {item.key: item.output or "" for item in items if item.key not in failed}
        assert plan.labels is not None
        lines = [
            f"{outputs[path]}{_label(label, outputs[path])}\n"
            for path, label in zip(plan.listed, plan.labels, strict=True)
            if path in outputs
        ]
        write_text(written[-1], "".join(lines))
    return written


def _label(label: int, path: str) -> str:
    if label < 0:
        return ""
    return f"\t{label}" if "\t" in path else f" {label}"


def _line(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ")


def describe_repack(report: dict[str, Any], examples: int = 5) -> str:
    """Lines for the terminal."""
    size, psnr = report["bytes"], report["psnr"]
    lines = [f"{report['files']:,} files: {report['done']:,} done, {report['failed']:,} failed"]
    if report["done"]:
        lines.append(
            f"  size: {_mega(size['source'])} -> {_mega(size['output'])}; video streams alone "
            f"{_mega(size['source_video'])} -> {_mega(size['output_video'])}"
            + (
                f", {size['unscaled_ratio']:.2f} x for those not scaled"
                if size["unscaled_ratio"] is not None
                else ""
            )
        )
        lines.append(
            f"  PSNR: {psnr['mean']:.2f} dB on average (luma {psnr['mean_luma']:.2f}), worst "
            f"{psnr['worst']:.2f} ({printable_utf8(psnr['worst_path'])}); "
            f"crf {report['crf'][0]:g} to {report['crf'][1]:g}"
        )
        lines.append(
            f"  time: {report['seconds']:,.0f} s of video in {report['cpu_seconds']:,.0f} s of one "
            "core's time"
        )
    if report["away"]:
        lines.append(f"  {report['away']} of the done whose source does not exist now")
    if report["resampled"]:
        hidden = report["frames_not_shown"]
        lines.append(
            f"  {report['resampled']} of variable frame rate, now constant"
            + (f"; {hidden:,} of their frames are never shown" if hidden else "")
        )
    if report["damaged"]:
        first = printable_utf8(report["damaged"][0])
        lines.append(
            f"  {len(report['damaged'])} with frames that do not decode, for example {first}"
        )
    counts = Counter(failure["kind"] for failure in report["failures"])
    for kind, words in KINDS.items():
        if not counts[kind]:
            continue
        lines.append(f"  failed: {counts[kind]} {words}")
        of_kind = [failure for failure in report["failures"] if failure["kind"] == kind]
        shown = [printable_utf8(f"{f['path']}: {f['reason']}") for f in of_kind[:examples]]
        lines += [f"    {line}" for line in shown]
        if len(of_kind) > examples:
            lines.append(f"    ... and {len(of_kind) - examples} more")
    return "\n".join(lines)


def _mega(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
