"""Names of outputs that are being made, and the removal of those that a killed run left."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".repack-tmp"


def new_token() -> str:
    """What tells one run's temporary files from those of another one, on this or another machine.

    A run that was killed may leave a worker behind that still writes, so no run takes up the names
    of an earlier one, which a process number alone would not prevent.
    """
    return f"{_digest(socket.gethostname())[:8]}-{os.getpid()}-{secrets.token_hex(4)}"


def temporary_path(output: Path, token: str) -> Path:
    """Hidden, beside the output; short, since the output's name may be as long as names can be."""
    return output.with_name(f".{_digest(output.name)}.{token}{_SUFFIX}")


def remove_temporaries(outputs: Iterable[Path]) -> None:
    """Remove what this or a killed run left of some outputs."""
    names: dict[Path, set[str]] = {}
    for output in outputs:
        # Earlier versions put the whole name where the digest is now.
        names.setdefault(output.parent, set()).update((_digest(output.name), output.name))
    for parent, known in names.items():
        if not os.path.isdir(parent):
            continue
        with os.scandir(parent) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith(_SUFFIX):
                    if entry.name[1 : -len(_SUFFIX)].rpartition(".")[0] in known:
                        Path(entry.path).unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()
