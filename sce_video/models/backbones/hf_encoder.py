"""Encoders of transformers as backbones: V-JEPA 2, VideoMAE, DINOv2, DINOv3, CLIP, X-CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import initialize
from torch import Tensor, nn

from sce_video.models.backbones.common import FreezableBackbone, check_frozen, check_view
from sce_video.registry import MODELS
from sce_video.utils.errors import MissingPackageError

#: Entries of a model's ``config.json`` that are text or tables and shape no layer; not passed on.
_READ_OVER = frozenset(
    "architectures dtype finetuning_task id2label label2id model_type name_or_path _name_or_path "
    "_commit_hash out_features pipeline_tag prefix problem_type pruned_heads stage_names "
    "task_specific_params tokenizer_class torch_dtype transformers_version".split()
)
#: Parts of the names of switches and numbers that ask for more than a network. Text and tables that
#: are not listed above are refused whatever their names are.
_ASKS_FOR_MORE = ("adapter", "backbone", "kernel", "quant", "remote_code")
#: Others are names of kernels, which transformers fetches from the hub and imports.
_IMPLEMENTATIONS = ("eager", "sdpa")
_PROJECTED = ("get_video_features", "get_image_features")


@dataclass(frozen=True)
class Family:
    """What is common to the models of one ``model_type``."""

    model: str  # name of the class in transformers
    pools: tuple[str, ...]  # ways to pool its features; the first is the default
    per_frame: bool = False  # it encodes images, a clip frame by frame
    layers: str = "encoder.layer"  # path of the list of blocks in the network
    embeddings: str = "embeddings"  # path of what comes before the blocks
    embedding_norm: str = ""  # path of the norm between the two, if it is no part of either
    unused: tuple[str, ...] = ()  # parts that no representation needs; they are removed
    # Class of its classifiers and the pool that they bring, which is then the default.
    classifier: tuple[str, str] | None = None
    # Where the processor's config names none; None spreads the frames over the whole video.
    frames_per_second: float | None = 1.0
    source: str = "an image: frames a second apart"  # of that rate


_DINO: dict[str, Any] = dict(pools=("class", "mean"), per_frame=True)
_CLIP: dict[str, Any] = dict(
    pools=("projection",),
    layers="vision_model.encoder.layers",
    embeddings="vision_model.embeddings",
)
_TEXT = ("text_model", "text_projection", "logit_scale")
_PROMPTS = ("prompts_visual_layernorm", "prompts_visual_projection", "prompts_generator")
FAMILIES: dict[str, Family] = {
    "videomae": Family(
        "VideoMAEModel",
        pools=("mean", "mean_norm"),
        classifier=("VideoMAEForVideoClassification", "mean_norm"),
        frames_per_second=7.5,
        source="every fourth frame at 30 per second (arXiv 2203.12602, section 4)",
    ),
    "vjepa2": Family(
        "VJEPA2Model",
        pools=("mean", "attentive"),
        classifier=("VJEPA2ForVideoClassification", "attentive"),
        embeddings="encoder.embeddings",
        unused=("predictor",),
        frames_per_second=4.0,
        source="4 frames per second (arXiv 2506.09985, section 2)",
    ),
    "dinov2": Family("Dinov2Model", **_DINO),
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", **_DINO),
    "dinov3_vit": Family("DINOv3ViTModel", layers="model.layer", **_DINO),
    "clip": Family(
        "CLIPModel",
        per_frame=True,
        embedding_norm="vision_model.pre_layrnorm",
        unused=_TEXT,
        **_CLIP,
    ),
    "xclip": Family(
        "XCLIPModel",
        embedding_norm="vision_model.pre_layernorm",
        unused=(*_TEXT, *_PROMPTS),
        frames_per_second=None,
        source="frames spread over the whole video (arXiv 2208.02816, section 4)",
        **_CLIP,
    ),
}


def transformers() -> Any:
    """The package transformers; MissingPackageError if it is not installed."""
    try:
        import transformers as package
    except ImportError as error:
        raise MissingPackageError(
            f"encoders of others need the package transformers ({error}): pip install "
            "'sce-video[hf]'"
        ) from error
    return package


def family_of(model_type: Any) -> Family:
    """The family of a ``model_type``; ValueError if there is none of this name."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"a model of type {model_type!r:.60} is no encoder of videos or images that is known "
            f"here; known: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def architecture_of(config: Any) -> dict[str, Any]:
    """A ``PreTrainedConfig`` as plain data: what differs from the defaults of its class."""
    return {"model_type": config.model_type, **_checked(config.to_diff_dict(), type(config), "")}


def config_of(architecture: dict[str, Any]) -> Any:
    """The ``PreTrainedConfig`` of untrusted plain data; the inverse of :func:`architecture_of`.

    transformers gets the sizes alone: the fields that the config class of the family, or of its
    text and vision parts, adds to those of every model. What other entries could make it load,
    download or import is a ValueError.
    """
    family = family_of(architecture.get("model_type"))
    kind = getattr(transformers(), family.model).config_class
    values = _checked(architecture, kind, "")
    try:
        return kind(**values)
    except Exception as error:  # huggingface_hub's validation errors have no common class
        known = isinstance(error, TypeError | AttributeError | ValueError)
        if not known and type(error).__module__.partition(".")[0] != "huggingface_hub":
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"architecture of the encoder: {reason}") from error


def _checked(stored: dict[str, Any], kind: Any, path: str) -> dict[str, Any]:
    """Entries of untrusted plain data that shape the network of a config class, see `config_of`.

    ``path`` is that of ``stored`` in the whole config, for messages.
    """
    of_every_model = {field.name for field in fields(transformers().PreTrainedConfig)}
    own = {field.name for field in fields(kind)} - of_every_model
    own.add("qkv_bias")  # VideoMAE's name of qv_bias in published files
    taken: dict[str, Any] = {}
    for key, value in stored.items():
        name, part = f"{path}{key}", kind.sub_configs.get(str(key).removesuffix("_dict"))
        if part is not None and isinstance(value, dict):
            taken[key] = _checked(value, part, f"{name}.")
        elif key in own and part is None:
            taken[key] = _size(value, name)
        elif "implementation" in str(key):
            if value in _IMPLEMENTATIONS:
                taken["attn_implementation"] = value
            elif not (value is None or isinstance(value, bool)):
                raise ValueError(
                    f"{name} is {value!r:.80}, but only {' and '.join(_IMPLEMENTATIONS)} are taken"
                    ": other names are those of code that is fetched from the hub"
                )
        elif str(key).endswith("dtype") and not _is_dtype(value):
            raise ValueError(f"{name} is {value!r:.80}, which is no type of numbers")
        elif value and key not in _READ_OVER:
            parts = value if isinstance(value, list | tuple) else (value,)
            numbers = all(part is None or isinstance(part, bool | int | float) for part in parts)
            if not numbers or any(word in str(key) for word in _ASKS_FOR_MORE):
                raise ValueError(
                    f"{name} = {value!r:.80} is refused: it may ask for code of its own, or for "
                    "files elsewhere; give a model with the sizes of its network alone"
                )
    return taken


def _size(value: Any, name: str) -> Any:
    """A number, a switch, the name of an activation, or a list of these."""
    if isinstance(value, list | tuple):
        return [_size(item, name) for item in value]
    plain = value is None or isinstance(value, bool | int | float)
    if not plain and not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"{name} must be a number or a name, got {value!r:.80}")
    return value


def _is_dtype(value: Any) -> bool:
    name = str(value).removeprefix("torch.")
    return value is None or isinstance(getattr(torch, name, None), torch.dtype)


def vision_part(model: nn.Module, family: Family) -> nn.Module:
    """``model`` without the parts that no representation of a video needs."""
    for name in family.unused:
        if hasattr(model, name):
            delattr(model, name)
    for name, parameter in model.named_parameters():
        if name.endswith("mask_token"):  # only a masked training uses it
            parameter.requires_grad_(False)
    return model


@MODELS.register_module()
class HFEncoder(FreezableBackbone):
    """A vision encoder of transformers, which takes the clips that it was trained with.

    An encoder of images (DINOv2, DINOv3, CLIP) encodes every frame of a clip, and the
    representation is the mean over the frames. The features (N, C, T', H', W') depend on ``pool``,
    and their mean over T', H', W' is the representation, so heads that average them see the same:

    ========== ============================================ ==========================
    pool       representation of a clip                     features
    ========== ============================================ ==========================
    mean       mean of the patch tokens                     tokens (N, C, T', H', W')
    class      class token                                  (N, C, T, 1, 1)
    mean_norm  mean, normalised as in a VideoMAE classifier (N, C, 1, 1, 1)
    attentive  attentive pooler of a V-JEPA 2 classifier    (N, C, 1, 1, 1)
    projection embedding shared with the texts, not         (N, D, 1, 1, 1), CLIP
               normalised                                   (N, D, T, 1, 1)
    ========== ============================================ ==========================

    Args:
        architecture: ``config.json`` of the model as plain data: ``model_type`` and what differs
            from the defaults of its class.
        pool: See above; None for the first that the family has.
        resize_to: Side of the square to which frames of other sizes are resized, antialiased and
            in float: for processors that do so (DINOv3's); None refuses what does not fit.
        frozen_stages: -1 trains everything; 0 freezes the embeddings, s also s quarters of the
            blocks, 4 everything. A frozen part takes no gradient and stays in evaluation mode.
        init_cfg: mmengine's initialisation config.
    """

    def __init__(
        self,
        architecture: dict[str, Any],
        pool: str | None = None,
        resize_to: int | None = None,
        frozen_stages: int = -1,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.family = family_of(architecture.get("model_type"))
        self.pool_name = self.family.pools[0] if pool is None else pool
        if self.pool_name not in self.family.pools:
            raise ValueError(
                f"pool of a {architecture['model_type']} must be one of "
                f"{', '.join(self.family.pools)}, got {pool!r}"
            )
        check_frozen(frozen_stages)
        config = config_of(architecture)
        self.resize_to = resize_to
        self.frozen_stages = frozen_stages
        network = getattr(transformers(), self.family.model)(config)
        self.network: Any = vision_part(network, self.family)
        # What classifiers of the family pool patch tokens with.
        if self.pool_name == "mean_norm":
            self.pooler: nn.Module = nn.LayerNorm(config.hidden_size)
        elif self.pool_name == "attentive":
            from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2AttentivePooler

            self.pooler = VJEPA2AttentivePooler(config)
        projected = self.pool_name == "projection"
        self.out_channels = config.projection_dim if projected else config.hidden_size
        vision = getattr(config, "vision_config", config)
        self._patch = _side(vision.patch_size)
        self._tubelet = getattr(vision, "tubelet_size", 1)
        # Sizes and numbers of frames that a learned position embedding ties the encoder to.
        self._size: int | None = None
        if not config.model_type.startswith("dino"):  # theirs adapts to any size
            side = vision.crop_size if config.model_type == "vjepa2" else vision.image_size
            self._size = _side(side)
        fixed = config.model_type in ("videomae", "xclip")
        self._frames = vision.num_frames if fixed else None
        self.freeze()

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names; transformers has drawn the weights otherwise."""
        if self.init_cfg:
            initialize(self, self.init_cfg)

    def layers(self) -> Sequence[Sequence[nn.Module]]:
        """The embeddings, with a norm that follows them, and each block."""
        before = (self.family.embeddings, self.family.embedding_norm)
        blocks: Any = self.network.get_submodule(self.family.layers)
        embeddings = [self.network.get_submodule(path) for path in before if path]
        return [embeddings, *([block] for block in blocks)]

    def forward(self, view: Tensor) -> Tensor:
        """(N, 3, T, H, W) to features (N, C, T', H', W'), see the class."""
        check_view(view)
        N, _, T = view.shape[:3]
        frames = view.transpose(1, 2)  # (N, T, 3, H, W)
        if self.resize_to is not None and tuple(view.shape[3:]) != (self.resize_to,) * 2:
            size, images = (self.resize_to,) * 2, frames.flatten(0, 1)
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
            frames = images.unflatten(0, (N, T))
        self.check_clip(T, *frames.shape[3:])
        clip = frames.flatten(0, 1) if self.family.per_frame else frames
        if self.pool_name == "projection":
            name = next(name for name in _PROJECTED if hasattr(self.network, name))
            pooled = getattr(self.network, name)(pixel_values=clip).pooler_output
        else:
            tokens, class_token = self._tokens(clip)
            if self.pool_name == "mean":
                # Patch tokens come in the order time, row, column.
                rows, columns = (side // self._patch for side in frames.shape[3:])
                grid = tokens.reshape(N, -1, rows, columns, tokens.shape[-1])
                return grid.permute(0, 4, 1, 2, 3)
            if self.pool_name == "mean_norm":
                tokens = tokens.mean(dim=1)
            pooled = class_token if self.pool_name == "class" else self.pooler(tokens)
        return pooled.unflatten(0, (N, -1)).transpose(1, 2)[..., None, None]

    def _tokens(self, clip: Tensor) -> tuple[Tensor, Tensor | None]:
        """Patch tokens (N, L, C) and class token (N, C) of (N, T, 3, H, W) or of frames."""
        config = self.network.config
        if config.model_type == "vjepa2":
            return self.network.encoder(pixel_values_videos=clip).last_hidden_state, None
        tokens = self.network(pixel_values=clip).last_hidden_state
        if config.model_type == "videomae":
            return tokens, None
        first = 1 + (getattr(config, "num_register_tokens", 0) or 0)
        return tokens[:, first:], tokens[:, 0]

    def check_clip(self, frames: int, height: int, width: int) -> None:
        """Raise ValueError, which says what the encoder takes, for other clips."""
        taken = ""
        if self._frames is not None and frames != self._frames:
            taken = (
                f"clips of {self._frames} frames, to which its positions belong, got "
                f"{frames}: set num_frames={self._frames} in the pipelines"
            )
        elif frames > self._tubelet and frames % self._tubelet:
            taken = f"a number of frames that is a multiple of {self._tubelet}, got {frames}"
        elif self._size is not None and (height, width) != (self._size, self._size):
            taken = (
                f"frames of {self._size}x{self._size} pixels, to which its positions "
                f"belong, got {height}x{width}: set the crop sizes of the pipelines"
            )
        elif height % self._patch or width % self._patch:
            taken = (
                f"frames whose sides are multiples of its patches of {self._patch} "
                f"pixels, got {height}x{width}"
            )
        if taken:
            raise ValueError(f"{type(self.network).__name__} takes {taken}")

    @property
    def takes_one_size(self) -> bool:
        """Whether its positions belong to frames of one size."""
        return self._size is not None


def _side(value: Any) -> int:
    """One number of a size that may be given as two equal ones."""
    return int(value[0] if isinstance(value, list | tuple) else value)
