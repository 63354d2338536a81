"""Content of a run's folder, even if the folder is incomplete or damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sce_video.engine.checkpoint import find_checkpoints, is_plain, load_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import recorded_training
from sce_video.engine.recipes import recipe_names
from sce_video.engine.run_json import RunDescription, read_run_json
from sce_video.engine.work_dir import is_locked
from sce_video.evaluation.random_weights import is_comparison
from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.pages.run_record import (
    AlarmLine,
    BadFileLine,
    Row,
    RunRecord,
    RunResult,
    different_settings,
    flattened,
    read_alarms,
    read_bad_files,
    read_history,
    read_online_evaluations,
    read_scalars,
    read_validations,
)
from sce_video.registry import MODELS, named_class
from sce_video.reporting.result_files import collect_results
from sce_video.runs.keep_best import kept_message
from sce_video.utils.records import at, lenient_record
from sce_video.utils.run_files import ALARMS, BAD_FILES, HISTORY, KEPT, RUN_JSON, check_run_folder

#: Small backbone with which a method is built in order to read its chance level. The level does not
#: depend on the backbone.
_BACKBONE = {"type": "ResNet2d", "depth": 18, "base_channels": 4}


def chance_level(config: Mapping[str, Any]) -> float | None:
    """Return the chance level of a config's method; None if it has none or cannot be built.

    Only methods of this package and of imported modules are built. They get a small network,
    because the config may be untrusted.
    """
    model = at(config, "model", dict) or {}
    kind = named_class(at(model, "type"), MODELS)
    if kind is None or not issubclass(kind, SelfSupervisedModel):
        return None
    settings = {**model, "backbone": _BACKBONE, "data_preprocessor": None}
    heads = [value for value in settings.values() if isinstance(value, dict)]
    if any(head.get("type", "MLP") not in ("MLP", "ResNet2d") for head in heads):
        return None
    # If a part names a scope, mmengine would import the package of the scope.
    if any("_scope_" in part for part in (settings, *heads)):
        return None
    with contextlib.suppress(Exception):  # a constructor may raise any error for a wrong argument
        return MODELS.build(settings).chance_level()
    return None


def read_run(folder: str | Path) -> RunRecord:
    """Read everything except pictures in a run's folder, with notes on missing or damaged data.

    The settings come from ``run.json``.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the folder contains no training run.
    """
    path = Path(folder)
    check_run_folder(path)
    notes: list[str] = []
    description = _description(path, notes)
    config = {} if description is None else description.config
    recipe = _recipe_of(description)
    changes: dict[str, list[str]] = {}
    if config and recipe in recipe_names():
        changes = different_settings([load_config(recipe).to_dict(), config])
    checkpoints = [*filter(Path.is_file, [path / KEPT]), *find_checkpoints(path)]
    # Read only the results in the folder itself, and not those in its sub-folders.
    results = collect_results([*filter(Path.is_file, sorted(path.glob("*.json")))]).results
    compared = read_validations(path, [], kind="random")

    def rows(read: Callable[[Path, list[str]], list[dict]], name: str) -> list[Row]:
        """Read the rows of a file, and count damaged lines in a note."""
        damaged: list[str] = []
        found: list[Row] = []
        with contextlib.suppress(FileNotFoundError):
            found = read(path, damaged)
        if damaged:
            count = f"{len(damaged)} line{'s' * (len(damaged) != 1)}"
            first = f"the first: {damaged[0]}."
            notes.append(f"{count} of the {name} are damaged and left out; {first}")
        return found

    scalars, history = rows(read_scalars, "log"), rows(read_history, HISTORY)
    bad_files = rows(read_bad_files, BAD_FILES)
    if kept := kept_message(path):  # the message states which checkpoint is the result
        notes.append(f"{kept}.")
    if not scalars:
        notes.append("No training step has been logged yet. Make the page again later.")
    return RunRecord(
        name=path.resolve().name,
        folder=str(path.resolve()),
        config=config,
        config_text="\n".join(f"{name} = {value}" for name, value in flattened(config).items()),
        recipe=recipe,
        description=description,
        changes=[(name, a, b) for name, (a, b) in changes.items()],
        scalars=scalars,
        evaluations=rows(read_online_evaluations, "online_evaluation.jsonl"),
        # The damaged lines of this log were already counted when the scalars were read. Most
        # pretraining runs have no validation, so do not read their log again.
        validations=read_validations(path, []) if config.get("val_dataloader", not config) else [],
        compared=next(filter(is_comparison, reversed(compared)), {}),  # newest complete comparison
        alarms=[lenient_record(AlarmLine, row) for row in rows(read_alarms, ALARMS)],
        history=history,
        bad_files=[lenient_record(BadFileLine, row) for row in bad_files],
        results={Path(r.name).name: RunResult(r.metrics, r.intervals) for r in results},
        data=_data(history, checkpoints, notes),
        checkpoints=[checkpoint.name for checkpoint in checkpoints],
        chance=(at(scalars[-1], "chance_level") if scalars else None) or chance_level(config),
        locked=is_locked(path),
        notes=notes,
    )


def _description(path: Path, notes: list[str]) -> RunDescription | None:
    """Read ``run.json``; return None and add a note if it is missing or cannot be read."""
    try:
        return read_run_json(path)
    except FileNotFoundError:
        notes.append(
            f"There is no {RUN_JSON}, so the settings are not shown. Training has not begun, or an "
            "older version trained this run."
        )
    except (OSError, ValueError) as error:
        notes.append(f"{error}.")
    return None


def _recipe_of(description: RunDescription | None) -> str:
    """Return the recipe of a planned run, or a recipe named as a run's config; empty if none."""
    if description is None:
        return ""
    if description.plan is not None:
        return description.plan.recipe
    stem = Path(str(at(description.request, "config"))).stem
    return stem if stem in recipe_names() else ""


def _data(history: list[Row], checkpoints: list[Path], notes: list[str]) -> Row:
    """Return facts about the training set from the history or the newest checkpoint."""
    for row in reversed(history):
        if (data := at(row, "data", dict)) is not None:
            return data
    try:
        training = recorded_training(load_checkpoint_file(checkpoints[0])) if checkpoints else None
    except (OSError, ValueError) as error:
        notes.append(f"{error}.")
        return {}
    data = at(training, "data", dict)
    return data if is_plain(data) and data else {}
