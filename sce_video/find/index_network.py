"""Loading of the network with which an index was built, after a check of its weights."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.find.reading import index_mismatches
from sce_video.find.store import VideoIndex
from sce_video.utils.own_parts import OwnModules, advise_imports, own_modules
from sce_video.utils.storage import exists, is_url

# Import this only to load a network, because a search for an indexed video needs only NumPy.
if TYPE_CHECKING:
    from sce_video.inference.model import VideoModel


@dataclass(frozen=True)
class IndexNetwork:
    """Location of an index's network, and the device that runs it.

    Attributes:
        checkpoint: Current path of the checkpoint; None for the path in the index.
        config: Config file whose ``custom_imports`` register the network; None if not needed.
        device: Device to run the network on; None for a GPU if there is one.
        modules: The user's own modules, which a worker process imports before it loads the network.
    """

    checkpoint: str | None = None
    config: str | None = None
    device: str | None = None
    modules: OwnModules = field(default_factory=own_modules)


def model_of_index(index: VideoIndex, network: IndexNetwork = IndexNetwork()) -> VideoModel:
    """Build the network of an index from the settings in the index, which are read as data.

    Raises:
        FileNotFoundError: If the checkpoint is missing.
        ValueError: If the checkpoint or the config does not belong to the index.
    """
    from sce_video.inference.model import build_model, load_model
    from sce_video.inference.network_input import ModelSettings

    path = checkpoint_of_index(index, network.checkpoint)
    if network.config is None:
        try:
            settings = ModelSettings.from_dict(index.header.model)
            return build_model(settings, path, network.device)
        except ValueError as error:
            advice = advise_index_imports(index)
            if not advice:
                raise
            raise ValueError(
                f"the network of the index {index.folder} cannot be built: {error}. {advice}"
            ) from error
    model = load_model(path, Path(network.config), network.device)
    differences = index_mismatches(index.header.model, model.settings.to_dict())
    if differences:
        raise ValueError(
            f"{network.config} does not match the index {index.folder}: {'; '.join(differences)}"
        )
    return model


def advise_index_imports(index: VideoIndex) -> str:
    """Return a sentence about the ``--import`` options that an index needs; empty for none."""
    return advise_imports([*index.header.imports], "The index")


def checkpoint_of_index(index: VideoIndex, checkpoint: str | os.PathLike | None = None) -> str:
    """Return the path of an index's checkpoint after comparing its SHA-256 with the index.

    Args:
        index: The index.
        checkpoint: Current path of the checkpoint; None for the path in the index.

    Raises:
        FileNotFoundError: If there is no checkpoint at that path.
        ValueError: If the checkpoint does not belong to the index, or no path is given and the path
            in the index is a URL.
    """
    from sce_video.engine.checkpoint import file_sha256
    from sce_video.inference.model import checkpoint_of

    stored, sha256 = index.header.checkpoint, index.header.sha256
    path = stored if checkpoint is None else checkpoint_of(os.fspath(checkpoint))
    if checkpoint is None and is_url(path):  # an untrusted index must not cause requests
        raise ValueError(
            f"the checkpoint of the index {index.folder} is in an object store, which is opened "
            f"only on request. If you trust the index, give --checkpoint {path}"
        )
    if not exists(path):
        advice = ". Give its current path with --checkpoint" if checkpoint is None else ""
        raise FileNotFoundError(
            f"the checkpoint of the index {index.folder} is not at {path}{advice}"
        )
    digest = file_sha256(path)
    if digest != sha256:
        raise ValueError(
            f"{path} (sha256 {digest[:12]}) is not the checkpoint that the index {index.folder} "
            f"was built with ({sha256[:12]}, {stored}). Give the original file with --checkpoint, "
            "or build the index from scratch"
        )
    return path
