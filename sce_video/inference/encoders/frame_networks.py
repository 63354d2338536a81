"""A third-party image network as a backbone for frames, with its input settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from sce_video.inference.encoders.transformers_files import ProcessorSettings

#: Number of frames in a clip, and their distance. Differences of frames 0.08 to 0.2 s apart are
#: equally good on J-HMDB (docs/results.md).
_NUM_FRAMES = 4
_SECONDS_APART = 0.125


@dataclass(frozen=True)
class ImageNetwork:
    """A third-party image network with its weights.

    Attributes:
        name: Name of the architecture.
        backbone: Config of a backbone that computes every frame of a clip, without its pool.
        weights: Weights of this backbone by name.
        settings: Input settings of the network.
        unused: Names of the weights of a classifier, which the backbone does not have.
    """

    name: str
    backbone: dict
    weights: dict[str, Tensor]
    settings: ProcessorSettings
    unused: list[str] = field(default_factory=list)

    @classmethod
    def of_timm(
        cls,
        backbone: dict,
        weights: Mapping[str, Tensor],
        settings: ProcessorSettings,
        unused: list[str],
    ) -> ImageNetwork:
        """Return a network of :func:`timm_backbone` with weights under timm's names."""
        own = {f"network.{name}": value for name, value in weights.items()}
        return cls(backbone["architecture"], backbone, own, settings, unused)

    @property
    def is_classifier(self) -> bool:
        """Whether the file also contains a classifier."""
        return bool(self.unused)


def timm_backbone(architecture: str, model_args: Mapping[str, object]) -> dict[str, object]:
    """Return the config of a backbone for a timm network."""
    given = {"model_args": dict(model_args)} if model_args else {}
    return {"type": "TimmEncoder", "architecture": architecture, **given}


#: Input settings of an image network, with clips that suit its motion features.
image_input = partial(
    ProcessorSettings,
    square=False,
    in_float=False,
    num_frames=_NUM_FRAMES,
    clip_duration=_NUM_FRAMES * _SECONDS_APART,
)
