"""A plan for 1, 10 and 100 million videos, from measured costs of one.

    python benchmarks/scale_plan.py UNIT_COSTS.json [--cores 256] [--dimensions 512]
        [--videos-per-gpu 446]

UNIT_COSTS.json is that of benchmarks/unit_costs.py. Printed are the tables of docs/scale.md:
storage, core hours and hours on so many cores, the driver, network and requests of a GPU that
trains so many videos per second, memory of a rank.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COUNTS = (10**6, 10**7, 10**8)
_FRAMES = 16  # of two clips: one request each from a table in an object store


def amount(value: float, units: Sequence[str], step: float) -> str:
    """A number of two or three digits with its unit."""
    for unit in units[:-1]:
        if value < step:
            return f"{value:.3g} {unit}"
        value /= step
    return f"{value:,.0f} {units[-1]}" if value >= 1000 else f"{value:.3g} {units[-1]}"


def size(value: float) -> str:
    """Bytes, with decimal units."""
    return amount(value, ("B", "kB", "MB", "GB", "TB"), 1000)


def hours(value: float) -> str:
    """Seconds as minutes, hours or days."""
    found = value / 3600
    if found < 1:
        return f"{60 * found:.1f} min"
    return f"{found:,.1f} h" if found < 100 else f"{found / 24:,.0f} days"


def table(title: str, rows: dict[str, Callable[[int], str]]) -> str:
    """A Markdown table: a row per name, a column per number of videos."""
    heads = [f"{count // 10**6} million" for count in COUNTS]
    lines = [f"| {title} | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name, value in rows.items():
        lines.append(f"| {name} | " + " | ".join(value(count) for count in COUNTS) + " |")
    return "\n".join(lines)


def plan(costs: dict[str, Any], cores: int, dimensions: int, videos_per_gpu: float) -> str:
    """The tables."""
    video, driver, opened = costs["video"], costs["driver"], costs["table"]
    row = video["bytes_repacked"] + opened["row_bytes"]
    per_row = opened["open_mib"] * 2**20 / costs["rows"]
    storage = table(
        "storage",
        {
            "originals": lambda n: size(n * video["bytes_original"]),
            "repacked, or a table": lambda n: size(n * row),
            "of it the frame indexes": lambda n: size(n * video["bytes_index"]),
            f"features, {dimensions} numbers": lambda n: size(n * 4 * dimensions),
            "records of one job": lambda n: size(n * driver["record_bytes"]),
        },
    )
    steps = {
        "verify": video["verify"],
        "repack": video["repack"],
        "import": video["import"],
        "repack and import": video["repack"] + video["import"],
        "views of 4 clips, originals": video["views_original"],
        "views of 4 clips, repacked": video["views_repacked"],
    }
    work = table(
        f"core hours; time on {cores} cores",
        {
            f"{name} ({1000 * cost:,.0f} ms)": lambda n, cost=cost: (
                f"{n * cost / 3600:,.0f}; {hours(n * cost / cores)}"
            )
            for name, cost in steps.items()
        },
    )
    most = 1 / driver["cpu_first"]
    drivers = table(
        "the driver of a job",
        {
            f"its own time ({1e6 * driver['cpu_first']:.0f} µs an item)": lambda n: hours(
                n * driver["cpu_first"]
            ),
            f"a second run ({1e6 * driver['cpu_again']:.0f} µs an item)": lambda n: hours(
                n * driver["cpu_again"]
            ),
        },
    )
    reading = "\n".join(
        [
            f"| a GPU that trains {videos_per_gpu:.0f} videos/s reads | |",
            "|---|---|",
            f"| originals | {size(videos_per_gpu * video['bytes_original'])}/s |",
            f"| repacked files, whole | {size(videos_per_gpu * video['bytes_repacked'])}/s |",
            f"| frames from a table | {size(videos_per_gpu * video['bytes_two_clips'])}/s in up to "
            f"{videos_per_gpu * _FRAMES:,.0f} requests/s |",
        ]
    )
    limit = (
        f"One driver keeps up with {most:,.0f} items/s: "
        f"{most * steps['repack']:,.0f} cores that repack. In {costs['items']:,} items its memory "
        f"grew by {driver['mib_first']:.1f} MiB."
    )
    memory = table(
        "rows of a table, opened",
        {
            f"memory of a rank ({per_row:.0f} B a row)": lambda n: size(n * per_row),
            "seconds of a core": lambda n: f"{n * opened['open_cpu'] / costs['rows']:,.0f} s",
        },
    )
    return "\n\n".join([storage, work, drivers, limit, reading, memory]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("costs", type=Path, metavar="UNIT_COSTS.json")
    parser.add_argument("--cores", type=int, default=256)
    parser.add_argument("--dimensions", type=int, default=512, help="of a feature")
    parser.add_argument("--videos-per-gpu", type=float, default=446, help="trained per second")
    args = parser.parse_args(argv)
    costs = json.loads(args.costs.read_text())
    print(plan(costs, args.cores, args.dimensions, args.videos_per_gpu), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
