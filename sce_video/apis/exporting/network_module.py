"""A network as one function of uint8 clips, with its normalisation inside, for export."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as fx_config

from sce_video.apis.pretrained import Network, network_weights
from sce_video.apis.video_classifier import VideoClassifier
from sce_video.models.backbones.staged_backbone import StagedBackbone
from sce_video.models.modules.pooling import represent

INPUT = "clips"
#: Clips are traced at these sizes where all sizes may differ: no size of a layer of our networks is
#: 1 or equal to another there, which the tracer would take for a rule.
_TRACED = (2, 18, 162, 178)
#: Below it the last layers of a ResNet have one cell, which the tracer treats as a case of its own.
_LEAST_SIZE = 33
#: Batches by which a written file is compared with PyTorch.
CHECKED_BATCHES = (1, 3)
#: Largest difference from PyTorch, relative to the largest output.
_TOLERANCE = 1e-4


class ClipNetwork(nn.Module):
    """uint8 clips (N, T, H, W, 3) to features (N, C) and, of a classifier, probabilities (N, K)."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        network_weights(network)  # refuses heads that it does not know
        classifies = isinstance(network, VideoClassifier)
        inner: Any = network.recognizer if isinstance(network, VideoClassifier) else network.encoder
        self.backbone = copy.deepcopy(inner.backbone).cpu().float().eval().requires_grad_(False)
        if getattr(self.backbone, "channels_last", False):
            self.backbone.channels_last = False  # the runtime chooses the memory format
            self.backbone.to(memory_format=torch.contiguous_format)
        self.classifier = copy.deepcopy(inner.cls_head.fc_cls).cpu() if classifies else None
        for name in ("mean", "std"):
            value = torch.tensor(getattr(network.settings, name), dtype=torch.float32)
            self.register_buffer(name, value.reshape(1, -1, 1, 1, 1))

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["features"] if self.classifier is None else ["features", "probabilities"]

    def any_size(self, shape: tuple[int, int, int, int]) -> bool:
        """Whether clips of other lengths and sizes than ``shape`` go through one graph.

        A transformer computes its positions from the size, which is fixed while it is traced, and
        S3D pools fewer than five frames otherwise.
        """
        if not isinstance(self.backbone, StagedBackbone):
            return False
        return shape[0] >= self.backbone.least_frames and shape[1] >= _LEAST_SIZE

    def forward(self, clips: Tensor) -> tuple[Tensor, ...]:
        """The outputs, in the order of ``outputs``."""
        view = clips.permute(0, 4, 1, 2, 3).to(torch.float32) / 255.0
        features = represent(self.backbone, (view - self.mean) / self.std)
        if self.classifier is None:
            return (features,)
        return features, self.classifier(features).softmax(dim=1)


def clip_shape(network: Network) -> tuple[int, int, int, int]:
    """(T, H, W, 3) of the clips that a network was trained or is tested with."""
    settings = network.settings
    return (settings.num_frames, settings.crop_size, settings.crop_size, 3)


def traced(module: ClipNetwork, shape: tuple[int, int, int, int]) -> ExportedProgram:
    """The network as a graph of torch operators; the batch may have any size.

    Args:
        module: The network.
        shape: (T, H, W, 3), to which the clips are fixed unless ``module.any_size(shape)``.

    Raises:
        ValueError: the network cannot be traced.
    """
    sizes: dict[int, Any] = {0: Dim("N")}
    example = (_TRACED[0], *shape)
    if module.any_size(shape):
        sizes |= dict.fromkeys((1, 2, 3), Dim.DYNAMIC)
        example = (*_TRACED, 3)
    clips = torch.zeros(example, dtype=torch.uint8)
    try:
        # Without it a last layer of one cell would be a case of its own, and be refused.
        with fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            return torch.export.export(module, (clips,), dynamic_shapes={INPUT: sizes})
    except Exception as error:  # of the network, or one of the tracer's own
        reason = str(error).strip().splitlines() or [type(error).__name__]
        kind = type(module.backbone).__name__
        raise ValueError(f"{kind} cannot be exported: {reason[0][:500]}") from error


def random_clips(count: int, shape: tuple[int, int, int, int], seed: int = 0) -> np.ndarray:
    """(count, T, H, W, 3) uint8."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, *shape), dtype=np.uint8)


class Comparison:
    """Largest difference of a written file from PyTorch, over random clips."""

    def __init__(self, module: ClipNetwork, shape: tuple[int, int, int, int]) -> None:
        self.module, self.shape = module, shape
        self.largest = 0.0

    def check(self, run: Any, name: str) -> None:
        """Compare ``run(clips) -> outputs`` at several batch sizes.

        Raises:
            ValueError: the outputs differ by more than 1e-4 of the largest one.
        """
        for count in CHECKED_BATCHES:
            clips = random_clips(count, self.shape, seed=count)
            with torch.inference_mode():
                wanted = [value.numpy() for value in self.module(torch.from_numpy(clips))]
            for found, value in zip(run(clips), wanted, strict=True):
                if found.shape != value.shape:
                    raise ValueError(
                        f"{name}: an output is {found.shape}, that of PyTorch {value.shape}"
                    )
                difference = float(np.abs(found - value).max())
                if not difference <= _TOLERANCE * max(1.0, float(np.abs(value).max())):
                    raise ValueError(
                        f"{name}: the outputs differ from PyTorch's by {difference:.1e}; nothing "
                        "was written"
                    )
                self.largest = max(self.largest, difference)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the tracer's remarks on its own code and on packages that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
