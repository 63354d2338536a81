"""Reads what a training has left in its folder, however little or damaged it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sce_video.apis.chance import chance_level
from sce_video.apis.config_differences import differences
from sce_video.apis.config_text import parse_config_text
from sce_video.engine.checkpoint import find_checkpoints, is_plain, load_checkpoint_file
from sce_video.engine.config import load_config
from sce_video.engine.recipes import recipe_names
from sce_video.engine.work_dir import CONFIG, config_of_run, is_locked
from sce_video.evaluation.random_weights import is_comparison
from sce_video.reporting.result_files import Result, collect_results
from sce_video.utils.json_files import read_json_lines
from sce_video.utils.run_files import ALARMS, HISTORY, check_run_folder
from sce_video.visualization.curves import (
    read_alarms,
    read_history,
    read_online_evaluations,
    read_scalars,
    read_validations,
)
from sce_video.visualization.run_page.record import RunRecord
from sce_video.visualization.run_page.tables import plan_of

_BAD_FILES = "bad_files.jsonl"


def read_run(folder: str | Path) -> RunRecord:
    """Everything in the folder of a run but pictures; what is missing or damaged is a note.

    The config is parsed as data and not executed.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: the folder holds no training.
    """
    path = Path(folder)
    check_run_folder(path)
    notes: list[str] = []
    config_file, text, config = _config(path, notes)
    recipe = _recipe(config_file, config)
    found = find_checkpoints(path)
    results = _results(path)
    history = _without_damaged(read_history, path, HISTORY, notes)
    return RunRecord(
        name=path.resolve().name,
        folder=str(path.resolve()),
        config_file=config_file,
        config=config,
        config_text=text,
        recipe=recipe,
        changes=_changes(recipe, config),
        scalars=_scalars(path, notes),
        evaluations=_without_damaged(
            read_online_evaluations, path, "online_evaluation.jsonl", notes
        ),
        validations=_validations(path, config),
        compared=_compared(path),
        alarms=_without_damaged(read_alarms, path, ALARMS, notes),
        history=history,
        bad_files=_without_damaged(_read_bad_files, path, _BAD_FILES, notes),
        results={name: result.metrics for name, result in results.items()},
        intervals={name: result.intervals for name, result in results.items()},
        data=_data(history, found, notes),
        checkpoints=[checkpoint.name for checkpoint in found],
        chance=chance_level(config),
        locked=is_locked(path),
        notes=notes,
    )


def _config(path: Path, notes: list[str]) -> tuple[str, str, dict[str, Any]]:
    """Path, text and content of the config; empty with a note if it cannot be read as data."""
    try:
        file = config_of_run(path)
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{error}: settings are not shown.")
        return "", "", {}
    try:
        return str(file), text, parse_config_text(text, str(file))
    except ValueError as error:
        notes.append(f"{error}; the page shows its text only.")
        return str(file), text, {}


def _recipe(config_file: str, config: dict[str, Any]) -> str:
    """The recipe that a config comes from: that of its plan, or the one of its name."""
    planned = (c[1] for c in plan_of(config).choices if c[0] == "recipe")
    stem = Path(config_file).stem if config_file else ""
    return next(planned, stem if stem != Path(CONFIG).stem and stem in recipe_names() else "")


def _changes(recipe: str, config: dict[str, Any]) -> list[tuple[str, str, str]]:
    if not recipe or recipe not in recipe_names() or not config:
        return []
    return differences(load_config(recipe).to_dict(), config)


def _scalars(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    damaged: list[str] = []
    try:
        rows = read_scalars(path, damaged)
    except FileNotFoundError:
        notes.append(
            "No step has been logged yet, so there are no curves: make the page again later."
        )
        return []
    if not rows:
        notes.append("The log holds no training step yet: make the page again later.")
    _note_damaged(damaged, "log", notes)
    return rows


def _validations(path: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the validation, which most pretrainings do not have: their log is read once."""
    if config and not config.get("val_dataloader"):
        return []
    return read_validations(path, [])  # damaged lines are counted with the scalars


def _compared(path: Path) -> dict[str, Any]:
    """The newest comparison with random weights that is whole; empty if there is none."""
    rows = read_validations(path, [], kind="random")
    return next((row for row in reversed(rows) if is_comparison(row)), {})


def _without_damaged(
    read: Callable[[Path, list[str]], list[dict[str, Any]]], path: Path, name: str, notes: list[str]
) -> list[dict[str, Any]]:
    """The rows of a file; damaged lines are counted in a note."""
    damaged: list[str] = []
    rows = read(path, damaged)
    _note_damaged(damaged, name, notes)
    return rows


def _read_bad_files(path: Path, damaged: list[str]) -> list[dict[str, Any]]:
    file = path / _BAD_FILES
    return [row for _, row in read_json_lines(file, damaged)] if file.is_file() else []


def _note_damaged(damaged: list[str], name: str, notes: list[str]) -> None:
    if damaged:
        count = f"{len(damaged)} line{'s' * (len(damaged) != 1)}"
        notes.append(f"{count} of the {name} are damaged and left out; the first: {damaged[0]}.")


def _results(path: Path) -> dict[str, Result]:
    """The files with results in the folder itself, not in folders below it."""
    files = [file for file in sorted(path.glob("*.json")) if file.is_file()]
    return {Path(r.name).name: r for r in collect_results(files).results}


def _data(history: list[dict[str, Any]], found: list[Path], notes: list[str]) -> dict[str, Any]:
    """Facts of the training set: of the history, else of the newest readable checkpoint."""
    for row in reversed(history):
        if isinstance(row.get("data"), dict):
            return row["data"]
    for data in _recorded_data(found[:1], notes):
        return data
    return {}


def _recorded_data(found: list[Path], notes: list[str]) -> Iterator[dict[str, Any]]:
    for path in found:
        try:
            meta = load_checkpoint_file(path).get("meta")
        except (OSError, ValueError) as error:
            notes.append(f"{error}.")
            continue
        training = meta.get("training") if isinstance(meta, dict) else None
        data = training.get("data") if isinstance(training, dict) else None
        if isinstance(data, dict) and is_plain(data):
            yield data
