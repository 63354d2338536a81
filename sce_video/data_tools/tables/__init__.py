"""Making a table of videos: see ``sce-video import`` and docs/tables.md."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_TIMEOUT = 1e6  # seconds, which timers of all systems accept


@dataclass(frozen=True)
class ImportOptions:
    """How a run works; none of this changes the content of a row.

    Attributes:
        workers: Number of processes; None for all cores, of the cluster with ``ray``.
        timeout: Seconds that a file may take.
        retry_failed: Also try files again whose row holds a failure.
        force: Write the rows of all files again.
        ray: Address of a Ray cluster to run on; None for this machine.
    """

    workers: int | None = 1
    timeout: float = 60.0
    retry_failed: bool = False
    force: bool = False
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError(
                f"timeout must be seconds above 0, at most {_MAX_TIMEOUT:,.0f}, got {self.timeout}"
            )
