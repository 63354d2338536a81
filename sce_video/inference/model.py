"""Loading of a pretrained network from a checkpoint, to embed videos with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sce_video.engine.checkpoint import file_sha256, load_checkpoint_file, newest_checkpoint
from sce_video.engine.config.snapshot import has_config, lacking_imports, stored_config
from sce_video.engine.weights import bounded_network, load_backbone
from sce_video.inference.multi_view import Batch, BatchRows, mean_representation
from sce_video.inference.network_input import ModelSettings, settings_from_config
from sce_video.models.memory_format import move_to_device
from sce_video.registry import MODELS
from sce_video.utils.run_files import is_model, model_folder
from sce_video.utils.storage import absolute

_PREFIX = "backbone."


@dataclass(frozen=True, eq=False)
class VideoModel:
    """Frozen network with its input settings, created by :func:`load_model`.

    Attributes:
        encoder: An :class:`~sce_video.models.algorithms.encoder.Encoder` in evaluation mode.
        settings: Backbone, normalisation, clip and crop.
        feature_size: D, size of a feature.
        checkpoint: Absolute path or URL of the checkpoint file.
        checkpoint_sha256: SHA-256 of the checkpoint file.
        device: Device of the network.
    """

    encoder: nn.Module
    settings: ModelSettings
    feature_size: int
    checkpoint: str
    checkpoint_sha256: str
    device: torch.device

    @property
    def row_size(self) -> int:
        """D, the same as ``feature_size``."""
        return self.feature_size

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Compute the mean representations (n, D) over the views of each video in a batch."""
        with torch.inference_mode():
            return mean_representation(max_views)(self.encoder, batch)

    def to(self, device: torch.device) -> VideoModel:
        """Return the network on a device: itself, or a copy."""
        if device == self.device:
            return self
        encoder = move_to_device(copy.deepcopy(self.encoder), device)
        return replace(self, encoder=encoder, device=device)


def checkpoint_of(run: str | Path) -> str:
    """Return the checkpoint to which RUN refers in commands and functions.

    Args:
        run: Folder or URL of a run, which refers to
            :func:`~sce_video.utils.run_files.newest_checkpoint`, a checkpoint, or the folder of a
            pretrained network. A transformers or timm model, given by its folder or as
            ``hf:OWNER/MODEL``, is imported first.

    Raises:
        FileNotFoundError: If a folder contains no checkpoints. Missing files are not detected yet.
        ValueError: If :func:`~sce_video.inference.encoders.encoder_folder.import_encoder` fails.
    """
    if is_model(run) or model_folder(run) is not None:
        # Imported only here, because other networks need neither configs nor a run's lock.
        from sce_video.inference.encoders.encoder_folder import run_of_model

        run = run_of_model(str(run))
    return newest_checkpoint(run)


@dataclass(frozen=True)
class StoredNetwork:
    """Checkpoint with the config from which its network is built.

    Attributes:
        checkpoint: Path or URL of the checkpoint file.
        content: Content of the checkpoint file.
        config: Config as plain data.
        source: Origin of the config, for messages.
        trusted: Whether the config is a file that the user named instead of checkpoint data.
    """

    checkpoint: str
    content: dict
    config: dict
    source: str
    trusted: bool

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add the source of the config and advice to a ValueError that the block raises."""
        try:
            yield
        except ValueError as error:
            advice = "" if self.trusted else "; give the config file (config=)"
            lacking = lacking_imports(self.content)
            advice = f". {lacking}" if lacking else advice
            raise ValueError(f"{self.source}: {error}{advice}") from error


def read_network(checkpoint: str | Path, config: str | Path | None) -> StoredNetwork:
    """Read a checkpoint, and its own config or the given config (see :func:`load_model`)."""
    checkpoint = checkpoint_of(checkpoint)
    content = load_checkpoint_file(checkpoint)
    if config is None and not has_config(content):
        from sce_video.inference.encoders.encoder_folder import run_of_weights

        if (converted := run_of_weights(checkpoint, content)) is not None:
            checkpoint, content = converted, load_checkpoint_file(converted)
    if config is None:
        stored, source = stored_config(content, checkpoint), f"the config in {checkpoint}"
        return StoredNetwork(checkpoint, content, stored, source, trusted=False)
    # Imported only here, because it imports mmengine's runner, which other networks do not need.
    from sce_video.engine.config.load import load_config

    given = load_config(config).to_dict()
    return StoredNetwork(checkpoint, content, given, str(config), trusted=True)


def load_model(
    checkpoint: str | Path,
    config: str | Path | None = None,
    device: str | torch.device | None = None,
) -> VideoModel:
    """Load the backbone from a checkpoint of a pretraining, linear evaluation or finetuning run.

    Without ``config``, the network is built from the config in the checkpoint, which is parsed as
    data and never executed. A config *file* is executed, so use only files that you trust.

    Args:
        checkpoint: Run or checkpoint, in any form that :func:`checkpoint_of` accepts. Without
            ``config``, it can also be a torchvision state dict (docs/encoders.md).
        config: Config file. It is needed for a converted checkpoint, which contains no config.
        device: Device, for example "cuda:1"; None selects a GPU if there is one.

    Raises:
        FileNotFoundError: If the checkpoint or config does not exist.
        TypeError: If an argument is not a path.
        ValueError: If the checkpoint is damaged, contains no config or one that is not plain data,
            its weights are missing or do not match the backbone (for example its depth or width),
            or the device is not available.
    """
    for name, given in (("checkpoint", checkpoint), ("config", config)):
        if not isinstance(given, str | Path) and (given is not None or name == "checkpoint"):
            raise TypeError(f"{name} must be the path of a file, got {type(given).__name__}")
    network = read_network(checkpoint, config)
    with network.explained():
        settings = settings_from_config(network.config, trusted=network.trusted)
    return build_model(settings, network.checkpoint, device, network.content)


def with_random_weights(model: VideoModel) -> VideoModel:
    """Return the untrained network with fixed random weights, keeping the global random state."""
    encoder = _untrained(model.settings, model.device)
    return replace(model, encoder=encoder, checkpoint="random weights")


def untrained_model(
    settings: ModelSettings, device: str | torch.device | None = None
) -> VideoModel:
    """Build the network that ``settings`` describe, with fixed random weights.

    Args:
        settings: Network and input.
        device: Device of the network; None selects a GPU if there is one.

    Raises:
        ValueError: If the device is not available, or the network does not map clips to features.
    """
    selected = select_device(device)
    encoder = _untrained(settings, selected)
    size = _feature_size(encoder, settings, selected)
    return VideoModel(encoder, settings, size, "random weights", "", selected)


def _untrained(settings: ModelSettings, device: torch.device) -> nn.Module:
    # Keep the caller's random numbers unchanged. The network is built on the CPU, so the GPU
    # generators need neither saving nor seeding.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        encoder = _built(settings)
        encoder.init_weights()
    return move_to_device(encoder, device).eval().requires_grad_(False)


def check_model(model: object) -> None:
    """Raise TypeError that explains what to pass, unless given a :class:`VideoModel`."""
    if isinstance(model, VideoModel):
        return
    if isinstance(model, str | Path):
        raise TypeError(f"expected a model, got a path. Load it with load_model({str(model)!r})")
    raise TypeError(f"expected a model from load_model(), got {type(model).__name__}")


def build_model(
    settings: ModelSettings,
    checkpoint: str | Path,
    device: str | torch.device | None = None,
    stored: dict | None = None,
    allow_identity: bool = False,
) -> VideoModel:
    """Build the network that settings describe, with the weights of a checkpoint.

    Args:
        settings: Network and input.
        checkpoint: File that contains the weights.
        device: Device of the network; None selects a GPU if there is one.
        stored: Content of the file, if it has been read already.
        allow_identity: Whether the network may lack trainable weights (see
            :func:`~sce_video.engine.weights.load_backbone`).

    Raises:
        ValueError: If the weights or the device are refused, as in :func:`load_model`.
    """
    selected = select_device(device)
    stored = load_checkpoint_file(checkpoint) if stored is None else stored
    state = stored.get("state_dict", stored)
    if not isinstance(state, dict):
        raise ValueError(f"{checkpoint} contains no weights (state_dict)")
    state = {str(key).removeprefix("module."): value for key, value in state.items()}
    weights = {key: value for key, value in state.items() if torch.is_tensor(value)}
    try:
        # An untrusted config may describe terabytes, so limit the size to the weights in the file.
        with bounded_network(weights):
            encoder = _built(settings)
    except Exception as error:  # wrong arguments may raise any error
        raise ValueError(f"{checkpoint}: the network cannot be built: {error}") from error
    # In a file with only a backbone, names have no prefix (tools/convert without --add-prefix).
    if not any(key.startswith(_PREFIX) for key in weights):
        own = (key.removeprefix(_PREFIX) for key in encoder.state_dict())
        parts = {key.partition(".")[0] for key in own}
        weights = {
            (_PREFIX if key.partition(".")[0] in parts else "") + key: value
            for key, value in weights.items()
        }
    load_backbone(encoder, {"state_dict": weights}, str(checkpoint), allow_identity)
    move_to_device(encoder, selected).eval().requires_grad_(False)
    return VideoModel(
        encoder=encoder,
        settings=settings,
        feature_size=_feature_size(encoder, settings, selected),
        checkpoint=absolute(checkpoint),
        checkpoint_sha256=file_sha256(checkpoint),
        device=selected,
    )


def _built(settings: ModelSettings) -> Any:
    preprocessor = dict(type="VideoDataPreprocessor", mean=settings.mean, std=settings.std)
    return MODELS.build(
        dict(type="Encoder", backbone=settings.backbone, data_preprocessor=preprocessor)
    )


def select_device(device: str | torch.device | None) -> torch.device:
    """Return the named device, or a GPU if there is one for None; ValueError if it is unusable."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        selected = torch.device(device)
        torch.empty(0, device=selected)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from None
    return selected


def _feature_size(encoder: Any, settings: ModelSettings, device: torch.device) -> int:
    """Measure D with a small clip of zeros or, if the network refuses it, one of the crop size."""
    message = ""
    # Try a small clip first, because it is fast. A ViT with learned positions accepts only its own
    # size.
    for size in (32, settings.crop_size):
        clip = torch.zeros(1, 3, settings.num_frames, size, size, device=device)
        try:
            with torch.no_grad():
                return int(encoder(inputs=[clip], mode="tensor")[0].shape[1])
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            message = str(error)
    raise ValueError(
        f"the backbone {settings.backbone['type']} does not map clips (N, 3, T, H, W) to "
        f"features (N, C, T', H', W'): {message}"
    )
