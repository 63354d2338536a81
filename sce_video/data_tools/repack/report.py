"""Results of a run: lists and reports in files, and a summary for the terminal."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.utils.atomic_file import write_text
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


def build_report(
    plan: Plan, items: list[Item], entries: dict[str, dict[str, Any]], facts: dict[str, Any]
) -> dict[str, Any]:
    """Totals over some files.

    Args:
        plan: The data set.
        items: The files of the report, each with an entry.
        entries: Entries of the journal by path.
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
    done = [entries[item.path] for item in items if entries[item.path]["status"] == "done"]
    failed = [entries[item.path] for item in items if entries[item.path]["status"] == "failed"]
    same_size = [entry for entry in done if not entry["scaled"]]
    source, output = (
        sum(entry[key] for entry in same_size) for key in ("source_video_bytes", "video_bytes")
    )
    worst = min(done, key=_worse, default=None)
    return {
        **facts,
        "files": len(items),
        "done": len(done),
        "failed": len(failed),
        "bytes": {
            "source": sum(entry["size"] for entry in done),
            "output": sum(entry["bytes"] for entry in done),
            "source_video": sum(entry["source_video_bytes"] for entry in done),
            "output_video": sum(entry["video_bytes"] for entry in done),
            "unscaled_ratio": round(output / source, 4) if source else None,
        },
        "seconds": round(sum(entry["seconds"] for entry in done), 3),
        "cpu_seconds": round(sum(entry["cpu_seconds"] for entry in done), 3),
        "psnr": {
            "mean": _mean([entry["psnr"] for entry in done]),
            "mean_luma": _mean([entry["psnr_luma"] for entry in done]),
            "worst": _worse(worst) if worst else None,
            "worst_path": worst["path"] if worst else None,
        },
        "crf": [_of(min, done), _of(max, done)],
        "resampled": sum(not entry["constant"] for entry in done),
        "frames_not_shown": sum(entry["frames_not_shown"] for entry in done),
        "damaged": sorted(
            entry["path"] for entry in done if entry["source_frames"] < entry["source_promised"]
        ),
        "failures": [
            {"path": entry["path"], "kind": entry["kind"], "reason": entry["reason"]}
            for entry in failed
        ],
    }


def _worse(entry: dict[str, Any]) -> float:
    return min(entry["psnr"], entry["psnr_luma"])


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _of(choose: Any, done: list[dict[str, Any]]) -> float | None:
    return choose((entry["crf"] for entry in done), default=None)


def result_paths(folder: Path, plan: Plan, suffix: str = "") -> list[Path]:
    """Paths of the report, the failures and, for a list, the new list.

    Args:
        folder: Their folder.
        plan: The data set.
        suffix: Appended to the names, for a shard.
    """
    paths = [folder / f"{plan.base}repack{suffix}.json", folder / f"{plan.base}failed{suffix}.txt"]
    if plan.listed is not None:
        stem, ending = os.path.splitext(plan.list_name)
        paths.append(folder / f"{stem}{suffix}{ending}")
    return paths


def write_results(
    folder: Path, plan: Plan, items: list[Item], report: dict[str, Any], suffix: str = ""
) -> list[Path]:
    """Write the report, the failures (``path<TAB>reason``) and, for a list, the new list.

    Args:
        folder: Folder to write to.
        plan: The data set.
        items: The files of the report.
        report: From :func:`build_report`.
        suffix: Appended to the names, for a shard.

    Returns:
        The paths of the files written.
    """
    written = result_paths(folder, plan, suffix)
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
        outputs = {item.path: item.output for item in items if item.path not in failed}
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


def summarize(report: dict[str, Any], examples: int = 5) -> str:
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
