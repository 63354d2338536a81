"""Complete recipe of a training run on one page, with the source of each value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from mmengine.config import Config

from sce_video.engine.config.changes import leaves, named_path, parse_value
from sce_video.engine.config.check import top_level_keys
from sce_video.engine.config.inheritance import source_of
from sce_video.engine.config.load import load_config, value_sources
from sce_video.engine.config.snapshot import plain
from sce_video.engine.hooks.checkpoint_hook import mirror_of
from sce_video.engine.recipes import find_recipe, shipped_folder
from sce_video.runs.configs import training_config
from sce_video.utils.command import without_log_messages
from sce_video.utils.records import at

#: Source of values that neither a file nor an option sets, for example the work folder
COMMAND = "sce-video train"
#: Sources are aligned within a section unless ``KEY = VALUE`` is longer than this.
_ALIGNED = 88


class TrainingOptions(TypedDict, total=False):
    """Options of a training run, see :func:`~sce_video.runs.configs.training_config`."""

    work_dir: str | Path | None
    resume: str | None
    amp: str | None
    seed: int | None
    pretrained: str | None
    backend: str | None
    launcher: str
    track: Sequence[str]
    mirror: str | None


@dataclass(frozen=True)
class ResolvedSetting:
    """Value in a resolved recipe.

    Attributes:
        key: Name of the setting, as ``--cfg-options`` accepts it.
        value: Value as JSON data, in which classes are replaced by their names.
        source: Config file that sets it, ``--cfg-options``, another option of sce-video train, or
            ``sce-video train`` itself.
    """

    key: str
    value: Any
    source: str


@dataclass(frozen=True)
class ResolvedRecipe:
    """Config of a training run with the source of each of its values.

    ``print()`` shows it on one page.
    """

    config: Config
    settings: tuple[ResolvedSetting, ...]

    def __str__(self) -> str:
        # Settings without a section come first.
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for setting in self.settings:
            line = f"{setting.key} = {_shown(setting.value)}"
            section, dot, _ = setting.key.partition(".")
            sections.setdefault(section * bool(dot), []).append((line, setting.source))
        name = self.config.filename or "a config"
        blocks = [f"# Recipe of {name}: every value, and its source behind the #"]
        for lines in sections.values():
            width = max((len(line) for line, _ in lines if len(line) <= _ALIGNED), default=0)
            blocks.append("\n".join(f"{line:<{width}}  # {source}" for line, source in lines))
        return "\n\n".join(blocks)


def resolved(
    config: str | Path | Config,
    cfg_options: Sequence[str] | Mapping[str, Any] = (),
    *,
    option_of: Mapping[str, str] | None = None,
    **options: Unpack[TrainingOptions],
) -> ResolvedRecipe:
    """Resolve the config of a training run, and find the source of each value, without training.

    The config equals the one that training with these options uses. Config-file variables that
    training does not read are left out.

    Args:
        config: Config file, name of a recipe, or config.
        cfg_options: Config overrides as ``KEY=VALUE`` strings, or as values by key.
        option_of: Command-line option that sets a key of ``cfg_options``, by key. All other keys
            come from ``--cfg-options``.
        options: Other options, see :func:`~sce_video.runs.configs.training_config`.

    Raises:
        FileNotFoundError: If the config does not exist.
        ValueError: If :func:`~sce_video.runs.configs.training_config` raises it, or a run would be
            restored from its mirror.
    """
    loaded = load_config(config, cfg_options)
    if at(options, "resume") == "auto" and (at(options, "mirror") or mirror_of(loaded)):
        raise ValueError(
            "cannot print the recipe with --resume and a mirror, because a newer run in the mirror "
            "would be restored first. Give --resume RUN"
        )
    cfg = training_config(config, cfg_options=cfg_options, **options)
    values, before = _values(cfg), _values(loaded)
    sources = value_sources(config, cfg_options, option_of or {})
    by_option: dict[tuple[str, ...], str] = {}
    for name, given in options.items():
        if given not in (None, "none", [], ()):
            others: Any = {other: value for other, value in options.items() if other != name}
            try:
                with without_log_messages():  # the same as when the config was first loaded
                    without = _values(training_config(config, cfg_options=cfg_options, **others))
            except (ValueError, OSError):  # this option is required for training
                without = before
            changed = [p for p in values if p not in without or without[p] != values[p]]
            by_option |= dict.fromkeys(changed, f"--{name.replace('_', '-')}")
    settings = []
    for path, value in values.items():
        source = by_option.get(path)
        if source is None and path in before and before[path] == value:
            source = _short(source_of(sources, path) or _unknown_source(config))
        settings.append(ResolvedSetting(named_path(cfg, path), value, source or COMMAND))
    return ResolvedRecipe(cfg, tuple(settings))


def _unknown_source(config: str | Path | Config) -> str:
    """Return the source of a value for which no file was recorded."""
    if isinstance(config, Config):
        return "the given config"
    file = _short(str(find_recipe(config)))
    # mmengine merges imported configs itself, so their files are unknown.
    return f"{file}, or a config that it imports" if file.endswith(".py") else file


def _values(cfg: Config) -> dict[tuple[str, ...], Any]:
    """Return single values and plain lists as JSON data, by paths of keys and numbers."""
    known = top_level_keys() - {"settings"}
    return dict(leaves(plain({key: value for key, value in cfg.items() if key in known})))


def _short(file: str) -> str:
    """Shorten a source for display, if it is in the current folder or in the package."""
    path = Path(os.path.abspath(file))
    if not path.is_file():
        return file
    for folder in (Path.cwd(), shipped_folder()):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)


def _shown(value: Any) -> str:
    """Format a value in the form that ``--cfg-options`` reads."""
    if isinstance(value, str):
        with suppress(ValueError):
            return value if parse_value(value) == value and value.strip() == value else repr(value)
        return repr(value)
    return repr(value).replace(" ", "") if isinstance(value, list) else repr(value)
