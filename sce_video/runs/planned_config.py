"""Config of a planned run, read from ``run.json`` as data."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.checkpoint import find_checkpoints, load_checkpoint_file
from sce_video.engine.config.check import top_level_keys
from sce_video.engine.config.differences import differences
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import (
    parse_config_text,
    plain,
    resolved_config,
    stored_config,
)
from sce_video.engine.recipes import (
    FROZEN_FEATURES,
    LARGE_RECIPE,
    STUDENT_RECIPE,
    finetunings,
    methods,
)
from sce_video.engine.run_json import read_run_json
from sce_video.engine.weights import checked_backbone
from sce_video.options.training import TRACKERS
from sce_video.pages.run_record import different_settings
from sce_video.registry import (
    DATASETS,
    HOOKS,
    METRICS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    TRANSFORMS,
    named_class,
)
from sce_video.runs.configs import training_config
from sce_video.utils.files import read_text
from sce_video.utils.own_parts import advise_imports
from sce_video.utils.records import at
from sce_video.utils.run_files import CONFIG, RANDOM, RUN_JSON, is_model
from sce_video.utils.storage import STORES, trusted_stores
from sce_video.utils.stored_arguments import constructor_parameters, takes_words

#: Registries whose classes a plan may add to its recipe. Trackers and loops are excluded.
_ADDED = (
    *(DATASETS, HOOKS, METRICS, MODELS, TRANSFORMS),
    *(OPTIM_WRAPPERS, OPTIM_WRAPPER_CONSTRUCTORS),
)
#: Settings that say where the run and its videos are
_OF_THE_RUN = (
    *("ann_file", "class_file", "group_file", "data_root", "extensions", "run_dir"),
    *("teacher_checkpoint", "work_dir"),
)
#: JSON's names for the containers in a config
_KINDS = {dict: "an object", list: "a list"}


def resumable_config(
    path: Path,
    *,
    resume: bool = False,
    track: Sequence[str] = (),
    mirror: str | None = None,
    videos: str | Path | None = None,
) -> Config:
    """Return the config of a planned run to begin it or, with ``resume``, to continue it.

    Args:
        path: ``RUN/config.py``. The ``run.json`` next to it is read (:func:`planned_config`).
        resume: Whether to continue from the newest readable checkpoint, if there is one.
        track: Trackers to use in addition to the run's files: "wandb", "mlflow".
        mirror: Folder in an object store to which checkpoints and logs are copied.
        videos: Table in an object store that the config may name.

    Raises:
        ValueError: If :func:`planned_config` raises it, ``path`` was edited after ``run.json`` was
            written, or the newest checkpoint was trained with another config. In the last case, the
            run would continue with other settings.
    """
    planned = planned_config(path.parent, mirror, track, videos)
    if resume:
        check_unedited(path)
    cfg = training_config(
        planned,
        work_dir=path.parent,
        resume="auto" if resume else None,
        track=track,
        mirror=mirror,
    )
    for checkpoint in find_checkpoints(path.parent) if at(cfg, "resume") else ():
        with suppress(ValueError):  # the checkpoint may be damaged or contain no config
            content = load_checkpoint_file(checkpoint, merge_adapters=False)
            stored = stored_config(content, checkpoint)
            changed = differences(resolved_config(planned), stored)
            break
    else:
        return cfg
    # A resumed run may have a different length, because its schedules are stretched.
    changed = [d for d in changed if d.key != "train_cfg.max_epochs"]
    if changed:
        shown = "; ".join(map(str, changed[:5]))
        if len(changed) > 5:
            shown += f"; and {len(changed) - 5} more"
        raise ValueError(
            f"the config in {path.with_name(RUN_JSON)} is not the one that {checkpoint.name} was "
            f"trained with ({shown}). Undo the change, or start again with --overwrite. To use the "
            f"settings of the config file: sce-video train {path} --resume"
        )
    return cfg


def check_unedited(path: Path) -> None:
    """Raise ValueError if the user has edited ``RUN/config.py`` since ``run.json`` was written."""
    if not path.is_file():
        return
    text = read_text(path, "replace")
    edited = parse_config_text(text, str(path))
    changes = different_settings([read_run_json(path.parent).config, edited])
    for name, (recorded, written) in changes.items():
        raise ValueError(
            f"{path} was edited ({name}: {recorded:.60} -> {written:.60}), but --resume reads "
            f"{RUN_JSON}, not this file. Undo the change, or train the edited config: sce-video "
            f"train {path} --resume"
        )


def planned_config(
    folder: str | Path,
    mirror: str | None = None,
    track: Sequence[str] = (),
    videos: str | Path | None = None,
) -> Config:
    """Return the config in a folder's ``run.json`` as data. No code in it is executed.

    The config may have been changed since it was planned, and may be untrusted. Numbers and
    booleans are accepted. Text could name a file, an address or code, so it must meet one of these
    conditions: the recipe contains it, it names a class of this package or of an imported module,
    or the class that receives it declares that it only compares the text with known words
    (:data:`~sce_video.utils.stored_arguments.Word`).

    Args:
        folder: Folder of the run.
        mirror: Folder in an object store that the config may name.
        track: Trackers that the config may name.
        videos: Table in an object store that the config may name.

    Raises:
        FileNotFoundError: If the folder has no ``run.json``.
        ValueError: If the file does not describe a planned run, or contains other text.
    """
    path, program = Path(folder, RUN_JSON), Path(folder, CONFIG)
    advice = f"To run its config as a program, if you trust it: sce-video train {program} --resume"
    if not path.is_file() and program.is_file():
        raise ValueError(
            f"{folder} contains no {RUN_JSON}, so sce-video pretrain or finetune did not plan this "
            f"run, or an older version planned it. {advice}"
        )
    run = read_run_json(folder)
    if run.plan is None:
        raise ValueError(f"{path} describes a run of sce-video {run.command:.40}. {advice}")
    if lacking := advise_imports(run.environment.get("imports")):
        raise ValueError(f"{path} describes a run with parts of the user's own. {lacking}")
    recipe, stored = run.plan.recipe, dict(run.config)
    classifiers = (*finetunings(), FROZEN_FEATURES)
    if recipe not in (*methods().values(), LARGE_RECIPE, STUDENT_RECIPE, *classifiers):
        raise ValueError(
            f"{path} names {recipe!r:.100}, which is not a recipe of pretrain or finetune. {advice}"
        )
    base = load_config(recipe)
    if problem := _other_shape(stored, base):
        raise ValueError(f"{path} does not describe a run: {problem}. {advice}")
    for name in ("experiment_name", "launcher"):  # an earlier start may have set them
        stored.pop(name, None)
    # The caller decides which checkpoint to resume from, because the file is not trusted.
    stored |= {"load_from": None, "resume": False}
    named = dict(stored)
    # A run that started from a network states its backbone and the path to its file. Refuse a hub
    # name or a URL, because loading it would send a request.
    if "pretrained" in named and (model := at(stored, "model", dict)) is not None:
        model["backbone"] = checked_backbone(at(model, "backbone"))
        named["model"] = {key: value for key, value in model.items() if key != "backbone"}
    start = str(at(named, "pretrained"))
    if os.path.isabs(start) or start == RANDOM:
        del named["pretrained"]
    known = {*_texts(base), *trusted_stores(videos), *(TRACKERS[name].backend for name in track)}
    if mirror is not None:
        known.add(mirror)
    strange = next(_unexpected(named, known), None)
    if strange is not None:
        raise ValueError(
            f"{path} names {strange!r:.100}, which is neither in the recipe {recipe} nor a word "
            "that a class of sce_video accepts. Give a mirror or a tracker again, and name object "
            f"stores with videos in {STORES}. {advice}"
        )
    # Pass cfg_text, because mmengine would otherwise read the file with this name.
    return Config(stored, cfg_text=str(path), filename=str(program))


def _other_shape(config: Mapping[str, Any], recipe: Config) -> str | None:
    """Describe a config part that is not an object or a list as in the recipe; None if all match.

    The types of single values are checked by the classes that use them.
    """
    for name in sorted(config.keys() - top_level_keys()):
        return f"config has the unknown key {name!r:.60}"
    for name, value in plain(recipe).items():
        given = at(config, name)
        if not isinstance(value, dict | list) or (given is None and name != "default_hooks"):
            continue
        if not isinstance(given, type(value)):
            return f"config.{name} must be {_KINDS[type(value)]}, got {given!r:.60}"
        wrong = [entry for entry in given if not isinstance(entry, dict)]
        if isinstance(value, list) and wrong:
            return f"config.{name} must be a list of objects, got {wrong[0]!r:.60}"
    return None


def _unexpected(
    node: Any, known: Collection[str], words: bool = False, of_run: bool = False
) -> Iterator[str]:
    """Yield the texts in a config that no trusted source contains.

    Args:
        node: Part of the config.
        known: Texts that are allowed everywhere.
        words: Whether the class that receives this part only compares it with known words.
        of_run: Whether the part locates the run or its videos, so that any path is allowed.
    """
    if isinstance(node, dict):
        parameters = constructor_parameters(named_class(at(node, "type"), *_ADDED))
        parameters |= constructor_parameters(named_class(at(node, "constructor"), *_ADDED))
        for name, value in node.items():
            if name in ("type", "constructor") and named_class(value, *_ADDED) is not None:
                continue
            if name in parameters:
                allowed = takes_words(parameters[name].annotation)
            else:
                allowed = words and "type" not in node
            yield from _unexpected(value, known, allowed, of_run or name in _OF_THE_RUN)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _unexpected(value, known, words, of_run)
    elif isinstance(node, str) and node not in known:
        is_word = words and node.isidentifier()
        is_path = of_run and "://" not in node and not is_model(node)
        if not (is_word or is_path):
            yield node


def _texts(node: Any) -> Iterator[str]:
    """Yield all texts in a recipe."""
    if isinstance(node, dict | Config):
        node = [value for _, value in node.items()]
    if isinstance(node, list | tuple | set):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, str):
        yield node
