"""Results of benchmarks/gpu.sh as plain text."""

from __future__ import annotations

from typing import Any


def table(content: dict[str, Any]) -> str:
    """Return one section for each part that was run."""
    sizes = ", very small sizes: no speed here means anything" if content["smoke"] else ""
    lines = [f"{content['device']}, torch {content['torch']}, {content['cores']} cores{sizes}"]
    for name, part in content["parts"].items():
        state = "" if part["passed"] else ", FAILED"
        state += ", stopped at its limit" if part.get("stopped") else ""
        lines += ["", f"== {name} ({part.get('seconds', 0):.0f} s{state})"]
        show = _SECTIONS.get(name, _plain)
        lines += [_line(key, value, show) for key, value in part["results"].items()]
    return "\n".join(lines)


def _line(name: str, value: dict[str, Any], show: Any) -> str:
    if value.get("left_out"):
        return f"{name:<40} left out: {value['left_out']}"
    if "error" in value:
        return f"{name:<40} ERROR {value['error'] or 'stopped in it'}"
    return f"{name:<40} {show(value)}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def _plain(value: dict[str, Any]) -> str:
    skipped = ("took_s", "reason", "losses", "knn", "host_wait_lines")
    shown = []
    for key, entry in value.items():
        if key in skipped:
            continue
        if isinstance(entry, dict):
            inside = ", ".join(f"{k} {_number(v)}" for k, v in entry.items() if v is not None)
            entry = f"({inside})"
        shown.append(f"{key} {_number(entry)}")
    return ", ".join(shown)


def _parity(value: dict[str, Any]) -> str:
    if "differences" not in value:
        return f"{len(value['losses'])} losses, first {value['losses'][0]:.4f}"
    differences, bounds = value["differences"], value["bounds"]
    shown = ", ".join(f"{k} {v:.1e} (<= {bounds[k]:.0e})" for k, v in differences.items())
    return f"{'ok  ' if value['passed'] else 'FAIL'} {shown}"


def _step(value: dict[str, Any]) -> str:
    if "clips_per_s" not in value or "share_of_measured_peak" not in value:
        return _plain(value)
    text = (
        f"{value['clips_per_s']:8.1f} clips/s, {1e3 * value['step_s']:7.1f} ms, "
        f"{100 * value['share_of_measured_peak']:5.1f} % of peak, "
        f"{value['peak_memory_gib']:5.1f} GiB, batch {value['batch']}"
    )
    if "parts" in value:
        parts = ", ".join(f"{k} {100 * v:.1f}" for k, v in value["parts"].items())
        kinds = ", ".join(f"{k} {v:.1f}" for k, v in value["profile"]["kinds_ms"].items())
        text += f"\n    parts, %: {parts}\n    profiler, ms: {kinds}"
        if "gaps" in value["profile"]:
            text += f"; no kernel in {100 * value['profile']['gaps']:.1f} % of the step"
        text += f"\n    host waits per step: {value['host_waits']}"
        text += "".join(f"\n      {n} x {line}" for line, n in value["host_wait_lines"].items())
    return text


def _input(value: dict[str, Any]) -> str:
    if "steps" not in value or not isinstance(value["steps"], dict):
        return _plain(value)
    needs = (
        f"\n    {step}: {entry['videos_per_s']:.0f} videos/s need {entry['workers']} workers"
        for step, entry in value["steps"].items()
    )
    return f"this machine has {value['cores']} cores{''.join(needs)}"


_SECTIONS = {"parity": _parity, "step": _step, "input": _input}
