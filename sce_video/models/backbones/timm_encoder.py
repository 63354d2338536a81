"""Image networks of timm as backbones, applied to every frame of a clip."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from mmengine.model import initialize
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sce_video.models.backbones.common import FreezableBackbone, check_frozen
from sce_video.models.backbones.frame_pools import (
    fold_frames,
    pool_frames,
    pooled_channels,
    unfold_frames,
)
from sce_video.models.backbones.hf_encoder import Refusal
from sce_video.models.backbones.timm_package import timm, without_state
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Stored, Variant, Words

#: Pattern for architecture names. timm treats other texts as addresses ("hf-hub:NAME") or paths.
_NAME = re.compile(r"\w{1,80}")
#: Arguments of timm networks whose values may be words. Words in other arguments could name files
#: or weights.
_WORD_ARGUMENTS = ("act_layer", "global_pool", "norm_layer", "pos_embed")
#: Parts of argument names that request weights, files or a different kind of network
_ASKS_FOR_MORE = ("cache", "checkpoint", "export", "features_only", "jit", "pretrained", "script")
#: Largest number and maximum list length in arguments, because timm creates lists of such lengths
_LARGEST_NUMBER = 2**16
_LONGEST_LIST = 100


def check_architecture(architecture: Any) -> str:
    """Return the name of an architecture in the installed timm.

    Raises:
        MissingPackageError: If timm is not installed.
        ValueError: If timm has no such architecture.
    """
    package = timm()
    is_name = isinstance(architecture, str) and _NAME.fullmatch(architecture)
    if not is_name or not package.is_model(architecture):
        raise ValueError(
            f"timm {package.__version__} has no architecture {architecture!r:.80}. "
            "timm.list_models() lists all architectures"
        )
    return architecture


def check_model_args(model_args: Any) -> dict[str, Any]:
    """Return untrusted arguments of a timm architecture, which may change only sizes and layers.

    Args:
        model_args: Arguments by name. Their values are numbers, switches, lists of these, or a few
            words.

    Raises:
        ValueError: If an argument is of any other kind.
    """
    if not isinstance(model_args, dict):
        raise ValueError(f"model_args must be a dict, got {model_args!r:.80}")
    for name, value in model_args.items():
        values = value if isinstance(value, list | tuple) else (value,)
        fine = len(values) <= _LONGEST_LIST and all(
            one is None or (isinstance(one, int | float) and abs(one) <= _LARGEST_NUMBER)
            for one in values
        )
        fine |= name in _WORD_ARGUMENTS and isinstance(value, str) and value.isidentifier()
        refused = any(word in str(name) for word in _ASKS_FOR_MORE)
        if refused or not fine or not str(name).isidentifier():
            raise ValueError(
                f"model_args.{name} = {value!r:.80} is not allowed. It must be a number, a "
                "boolean or a list of them. Only these arguments may be words: "
                f"{', '.join(_WORD_ARGUMENTS)}"
            )
    return dict(model_args)


def build_network(architecture: str, model_args: dict[str, Any], num_classes: int = 0) -> Any:
    """Build a timm network with random weights.

    Args:
        architecture: Name of the architecture.
        model_args: Arguments of the architecture that differ from its defaults.
        num_classes: Number of classes; 0 for a network without a classifier.

    Raises:
        MissingPackageError: If timm is not installed.
        ValueError: If there is no such architecture, or it does not accept the arguments.
    """
    name, given = check_architecture(architecture), check_model_args(model_args)
    ends = {"pretrained": False, "num_classes": num_classes, "in_chans": 3}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for deprecated names, and layers without weights
            return timm().create_model(name, **{**given, **ends})
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"timm cannot build {name} with {given}: {reason}") from error


@MODELS.register_module()
class TimmEncoder(FreezableBackbone):
    """A timm network without its classifier, applied to every frame of a clip.

    The features (N, C, T, 1, 1) are the outputs of ``timm.create_model(architecture,
    num_classes=0)`` for the frames, which the network's own head has pooled. A clip of T frames is
    computed as T images.

    Args:
        architecture: Name of an architecture in the installed timm, such as "resnet50d".
        model_args: Arguments of the architecture that differ from its defaults, such as
            ``dict(img_size=384)``.
        frame_pool: How frame features are pooled into a representation
            (:func:`~sce_video.models.backbones.frame_pools.pool_frames`).
        frozen_stages: Number of quarters of the layers that are frozen
            (:class:`~sce_video.models.backbones.common.FreezableBackbone`). Layers are timm's
            groups: blocks of a ViT, and stages of other networks.
        with_cp: Whether timm computes activations again in the backward pass. Networks with batch
            norm do not support this.
        init_cfg: mmengine's initialisation config.

    Raises:
        MissingPackageError: If timm is not installed.
        ValueError: If there is no such architecture, or it does not accept a setting.
    """

    def __init__(
        self,
        architecture: Annotated[str, Stored(80)],
        model_args: Words | None = None,
        frame_pool: Variant = "mean",
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_frozen(frozen_stages)
        self.frozen_stages = frozen_stages
        self.frame_pool = frame_pool
        self.architecture = architecture
        pooled_channels(frame_pool, 1)  # raises ValueError for an unknown pool
        self.network = build_network(architecture, model_args or {})
        self.frame_channels: int = self.network.head_hidden_size
        self.out_channels = pooled_channels(frame_pool, self.frame_channels)
        self._size = _only_size(self.network, model_args or {})
        if with_cp:
            self._checkpoint_blocks()
        self.freeze()

    def __reduce__(self) -> tuple[Any, ...]:
        return without_state, (type(self),), self.__dict__

    def _checkpoint_blocks(self) -> None:
        """Let timm compute activations again in the backward pass.

        Raises:
            ValueError: If timm does not support this network, or if the second pass would change
                running statistics again.
        """
        if any(isinstance(module, _BatchNorm) for module in self.network.modules()):
            raise ValueError(
                f"with_cp is refused for timm's {self.architecture}, because its batch norms would "
                "count every batch twice. Set with_cp=False, or use --no-memory"
            )
        try:
            self.network.set_grad_checkpointing(True)
        except AssertionError as error:
            raise ValueError(f"timm's {self.architecture} does not support with_cp") from error

    def init_weights(self) -> None:
        """Load the weights of ``init_cfg``, or keep timm's random weights."""
        if self.init_cfg:
            initialize(self, self.init_cfg)

    def layers(self) -> Sequence[Sequence[nn.Module | nn.Parameter]]:
        """Return the stem and each block or stage, as timm groups them for layer decay."""
        group = timm().models.group_parameters
        try:
            groups = group(self.network, self.network.group_matcher(coarse=True))
        except (AssertionError, AttributeError):  # a few timm networks have no groups
            own = [*self.network.parameters(recurse=False)]
            parts: list[nn.Module] = []
            for child in self.network.children():
                parts += child.children() if isinstance(child, nn.Sequential) else [child]
            layers: list[list[Any]] = [own, *([part] for part in parts if [*part.parameters()])]
            return layers if own else layers[1:]
        return [_whole_parts(self.network, set(groups[number])) for number in sorted(groups)]

    def frame_maps(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (N, C, T, 1, 1) of the frames in clips (N, 3, T, H, W), and the clips.

        The heads of timm pool maps in many ways, so ``energy`` is computed from the pixels.

        Raises:
            ValueError: If the network does not accept frames of this size.
        """
        images = fold_frames(view)
        if refused := self.refused(view.shape[2], *view.shape[3:]):
            size = f"{view.shape[3]}x{view.shape[4]}"
            raise ValueError(f"{self.architecture} accepts {refused.takes}, got {size}")
        try:
            features = self.network(images)
        except AssertionError as error:
            raise ValueError(f"{self.architecture} refuses these frames: {error}") from error
        if features.shape != (len(images), self.frame_channels):
            raise ValueError(
                f"{self.architecture} returns features of shape {tuple(features.shape)} for "
                f"{len(images)} images, instead of a vector of {self.frame_channels} for each"
            )
        return unfold_frames(features[..., None, None], view), view

    def forward(self, view: Tensor) -> Tensor:
        """Map clips (N, 3, T, H, W) to features (N, C, T, 1, 1), whose mean represents a clip."""
        features, fine = self.frame_maps(view)
        return pool_frames(features, self.frame_pool, view, fine)

    @property
    def takes_one_size(self) -> bool:
        """Whether the network accepts only frames of one size."""
        return self._size is not None

    def refused(self, frames: int, height: int, width: int) -> Refusal | None:
        """Return which property of a clip does not suit the network, or None if all do."""
        if self._size is None or (height, width) == self._size:
            return None
        rows, columns = self._size
        return Refusal("size", f"frames of {rows}x{columns} pixels, for which it was built")


def _only_size(network: Any, model_args: dict[str, Any]) -> tuple[int, int] | None:
    """Return the image height and width of a fixed-size network, or None for any other."""
    if not network.pretrained_cfg.get("fixed_input_size") or model_args.get("dynamic_img_size"):
        return None
    size = model_args.get("img_size") or network.pretrained_cfg["input_size"][1:]
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns


def _whole_parts(module: nn.Module, names: set[str], prefix: str = "") -> list[Any]:
    """Return the largest submodules that contain only these parameters, and single parameters."""
    own = {f"{prefix}{name}" for name, _ in module.named_parameters()}
    if own and own <= names:
        return [module]
    found: list[Any] = [
        value
        for name, value in module.named_parameters(recurse=False)
        if f"{prefix}{name}" in names
    ]
    for name, child in module.named_children():
        inside = f"{prefix}{name}."
        if any(parameter.startswith(inside) for parameter in names):
            found += _whole_parts(child, names, inside)
    return found
