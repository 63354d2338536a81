"""``run.json`` in a run's folder, which records what was requested, chosen and trained.

``pretrain`` and ``finetune`` write it when they plan a training run, and each start updates it. For
a run that is trained from a config file, it contains no plan. ``--resume`` and commands that
describe a run read it. It may be untrusted, so it is read as data, and every size is limited.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sce_video.dependencies import installed_version
from sce_video.engine.config.snapshot import ConfigData, foreign_classes, imports_of, plain
from sce_video.utils.files import read_json, write_json
from sce_video.utils.records import RecordLimits, at, read_record
from sce_video.utils.run_files import CONFIG, RUN_JSON, RUN_KIND
from sce_video.version import __version__

#: Version of the format. Files of other versions are refused.
_FORMAT = 1
# Possible states of a run
PLANNED = "planned"
RUNNING = "running"
FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"
STATES = (PLANNED, RUNNING, FINISHED, INTERRUPTED, FAILED)
#: Maximum file size in bytes. Most of a file is the config, which takes about ten thousand bytes.
_MAX_BYTES = 2**22
#: Generous limits on lists and texts. A plan contains about thirty choices, and the longest value
#: is a list of class names.
_LIMITS = RecordLimits(entries=500, characters=100_000)


@dataclass(frozen=True)
class Choice:
    """A setting and the reason for its value.

    Attributes:
        setting: ``recipe``, ``precision``, or a setting that the recipe declares, such as
            ``frames``.
        value: Value of the setting, of any JSON type.
        reason: Short reason for the user, or ``given`` if the user chose the value.
    """

    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """Findings and choices made before a training run.

    Attributes:
        recipe: Name of the recipe that the config was made from.
        facts: Sentences about the videos and the machine.
        choices: Chosen settings, in the order in which they are shown.
        length: Sentence about the estimated duration.
        remarks: Sentences about anything unusual.
    """

    recipe: str
    facts: tuple[str, ...]
    choices: tuple[Choice, ...]
    length: str
    remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan as text for a terminal, with the choices in columns."""
        width = max(len(choice.setting) for choice in self.choices)
        wide = max(len(str(choice.value)) for choice in self.choices)
        rows = [f"  {c.setting:<{width}}  {c.value!s:<{wide}}  {c.reason}" for c in self.choices]
        return [*self.facts, *rows, self.length, *(f"note: {remark}" for remark in self.remarks)]


@dataclass(frozen=True)
class RunDescription:
    """Content of ``run.json``.

    Attributes:
        command: ``pretrain``, ``finetune`` or ``train``.
        request: Arguments that the user gave, by name.
        plan: Settings chosen for the run; None if it is trained from a config file.
        config: Resolved config as JSON data. After the first start, it is the config in use.
        environment: Versions of the code and the libraries that made the plan.
        state: One of :data:`STATES`. A killed training run stays ``running``.
    """

    command: str
    request: dict[str, Any]
    plan: Plan | None
    config: ConfigData
    environment: dict[str, Any]
    state: str = PLANNED


@lru_cache
def describe_code() -> dict[str, str]:
    """Return the package's version, the SHA-256 of its sources, and the commit of a git clone."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    found = {"version": __version__, "sources_sha256": digest.hexdigest()}
    if (package.parent / ".git").exists():  # git would also find a surrounding repository
        command = ["git", "-C", str(package.parent), "rev-parse", "HEAD"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            found["commit"] = done.stdout.strip()
    return found


@dataclass(frozen=True)
class _StoredRun(RunDescription):
    """Description as it is stored, with the kind of the file and the version of its format."""

    kind: Any = None
    format: Any = None
    state: Any = None


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect training, by name."""
    versions = {
        "sce_video": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: str(installed_version(name)) for name in ("mmengine", "mmaction2")},
    }
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def describe_environment(config: Mapping[str, Any]) -> dict[str, object]:
    """Describe the code, the libraries, and the user's own parts in a config.

    Args:
        config: Config of the training run.
    """
    return {
        "code": describe_code(),
        "versions": installed_versions(),
        "imports": imports_of(config),
        "foreign_classes": foreign_classes(config),
    }


def write_run_json(folder: str | Path, run: RunDescription) -> None:
    """Write the description of a run into its folder, atomically.

    Raises:
        WriteError: If the file cannot be written.
    """
    stored = {"kind": RUN_KIND, "format": _FORMAT, **asdict(run)}
    write_json(Path(folder, RUN_JSON), plain(stored))


def read_run_json(folder: str | Path) -> RunDescription:
    """Read the description of a run from its folder, as data only.

    Raises:
        FileNotFoundError: If the folder contains no description.
        ValueError: If the file is too large or not JSON, or a field is missing, unknown or of the
            wrong type.
    """
    path = Path(folder, RUN_JSON)
    if path.is_file() and path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path} has more than {_MAX_BYTES} bytes, so it does not describe a run")
    content = read_json(path)
    try:
        return _checked_run(content)
    except ValueError as error:
        raise ValueError(
            f"{path} does not describe a run: {error}. To continue without it, run sce-video "
            f"train {Path(folder, CONFIG)} --resume. This executes the config, so run it only if "
            "you trust the file"
        ) from None


def find_run_json(run: str | Path) -> RunDescription | None:
    """Return the description of a run, given its folder or one of the files in it.

    Args:
        run: Folder of a run, or a checkpoint in it.

    Returns:
        The description; None for a URL, an exported network or a run without a description.

    Raises:
        ValueError: If :func:`read_run_json` cannot read the description.
    """
    path = Path(run)
    folder = path if path.is_dir() else path.parent
    return read_run_json(folder) if Path(folder, RUN_JSON).is_file() else None


def update_run_json(
    folder: str | Path, state: str, config: Mapping[str, Any] | None = None
) -> None:
    """Record the state of a training run and, at its start, the config in use.

    A run that was not planned in this folder gets a new description. If the file of a planned run
    cannot be read, it is left unchanged, because training does not need it.

    Args:
        folder: Folder of the run.
        state: One of :data:`STATES`.
        config: Config of the run at its start; None keeps the recorded config.

    Raises:
        WriteError: If the file cannot be written.
    """
    run = None
    if config is None or at(config, "planned"):
        try:
            run = read_run_json(folder)
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            return
    if config is not None:
        if run is None:
            request = {"config": str(getattr(config, "filename", None) or "")}
            run = RunDescription("train", request, None, {}, describe_environment(config))
        run = replace(run, config=plain(config))
    if run is not None:
        write_run_json(folder, replace(run, state=state))


def _checked_run(content: Any) -> RunDescription:
    """Build a run's description from JSON data, or raise ValueError naming the wrong field."""
    stored = read_record(_StoredRun, content, limits=_LIMITS)
    if (stored.kind, stored.format) != (RUN_KIND, _FORMAT):
        raise ValueError(
            f"kind and format must be {RUN_KIND!r} and {_FORMAT}, got {stored.kind!r:.60} and "
            f"{stored.format!r:.60}"
        )
    if stored.state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, got {stored.state!r:.60}")
    return RunDescription(**{f.name: getattr(stored, f.name) for f in fields(RunDescription)})
