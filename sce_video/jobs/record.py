"""The result of one item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """The result of one item.

    Attributes:
        key: Of the item.
        done: Whether it succeeded.
        source: State of the source; None if there was none.
        settings: Of the job.
        facts: What the job returned; empty after a failure.
        kind: Of the failure: ``error`` (an exception), ``timeout``, ``crash`` (the process ended),
            ``lost`` (its machine did), ``missing`` (no source), ``changed`` (the source changed
            meanwhile), ``name`` (the output's is too long), or the job's own; empty if done.
        reason: The failure in words.
        output: Path of the output relative to the job's folder.
        output_bytes: Its size.
        time_limit: Seconds that the item was given.
        time: When it was recorded, seconds since 1970.
        data: Bytes that the job returned beside the facts; None without any.
    """

    key: str
    done: bool
    source: dict[str, Any] | None
    settings: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    reason: str = ""
    output: str | None = None
    output_bytes: int | None = None
    time_limit: float | None = None
    time: float = 0.0
    data: bytes | None = None
