"""Families of encoders in transformers: how each is built, called, pooled and frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sce_video.utils.errors import MissingPackageError

#: How features become a representation.
POOLS = ("mean", "class", "mean_norm", "attentive", "projection")
#: Entries of a model's ``config.json`` that shape no layer.
_NO_ARCHITECTURE = (
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
    *("id2label", "label2id", "num_labels", "problem_type", "_attn_implementation_internal"),
)
_PROJECTED = ("get_video_features", "get_image_features")


@dataclass(frozen=True)
class Family:
    """What is common to the models of one ``model_type``.

    Attributes:
        model: Name of the class in transformers.
        pools: Ways to pool its features; the first is the default.
        per_frame: Whether it encodes images, so that a clip is encoded frame by frame.
        layers: Path of the list of blocks in the network.
        embeddings: Path of what comes before the blocks.
        unused: Parts that no representation needs; they are removed.
        classifier: Class of its classifiers and the pool that they bring, which is then the
            default; None where they bring none.
        frames_per_second: Rate of the frames where the processor's config names none; None spreads
            the frames over the whole video.
        source: Where that rate is from.
    """

    model: str
    pools: tuple[str, ...]
    per_frame: bool
    layers: str
    embeddings: str
    unused: tuple[str, ...] = ()
    classifier: tuple[str, str] | None = None
    frames_per_second: float | None = 1.0
    source: str = "an image: frames a second apart"


_DINO = dict(pools=("class", "mean"), per_frame=True, embeddings="embeddings")
_TEXT = ("text_model", "text_projection", "logit_scale")
FAMILIES: dict[str, Family] = {
    "videomae": Family(
        "VideoMAEModel",
        pools=("mean", "mean_norm"),
        classifier=("VideoMAEForVideoClassification", "mean_norm"),
        per_frame=False,
        layers="encoder.layer",
        embeddings="embeddings",
        frames_per_second=7.5,
        source="every fourth frame at 30 per second (arXiv 2203.12602, section 4)",
    ),
    "vjepa2": Family(
        "VJEPA2Model",
        pools=("mean", "attentive"),
        classifier=("VJEPA2ForVideoClassification", "attentive"),
        per_frame=False,
        layers="encoder.layer",
        embeddings="encoder.embeddings",
        unused=("predictor",),
        frames_per_second=4.0,
        source="4 frames per second (arXiv 2506.09985, section 2)",
    ),
    "dinov2": Family("Dinov2Model", layers="encoder.layer", **_DINO),  # type: ignore[arg-type]
    "dinov2_with_registers": Family(
        "Dinov2WithRegistersModel",
        layers="encoder.layer",
        **_DINO,  # type: ignore[arg-type]
    ),
    "dinov3_vit": Family("DINOv3ViTModel", layers="model.layer", **_DINO),  # type: ignore[arg-type]
    "clip": Family(
        "CLIPModel",
        pools=("projection",),
        per_frame=True,
        layers="vision_model.encoder.layers",
        embeddings="vision_model.embeddings",
        unused=_TEXT,
    ),
    "xclip": Family(
        "XCLIPModel",
        pools=("projection",),
        per_frame=False,
        layers="vision_model.encoder.layers",
        embeddings="vision_model.embeddings",
        unused=(
            *_TEXT,
            *("prompts_visual_layernorm", "prompts_visual_projection", "prompts_generator"),
        ),
        frames_per_second=None,
        source="frames spread over the whole video (arXiv 2208.02816, section 4)",
    ),
}


def transformers() -> Any:
    """The package transformers.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import transformers as package
    except ImportError as error:
        raise MissingPackageError(
            f"encoders of others need the package transformers ({error}): pip install "
            "'sce-video[hf]'"
        ) from error
    return package


def family_of(model_type: Any) -> Family:
    """The family of a ``model_type``.

    Raises:
        ValueError: there is none of this name.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"a model of type {model_type!r:.60} is no encoder of videos or images that is known "
            f"here; known: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def architecture_of(config: Any) -> dict[str, Any]:
    """A ``PreTrainedConfig`` as plain data: what differs from the defaults of its class."""
    found = _without_noise(config.to_diff_dict())
    return {"model_type": config.model_type, **found}


def _without_noise(node: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_noise(value) if isinstance(value, dict) else value
        for key, value in node.items()
        if key not in _NO_ARCHITECTURE
    }


def config_of(architecture: dict[str, Any]) -> Any:
    """The ``PreTrainedConfig`` of plain data; the inverse of :func:`architecture_of`.

    Raises:
        ValueError: the family or a value is not valid.
    """
    family_of(architecture.get("model_type"))
    values = _lists({k: v for k, v in architecture.items() if k != "model_type"})
    try:
        return transformers().AutoConfig.for_model(architecture["model_type"], **values)
    except Exception as error:  # huggingface_hub's validation errors have no common class
        known = isinstance(error, TypeError | AttributeError | ValueError)
        if not known and type(error).__module__.partition(".")[0] != "huggingface_hub":
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"architecture of the encoder: {reason}") from error


def _lists(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _lists(value) for key, value in node.items()}
    return [_lists(value) for value in node] if isinstance(node, list | tuple) else node


def build_network(config: Any) -> nn.Module:
    """The vision part of a model, with random weights."""
    family = family_of(config.model_type)
    return vision_part(getattr(transformers(), family.model)(config), family)


def vision_part(model: nn.Module, family: Family) -> nn.Module:
    """``model`` without the parts that no representation of a video needs."""
    for name in family.unused:
        if hasattr(model, name):
            delattr(model, name)
    for name, parameter in model.named_parameters():
        if name.endswith("mask_token"):  # only a masked training uses it
            parameter.requires_grad_(False)
    return model


def build_pooler(config: Any) -> nn.Module:
    """What a classifier of the family pools patch tokens with, with random weights.

    V-JEPA 2: the attentive pooler. VideoMAE: the norm of their mean, ``fc_norm``.
    """
    transformers()
    if config.model_type == "videomae":
        return nn.LayerNorm(config.hidden_size)
    from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2AttentivePooler

    return VJEPA2AttentivePooler(config)


def tokens_of(network: nn.Module, clip: Tensor) -> tuple[Tensor, Tensor | None]:
    """Patch tokens (N, L, C) and class token (N, C) or None.

    Args:
        network: Of :func:`build_network`, of a family that has tokens.
        clip: (N, T, 3, H, W) for a video network, (N, 3, H, W) for one of images.
    """
    config: Any = network.config
    if config.model_type == "vjepa2":
        encoder: Any = network.encoder
        return encoder(pixel_values_videos=clip).last_hidden_state, None
    tokens = network(pixel_values=clip).last_hidden_state
    if config.model_type == "videomae":
        return tokens, None
    first = 1 + (getattr(config, "num_register_tokens", 0) or 0)
    return tokens[:, first:], tokens[:, 0]


def projection_of(network: nn.Module, clip: Tensor) -> Tensor:
    """Embeddings (N, D) in the space that a video-text model shares with its texts."""
    method: Callable[..., Any] = next(
        getattr(network, name) for name in _PROJECTED if hasattr(network, name)
    )
    return method(pixel_values=clip).pooler_output


def submodule(network: nn.Module, path: str) -> Any:
    """The part of a network at a dotted path."""
    return network.get_submodule(path)
