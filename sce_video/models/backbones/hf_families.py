"""Families of encoders in transformers: how each is built, called, pooled and frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.utils.errors import MissingPackageError

#: How features become a representation.
POOLS = ("mean", "class", "mean_norm", "attentive", "projection")
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
    return {"model_type": config.model_type, **_checked(config.to_diff_dict(), type(config), "")}


def config_of(architecture: dict[str, Any]) -> Any:
    """The ``PreTrainedConfig`` of plain data; the inverse of :func:`architecture_of`.

    The data may be a stranger's. transformers gets the sizes alone: the fields that the config
    class of the family, or of its text and vision parts, adds to those of every model. What other
    entries could make it load, download or import is refused.

    Raises:
        ValueError: the family or a value is not valid, or an entry is refused.
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
    """The entries of a config that shape the network; see :func:`config_of`.

    Args:
        stored: Untrusted plain data.
        kind: Class of the config.
        path: Of ``stored`` in the whole config, for messages.
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
        elif value and key not in _READ_OVER and _asks_for_more(str(key), value):
            raise ValueError(
                f"{name} = {value!r:.80} is refused: it may ask for code of its own, or for files "
                "elsewhere; give a model with the sizes of its network alone"
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


def _asks_for_more(key: str, value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else (value,)
    numbers = all(part is None or isinstance(part, bool | int | float) for part in parts)
    return not numbers or any(word in key for word in _ASKS_FOR_MORE)


def _is_dtype(value: Any) -> bool:
    name = str(value).removeprefix("torch.")
    return value is None or isinstance(getattr(torch, name, None), torch.dtype)


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
