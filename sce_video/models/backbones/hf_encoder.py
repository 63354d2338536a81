"""Encoders of transformers as backbones: V-JEPA 2, VideoMAE, DINOv3, CLIP, SigLIP and others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.model import initialize
from torch import Tensor, nn

from sce_video.models.backbones.common import FreezableBackbone, check_frozen, check_view
from sce_video.models.backbones.frame_pools import ENERGY_CELLS, pool_frames, pooled_channels
from sce_video.models.backbones.timm_package import timm, without_state
from sce_video.models.backbones.token_dropping import TokenDropping
from sce_video.registry import MODELS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.stored_arguments import Variant

#: Entries of a model's ``config.json`` as plain data
Architecture = dict[str, Any]
#: Texts and tables in a model's ``config.json`` that affect no layer and are dropped
_READ_OVER = frozenset(
    "architectures dtype finetuning_task global_pool id2label label2id label_names model_type "
    "name_or_path _name_or_path _commit_hash out_features pipeline_tag prefix problem_type "
    "pruned_heads stage_names task_specific_params tokenizer_class torch_dtype "
    "transformers_version".split()
)
#: Words in names of switches and numbers that request more than a network. Texts and tables that
#: are not listed above are always refused.
_ASKS_FOR_MORE = ("adapter", "backbone", "kernel", "quant", "remote_code")
#: Attention implementations that a file may choose. Other values are names of kernels, which
#: transformers fetches from the hub and imports.
_IMPLEMENTATIONS = ("eager", "sdpa")
#: Classes of transformers that a file may choose for a part of the network, by ``model_type``
_CHOSEN = {"modernbert": "ModernBertConfig"}
#: Largest integer allowed in an untrusted config, because transformers creates such long lists
_LARGEST_NUMBER = 2**20
#: Maximum length of a list in an untrusted config: transformers creates a layer for each entry
_LONGEST_LIST = 1000


class PoolingClassifier(NamedTuple):
    """The classifier of a family, whose own layers pool the tokens."""

    model: str  # class name in transformers
    pool: str


class VisionPart(NamedTuple):
    """The vision part of models that also embed texts."""

    model: str  # class name in transformers
    path: str  # path to the network inside this class


class Refusal(NamedTuple):
    """The reason why an encoder does not accept a clip."""

    what: str  # "frames" or "size"
    takes: str  # description of what the encoder accepts


@dataclass(frozen=True)
class Family:
    """Properties that the models with one ``model_type`` have in common.

    Paths to modules and config entries are separated by dots.
    """

    model: str  # class name in transformers
    pools: tuple[str, ...]  # supported pools; the first is the default
    per_frame: bool = False  # whether it encodes each frame separately, as an image
    vision: VisionPart | None = None  # set if the vision part is a separate model
    layers: tuple[str, ...] = ("encoder.layer",)  # paths to lists of blocks
    embeddings: tuple[str, ...] = ("embeddings",)  # paths to the modules before the blocks
    unused: tuple[str, ...] = ()  # parts to remove, because no representation needs them
    classifier: PoolingClassifier | None = None  # if set, classifiers use its pool by default
    # Layers of the class, in order, that pool tokens for a classifier. In a family
    # without classifiers, they project instead.
    head: tuple[str, ...] = ()
    encoder: str = ""  # path to the module that maps clips to tokens
    pixels: str = "pixel_values"  # name of this module's argument
    projection: str = ""  # method that returns embeddings; if empty, the encoder returns them
    # Config entries of the vision part, of its number of channels, and of the size of the projected
    # embeddings. If the last one is None, the embeddings have as many channels as the vision part.
    part: str = ""
    width: str = "hidden_size"
    projected: str | None = None
    # Entries in the vision part's config for the patch size, and for the frame size of the learned
    # positions. If an entry is a name that ends with a number, such as a timm name, this number is
    # used.
    patch: str = "patch_size"
    stride: int | None = None  # set for a convolutional network, which has no patches
    size: str | None = "image_size"
    fixed_frames: bool = False  # whether learned positions require a fixed number of frames
    in_patches: bool = False  # NaFlex: accepts patches of frames of any aspect ratio
    # How the blocks can compute only some of the tokens. "tokens" means that the encoder receives
    # only these tokens. "positions" means that each block also receives their positions.
    drops: str = ""
    # Frame rate if the processor's config states none. None means that frames are spread over the
    # whole video.
    frames_per_second: float | None = 1.0
    source: str = "an image: frames a second apart"  # where this rate comes from
    # Properties of the processor's class that do not depend on its file: whether it normalises, the
    # ratio of short side to crop (if it is computed), and whether frames are scaled to 0..1 before
    # they are resized, which avoids rounding.
    normalized: bool = True
    short_side_ratio: float | None = None
    in_float: bool = False
    # Text part, if there is one: its modules, the layer that projects its first token (None if a
    # method does so), and whether texts are formatted as for SigLIP's training.
    text: tuple[str, ...] = ()
    text_projection: str | None = None
    siglip_text: bool = False
    needs_timm: bool = False  # whether timm builds the network

    def pools_with_head(self) -> str | None:
        """Return the pool that uses ``head``, or None."""
        if self.classifier:
            return self.classifier.pool
        return "projection" if self.head else None

    def built_by(self, pool: str) -> str:
        """Return the name of the class that contains all parts for a pool."""
        if self.classifier and self.classifier.pool == pool:
            return self.classifier.model
        return self.model

    def split(self, model: Any, pool: str) -> tuple[nn.Module, nn.Sequential]:
        """Return the network without unused parts, and the layers that pool its tokens."""
        names = self.head if pool == self.pools_with_head() else ()
        pooler = nn.Sequential(*(getattr(model, name) for name in names))
        # Use base_model only for classifiers, because DINOv3's base_model lacks the embeddings and
        # the norm.
        network = model if self.built_by(pool) == self.model else model.base_model
        if self.vision:
            network = getattr(model, self.vision.path, model)
        for name in (*self.unused, *self.text, *self.head):
            if hasattr(network, name):
                delattr(network, name)
        _register_tables(network)
        for name, parameter in network.named_parameters():
            if name.endswith("mask_token"):  # only used in masked training
                parameter.requires_grad_(False)
        return network, pooler


# Families that are variants of one another change only a few fields.
_DINOV2 = Family("Dinov2Model", pools=("class", "mean"), per_frame=True, size=None)
_CLIP = Family(
    "CLIPModel",
    pools=("projection",),
    per_frame=True,
    layers=("vision_model.encoder.layers",),
    embeddings=("vision_model.embeddings", "vision_model.pre_layrnorm"),
    part="vision_config",
    projected="projection_dim",
    projection="get_image_features",
    unused=(
        "logit_scale",
        "prompts_visual_layernorm",
        "prompts_visual_projection",
        "prompts_generator",
    ),
    text=("text_model", "text_projection"),
)
_SIGLIP = Family(
    "SiglipModel",
    pools=("projection", "mean"),
    per_frame=True,
    vision=VisionPart("SiglipVisionModel", "vision_model"),
    layers=("encoder.layers",),
    part="vision_config",
    text=("text_model",),
    siglip_text=True,
)
_VIDEOPRISM = Family(
    "VideoPrismVisionModel",
    pools=("mean", "attentive"),
    classifier=PoolingClassifier("VideoPrismForVideoClassification", "attentive"),
    head=("head", "head_layernorm"),
    layers=("spatial_layers", "temporal_layers"),
    embeddings=("spatial_embeddings", "temporal_embeddings"),
    pixels="pixel_values_videos",
    patch="tubelet_size",
    fixed_frames=True,
    frames_per_second=None,
    source="frames spread over the whole video (example of github.com/google-deepmind/videoprism)",
    normalized=False,
)
_TIMM = "video_encoder.embedder.vision_model.timm_model"
FAMILIES: dict[str, Family] = {
    "videomae": Family(
        "VideoMAEModel",
        pools=("mean", "mean_norm"),
        classifier=PoolingClassifier("VideoMAEForVideoClassification", "mean_norm"),
        head=("fc_norm",),
        drops="tokens",
        fixed_frames=True,
        frames_per_second=7.5,
        source="every fourth frame at 30 per second (arXiv 2203.12602, section 4)",
    ),
    "vjepa2": Family(
        "VJEPA2Model",
        pools=("mean", "attentive"),
        classifier=PoolingClassifier("VJEPA2ForVideoClassification", "attentive"),
        head=("pooler",),
        drops="positions",
        encoder="encoder",
        pixels="pixel_values_videos",
        embeddings=("encoder.embeddings",),
        unused=("predictor",),
        size="crop_size",
        # as in transformers, video_processing_vjepa2.py
        short_side_ratio=256 / 224,
        frames_per_second=4.0,
        source="4 frames per second (arXiv 2506.09985, section 2)",
    ),
    "videoprism_vision_model": _VIDEOPRISM,
    "videoprism": replace(
        _VIDEOPRISM,
        model="VideoPrismClipModel",
        pools=("projection", "mean"),
        classifier=None,
        head=(),
        vision=VisionPart("VideoPrismVideoModel", "video_model"),
        layers=("vision_model.spatial_layers", "vision_model.temporal_layers", "auxiliary_layers"),
        embeddings=("vision_model.spatial_embeddings", "vision_model.temporal_embeddings"),
        part="vision_config",
        text=("text_model",),
    ),
    "pe_video": Family(
        "PeVideoModel",
        pools=("projection", "mean"),
        head=("video_head",),
        encoder="video_encoder",
        pixels="pixel_values_videos",
        layers=(f"{_TIMM}.blocks", "video_encoder.layers"),
        embeddings=tuple(
            f"{_TIMM}.{name}" for name in ("patch_embed", "cls_token", "pos_embed", "norm_pre")
        ),
        part="video_config",
        projected="text_config.hidden_size",
        patch="vision_config.architecture",  # one token per frame
        size="vision_config.architecture",
        frames_per_second=None,
        source="frames spread over the whole video (transformers, video_processing_pe_video.py)",
        unused=("text_video_logit_scale", "text_video_logit_bias"),
        text=("text_model", "text_video_head"),
        text_projection="text_video_head",
        needs_timm=True,
    ),
    "dinov2": _DINOV2,
    "dinov2_with_registers": replace(_DINOV2, model="Dinov2WithRegistersModel"),
    "dinov3_vit": replace(_DINOV2, model="DINOv3ViTModel", layers=("model.layer",), in_float=True),
    "dinov3_convnext": replace(
        _DINOV2,
        model="DINOv3ConvNextModel",
        layers=("model.stages",),
        embeddings=("model.stages.0.downsample_layers",),
        width="hidden_sizes",
        stride=32,
        in_float=True,
    ),
    "clip": _CLIP,
    "xclip": replace(
        _CLIP,
        model="XCLIPModel",
        per_frame=False,
        embeddings=("vision_model.embeddings", "vision_model.pre_layernorm"),
        fixed_frames=True,
        projection="get_video_features",
        frames_per_second=None,
        source="frames spread over the whole video (arXiv 2208.02816, section 4)",
    ),
    # Published SigLIP 2 models also have this type, except those with variable resolution.
    "siglip": _SIGLIP,
    "siglip2": replace(
        _SIGLIP,
        model="Siglip2Model",
        vision=VisionPart("Siglip2VisionModel", "vision_model"),
        size=None,
        in_patches=True,
        in_float=True,
    ),
}


def transformers() -> Any:
    """Import the package transformers.

    Raises:
        MissingPackageError: If it is missing, or if torchvision prevents the import.
    """
    try:
        import transformers as package

        if find_spec("torchvision"):  # the models import it, and the import may fail with any error
            import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError(
            f"third-party encoders need the package transformers ({error}). Run pip install "
            "'sce-video[hf]'. If torchvision is installed, it must be a build for this torch "
            "(CPU or CUDA)"
        ) from error
    return package


def family_of(model_type: Any) -> Family:
    """Return the family with a ``model_type``.

    Raises:
        ValueError: If the type is not supported.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"models of type {model_type!r:.60} are not supported. Supported types: "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def architecture_of(config: Any) -> Architecture:
    """Return the non-default entries of a ``PreTrainedConfig`` as plain data."""
    return {"model_type": config.model_type, **_checked(config.to_diff_dict(), type(config), "")}


def config_of(architecture: Architecture) -> Any:
    """Build a ``PreTrainedConfig`` from untrusted plain data, which undoes :func:`architecture_of`.

    Only sizes are passed to transformers. These are the fields that the config class of the family,
    or of its text and vision parts, adds to the fields of every model.

    Raises:
        ValueError: If any other entry could make transformers load, download or import something,
            or if transformers refuses the sizes.
        MissingPackageError: If the network needs a package that is missing.
    """
    family = family_of(architecture.get("model_type"))
    kind = getattr(transformers(), family.model).config_class
    values = _checked(architecture, kind, "")
    if family.needs_timm and timm() and not transformers().utils.is_timm_available():
        raise MissingPackageError(f"{family.model} needs torchvision next to timm. Install both")
    try:
        return kind(**values)
    except Exception as error:  # huggingface_hub's validation errors share no base class
        known = isinstance(error, TypeError | AttributeError | ValueError)
        if not known and type(error).__module__.partition(".")[0] != "huggingface_hub":
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"architecture of the encoder: {reason}") from error


def _checked(stored: Architecture, kind: Any, path: str) -> Architecture:
    """Return the entries of untrusted plain data that shape the network (:func:`config_of`).

    ``kind`` is the config class for these entries, and ``path`` their path in the whole config.
    """
    of_every_model = {field.name for field in fields(transformers().PreTrainedConfig)}
    own = {field.name for field in fields(kind)} - of_every_model
    # Published VideoMAE files contain qkv_bias, and timm networks have num_classes.
    own |= {"qkv_bias"} | ({"num_classes"} if "architecture" in own else set())
    taken: Architecture = {}
    for key, value in stored.items():
        name = f"{path}{key}"
        part = kind.sub_configs.get(str(key).removesuffix("_dict"))
        if part is not None and isinstance(value, dict):
            of_type = _part_of_type(part, value.get("model_type"), name)
            taken[key] = _checked(value, of_type, f"{name}.")
            if of_type is not part:
                taken[key]["model_type"] = of_type.model_type
        elif key in own and part is None:
            taken[key] = _size(value, name)
        elif "implementation" in str(key):
            if value in _IMPLEMENTATIONS:
                taken["attn_implementation"] = value
            elif not (value is None or isinstance(value, bool)):
                raise ValueError(
                    f"{name} is {value!r:.80}, but only {' and '.join(_IMPLEMENTATIONS)} are "
                    "accepted. Any other name stands for code that is fetched from the hub"
                )
        elif str(key).endswith("dtype") and not _is_dtype(value):
            raise ValueError(f"{name} is {value!r:.80}, which is not a dtype")
        elif value and key not in _READ_OVER:
            parts = value if isinstance(value, list | tuple) else (value,)
            numbers = all(part is None or isinstance(part, bool | int | float) for part in parts)
            if not numbers or any(word in str(key) for word in _ASKS_FOR_MORE):
                raise ValueError(
                    f"{name} = {value!r:.80} is refused, because it may load code or files from "
                    "elsewhere. Use a model whose config contains only sizes"
                )
    return taken | ({"num_labels": taken["num_classes"]} if "num_classes" in taken else {})


def _part_of_type(part: Any, model_type: Any, name: str) -> Any:
    """Return the config class of a part, which a file may choose only among a few.

    Raises:
        ValueError: If the file names any other class.
    """
    if part is not transformers().AutoConfig:
        return part
    chosen = _CHOSEN.get(str(model_type))
    if chosen is None:
        raise ValueError(f"{name} must be of type {', '.join(_CHOSEN)}, got {model_type!r:.60}")
    return getattr(transformers(), chosen)


def _size(value: Any, name: str) -> Any:
    """Check a number, a switch, the name of an activation, or a list of them.

    A table is also accepted if it belongs to a rotary embedding.

    Raises:
        ValueError: If the value has another type or is too large.
    """
    if isinstance(value, list | tuple) and len(value) <= _LONGEST_LIST:
        return [_size(item, name) for item in value]
    if isinstance(value, dict) and ".rope_parameters" in name and name.count(".") < 9:
        return {str(key): _size(item, f"{name}.{key}") for key, item in value.items()}
    if name.endswith(".architecture") and not str(value).startswith("vit_pe_core_"):
        raise ValueError(f"{name} must be a vit_pe_core_ network of timm, got {value!r:.80}")
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        raise ValueError(f"{name} must be at most {_LARGEST_NUMBER}, got {value!r:.30}")
    plain = value is None or isinstance(value, bool | int | float)
    if not plain and not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"{name} must be a number or a name, got {value!r:.80}")
    return value


def _is_dtype(value: Any) -> bool:
    name = str(value).removeprefix("torch.")
    return value is None or isinstance(getattr(torch, name, None), torch.dtype)


def _register_tables(network: nn.Module) -> None:
    """Turn tensors that are plain attributes, such as VideoMAE's positions, into buffers.

    Buffers move to the device with the network, so they are not copied there in every pass.
    """
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


@MODELS.register_module()
class HFEncoder(FreezableBackbone):
    """A vision encoder of transformers, which accepts clips like those in its training.

    An image encoder (DINO, CLIP, SigLIP) encodes every frame of a clip, and ``frame_pool`` decides
    how the representation combines the frames. ``pool`` decides the features (N, C, T', H', W').
    Their mean over T', H', W' is the representation, so heads that average features work without
    changes:

    ========== ============================================ ==========================
    pool       representation of a clip                     features
    ========== ============================================ ==========================
    mean       mean of the patch tokens                     tokens (N, C, T', H', W')
    class      class token                                  (N, C, T, 1, 1)
    mean_norm  mean, normalised as in a VideoMAE classifier (N, C, 1, 1, 1)
    attentive  attentive pooler of a classifier             (N, C, 1, 1, 1)
    projection embedding shared with the texts, normalised  (N, D, 1, 1, 1), of images
               where the model does (VideoPrism)            (N, D, T, 1, 1)
    ========== ============================================ ==========================

    Args:
        architecture: ``config.json`` of the model as plain data: ``model_type``, and the entries
            that differ from the defaults of its class.
        pool: One of the pools above. None means the default of the family.
        resize_to: Side of the square to which frames of other sizes are resized, antialiased and in
            float, as some processors do (DINOv3). For SigLIP 2 with variable resolution, it
            determines the number of patches, and frames keep their aspect ratio. None refuses
            frames that do not fit.
        frozen_stages: -1 trains everything. 0 freezes the embeddings, 1 to 3 also freeze this many
            quarters of the blocks (stages of a ConvNeXt), and 4 freezes everything. A frozen layer
            has no gradient and stays in evaluation mode.
        with_cp: Activation checkpointing by transformers, in training mode
            (:class:`~sce_video.models.backbones.common.FreezableBackbone`).
        keep_tokens: Share of the tokens that are computed for the loss of a self-supervised method,
            as in :class:`~sce_video.models.VisionTransformer3d`. The features are then (N, C, K).
            Only VideoMAE and V-JEPA 2 support this.
        token_pattern: "random" or "tube", as in :class:`~sce_video.models.VisionTransformer3d`.
        frame_pool: How frame features are pooled into a representation
            (:func:`~sce_video.models.backbones.frame_pools.pool_frames`). Only image encoders
            support pools other than "mean".
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: If the model does not support an option, or if the architecture is not valid.
        MissingPackageError: If transformers is missing.
    """

    def __init__(
        self,
        architecture: Architecture,
        pool: str | None = None,
        resize_to: int | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        keep_tokens: float = 1.0,
        token_pattern: str = "random",
        frame_pool: Variant = "mean",
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        self.family = family_of(architecture.get("model_type"))
        self.token_dropping = TokenDropping(keep_tokens, token_pattern)
        self.pool_name = self.family.pools[0] if pool is None else pool
        self.frame_pool = frame_pool
        self._check_options(architecture["model_type"], keep_tokens)
        check_frozen(frozen_stages)
        config = config_of(architecture)
        self.resize_to = resize_to
        self.frozen_stages = frozen_stages
        family = self.family
        package = transformers()
        vision: Any = getattr(config, family.part) if family.part else config
        if family.vision:  # leave out the text part, whose vocabulary is larger than the rest
            model = getattr(package, family.vision.model)(vision)
        else:
            model = getattr(package, family.built_by(self.pool_name))(config)
        self.network: Any
        self.network, self.pooler = family.split(model, self.pool_name)
        if with_cp:  # in transformers 5, the old name prints a warning
            old = "gradient_checkpointing_enable"
            name = "activation_checkpointing_enable"
            getattr(self.network, name, getattr(self.network, old))({"use_reentrant": False})
        if self.pool_name == "projection" and not getattr(vision, "vision_use_head", True):
            raise ValueError(
                "the model has no head, and therefore no embedding that is shared with text. Use "
                "pool='mean'"
            )
        projected = family.projected if self.pool_name == "projection" else None
        width = attrgetter(projected)(config) if projected else getattr(vision, family.width)
        self.frame_channels: int = width[-1] if isinstance(width, list | tuple) else width
        self.out_channels = pooled_channels(frame_pool, self.frame_channels)
        sides = attrgetter(family.patch)(vision) if family.stride is None else family.stride
        self._patch = _side(sides)
        time = getattr(vision, "tubelet_size", 1)
        self._tubelet = time[0] if isinstance(time, list | tuple) else time
        # Frame size and number of frames for which the position embedding was learned, or None.
        self._size = None if family.size is None else _side(attrgetter(family.size)(vision))
        self._frames = vision.num_frames if family.fixed_frames else None
        self.freeze()

    def __reduce__(self) -> tuple[Any, ...]:
        return without_state, (type(self), self.family.needs_timm), self.__dict__

    def _check_options(self, model_type: str, keep_tokens: float) -> None:
        """Raise ValueError if the family does not support an option."""
        family = self.family
        if keep_tokens < 1.0 and not family.drops:
            able = " and ".join(name for name, family in FAMILIES.items() if family.drops)
            raise ValueError(
                f"keep_tokens of {model_type} must be 1, got {keep_tokens}. Only {able} can "
                "compute some of the tokens"
            )
        if self.pool_name not in family.pools:
            raise ValueError(
                f"pool of {model_type} must be one of {', '.join(family.pools)}, got "
                f"{self.pool_name!r}"
            )
        pooled_channels(self.frame_pool, 1)  # raises ValueError for an unknown pool
        if self.frame_pool != "mean" and not family.per_frame:
            raise ValueError(
                f"frame_pool of {model_type} must be mean, got {self.frame_pool!r}. Only image "
                "encoders have features of single frames"
            )

    def init_weights(self) -> None:
        """Load the weights of ``init_cfg``, or keep transformers' random weights."""
        if self.init_cfg:
            initialize(self, self.init_cfg)

    def layers(self) -> Sequence[Sequence[nn.Module | nn.Parameter]]:
        """Return the embeddings together with a norm that follows them, and each block."""
        blocks = [block for name in self.family.layers for block in attrgetter(name)(self.network)]
        embeddings = [attrgetter(name)(self.network) for name in self.family.embeddings]
        return [embeddings, *([block] for block in blocks)]

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to features (N, C, T', H', W'), as the class describes."""
        features, fine = self.frame_maps(view)
        return pool_frames(features, self.frame_pool, view, fine)

    def frame_maps(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, 3, T, H, W) to features before frames are pooled, and to maps for ``energy``.

        The maps are the patch tokens if they are the features and fine enough, else the pixels.
        """
        features = self._features(view)
        fine = self.pool_name == "mean" and min(features.shape[3:], default=0) >= ENERGY_CELLS
        return features, features if fine else view

    def _features(self, view: Tensor) -> Tensor:
        """Return the features (N, C, T', H', W') before frames are pooled."""
        check_view(view)
        N, _, T = view.shape[:3]
        frames = view.transpose(1, 2)  # (N, T, 3, H, W)
        if self.resize_to is not None:
            size = self._resized(*view.shape[3:])
            if size != tuple(view.shape[3:]):
                images = frames.flatten(0, 1)
                images = F.interpolate(images, size, mode="bilinear", antialias=True)
                frames = images.unflatten(0, (N, T))
        self.check_clip(T, *frames.shape[3:])
        inputs = self._inputs(frames.flatten(0, 1) if self.family.per_frame else frames)
        encoder = self.network.get_submodule(self.family.encoder)
        if self.pool_name == "projection":
            method = self.family.projection
            project = getattr(self.network, method) if method else encoder
            pooled = project(**inputs).pooler_output
        else:
            rows, columns = (side // self._patch for side in frames.shape[3:])
            grid = (max(1, T // self._tubelet), rows, columns)
            kept = self.token_dropping.draw(N, grid, view.device) if self.training else None
            if kept is not None:
                tokens = self._kept_tokens(inputs[self.family.pixels], kept)
                if self.pool_name == "mean":
                    return tokens.transpose(1, 2)
            else:
                tokens = encoder(**inputs).last_hidden_state
            class_token = tokens[:, 0]
            if "class" in self.family.pools:
                registers = getattr(self.network.config, "num_register_tokens", 0) or 0
                tokens = tokens[:, 1 + registers :]
            if self.pool_name == "mean":
                # Patch tokens are ordered by time, then row, then column.
                return tokens.reshape(N, *grid, tokens.shape[-1]).permute(0, 4, 1, 2, 3)
            pooled = tokens.mean(dim=1) if self.pool_name == "mean_norm" else tokens
            pooled = class_token if self.pool_name == "class" else pooled
        for layer in self.pooler:
            pooled = layer(pooled)
            pooled = pooled[0] if isinstance(pooled, tuple) else pooled  # drop attention weights
        pooled = pooled.reshape(N, -1, pooled.shape[-1])
        return pooled.transpose(1, 2)[..., None, None]

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which frames are resized for the encoder, as ``resize_to`` says."""
        side = self.resize_to or 0
        if not self.family.in_patches:
            return side, side
        # Use this image processor of transformers, because it does not need torchvision.
        from transformers.models.siglip2.image_processing_pil_siglip2 import (
            get_image_size_for_max_num_patches,
        )

        most = (side // self._patch) ** 2
        return get_image_size_for_max_num_patches(height, width, self._patch, most)

    def _inputs(self, clip: Tensor) -> dict[str, Tensor]:
        """Return the encoder's arguments for clips (N, T, 3, H, W) or frames (N, 3, H, W)."""
        if not self.family.in_patches:
            return {self.family.pixels: clip.contiguous()}
        rows, columns = (side // self._patch for side in clip.shape[2:])
        patches = clip.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))
        # The values of a patch are ordered by row, then column, then channel.
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        shapes = torch.tensor([[rows, columns]]).expand(len(clip), 2)
        mask = torch.ones(patches.shape[:2], dtype=torch.int32, device=clip.device)
        return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shapes}

    def _kept_tokens(self, clip: Tensor, kept: Tensor) -> Tensor:
        """Return tokens (N, K, C) at the positions ``kept`` (N, K) of a clip (N, T, 3, H, W)."""
        if self.family.drops == "tokens":
            # Select tokens here, because the network's own forward pass uses a boolean mask, which
            # makes the host wait for the device.
            tokens = self.network.embeddings(clip, None).take_along_dim(kept[..., None], dim=1)
            tokens = self.network.encoder(tokens).last_hidden_state
            norm = self.network.layernorm
            return tokens if norm is None else norm(tokens)
        # Avoid the network's own forward pass, which computes all tokens before it selects some.
        encoder = self.network.encoder
        tokens = encoder.embeddings(clip).take_along_dim(kept[..., None], dim=1)
        for layer in encoder.layer:
            tokens = layer(tokens, kept)[0]
        return encoder.layernorm(tokens)

    def refused(self, frames: int, height: int, width: int) -> Refusal | None:
        """Return which property of a clip does not suit the encoder, or None if all do."""
        if self._frames is not None and frames != self._frames:
            taken = f"clips of {self._frames} frames, to which its positions belong"
            return Refusal("frames", taken)
        if frames > self._tubelet and frames % self._tubelet:
            return Refusal("frames", f"a number of frames that is a multiple of {self._tubelet}")
        if self._size and {height, width} != {self._size}:
            return Refusal(
                "size", f"frames of {self._size}x{self._size} pixels, to which its positions belong"
            )
        if height % self._patch or width % self._patch:
            return Refusal(
                "size", f"sides that are multiples of its patch size of {self._patch} pixels"
            )
        return None

    def check_clip(self, frames: int, height: int, width: int) -> None:
        """Check that the encoder accepts a clip.

        Raises:
            ValueError: If it does not. The message describes which clips it accepts.
        """
        if refused := self.refused(frames, height, width):
            got = frames if refused.what == "frames" else f"{height}x{width}"
            name = type(self.network).__name__
            raise ValueError(f"{name} accepts {refused.takes}, got {got}. Change the pipelines")

    @property
    def takes_one_size(self) -> bool:
        """Whether the encoder accepts only frames of one size, to which its positions belong."""
        return self._size is not None


def _side(value: Any) -> int:
    """Return the side of a square from a number, a list or a name.

    Args:
        value: The side, a list whose last two numbers are equal, or a name that ends with the side.

    Raises:
        ValueError: If the sides differ or are not whole numbers.
    """
    if isinstance(value, str):
        found = re.search(r"\d+$", value)
        value = int(found[0]) if found else value
    sides = list(value[-2:]) if isinstance(value, list | tuple) else [value]
    if len(set(sides)) != 1 or type(sides[0]) is not int or sides[0] < 1:
        raise ValueError(f"sides of frames and patches must be equal, got {value!r:.60}")
    return sides[0]
