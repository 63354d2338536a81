"""Checkpoints of other frameworks that hold objects of their own beside the weights.

PyTorch Lightning stores hyper-parameters (omegaconf configs, paths, enums) and callbacks in its
files, which torch's restricted unpickler refuses. Here every class or function that such a file
names, and that torch does not know, is replaced by :class:`Record`, which keeps nothing: no name is
imported, no code of the file runs, and the weights are read as from any other file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sce_video.engine.checkpoint import KNOWN_NAMES, load_checkpoint_file

#: Classes whose pickles fill them as a dict; a plain dict takes their place.
_DICTS = (".AttributeDict", ".defaultdict")


class Record:
    """Stand-in for any class or function of a file: takes all arguments, keeps none."""

    def __new__(cls, *_: Any) -> Record:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""


class DictRecord:
    """Stand-in for a class derived from dict: an empty dict that the file then fills."""

    def __new__(cls, *_: Any) -> dict:  # type: ignore[misc]
        return {}


def load_third_party_checkpoint(path: str | Path) -> dict:
    """The content of a checkpoint; objects of other packages are replaced by empty records.

    Args:
        path: A local file of ``torch.save``.

    Raises:
        FileNotFoundError: no such file.
        IsADirectoryError: a folder.
        ValueError: the file is damaged, or names something of the operating system.
    """
    with torch.serialization.safe_globals(_stand_ins(Path(path))):
        return load_checkpoint_file(path)


def _stand_ins(path: Path) -> list:
    """A stand-in for each name in a file that torch does not allow; none if it is unreadable."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # no file, or damaged: load_checkpoint_file says what is wrong with it
        return []
    return [
        (DictRecord if name.endswith(_DICTS) else Record, name)
        for name in names
        if name not in KNOWN_NAMES
    ]
