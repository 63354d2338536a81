"""Makes the page that compares runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sce_video.apis.chance_of_differences import chance_of_differences
from sce_video.apis.config_differences import different_settings
from sce_video.apis.run_folder import read_run
from sce_video.utils.atomic_file import write_text
from sce_video.visualization.run_page.comparison import render_comparison
from sce_video.visualization.run_page.differences import Chance


def write_comparison(runs: Sequence[str | Path], out: str | Path) -> Chance:
    """Write the page of two or more runs.

    Returns:
        Which differences of their results are within chance, as the page says.

    Raises:
        FileNotFoundError: a folder does not exist.
        ValueError: fewer than two runs, one given twice, a folder without a training, or a name
            that does not end in .html.
        WriteError: the page cannot be written.
    """
    if Path(out).suffix not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {str(out)!r}")
    folders = [Path(run).resolve() for run in runs]
    if len(folders) < 2:
        raise ValueError("give two runs or more; sce-video report RUN shows a single one")
    double = next(
        (run for run, path in zip(runs, folders, strict=True) if folders.count(path) > 1), 0
    )
    if double:
        raise ValueError(f"{double} is given twice")
    records = [
        replace(read_run(folder), name=name)
        for folder, name in zip(folders, distinct_names(folders), strict=True)
    ]
    settings = different_settings([record.config for record in records])
    chance = chance_of_differences(records)
    write_text(out, render_comparison(records, settings, chance))
    return chance


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The name of each folder, or the path below the folder they share where names repeat."""
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    shared = os.path.commonpath(folders)
    return [str(folder.relative_to(shared)) for folder in folders]
