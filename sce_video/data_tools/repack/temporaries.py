"""Names of unfinished outputs, and the removal of those that a killed run left."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".repack-tmp"


def new_token() -> str:
    """Part of the names of one run's temporary files, different for every run on every machine.

    A killed run may leave a worker that is still writing, so no run may use the names of an
    earlier one. A process number alone could repeat.
    """
    return f"{_digest(socket.gethostname())[:8]}-{os.getpid()}-{secrets.token_hex(4)}"


def temporary_path(output: Path, token: str) -> Path:
    """A hidden path beside the output; a digest, since the output's name may have full length."""
    return output.with_name(f".{_digest(output.name)}.{token}{_SUFFIX}")


def remove_temporaries(outputs: Iterable[Path]) -> None:
    """Remove the temporary files of some outputs, whichever run they are of."""
    digests: dict[Path, set[str]] = {}
    for output in outputs:
        digests.setdefault(output.parent, set()).add(_digest(output.name))
    for parent, known in digests.items():
        if not os.path.isdir(parent):
            continue
        with os.scandir(parent) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith(_SUFFIX):
                    if entry.name[1 : -len(_SUFFIX)].rpartition(".")[0] in known:
                        Path(entry.path).unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=8).hexdigest()
