"""What the page asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Network:
    """How the network of the index is found.

    Attributes:
        checkpoint: Its current path; None for the one that the index names.
        config: Config file, for a network that is registered by its ``custom_imports``.
        device: Of the network; None for a GPU if there is one.
    """

    checkpoint: str | None = None
    config: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class Upload:
    """A video that was dropped on the page; its file has been removed."""

    name: str
    feature: np.ndarray
    clip: bytes


@dataclass(frozen=True)
class Search:
    """What is searched for, and among what.

    Attributes:
        row: Of a video of the index; or
        upload: of one that was dropped on the page.
        k: Number of results.
        centred: Subtract the mean feature of the index first.
        refined: Embed windows around the best moments again.
        path: Only paths with this text, whatever its case.
        folder: Only this sub-folder.
        label: Only this label; -1 only videos without one.
    """

    row: int | None = None
    upload: str | None = None
    k: int = 24
    centred: bool = False
    refined: bool = False
    path: str = ""
    folder: str | None = None
    label: int | None = None
