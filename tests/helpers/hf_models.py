"""Small models of transformers with random weights and their processors, in local folders."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch

SIDE, PATCH, FRAMES = 32, 8, 4
_VIT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
_MEAN, _STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
_CROP = dict(
    do_resize=True,
    do_center_crop=True,
    do_rescale=True,
    do_normalize=True,
    rescale_factor=1 / 255,
    image_mean=_MEAN,
    image_std=_STD,
    crop_size={"height": SIDE, "width": SIDE},
)
#: Short side of the processors: that of :data:`VIDEO_SIZE`, so that nothing is resampled.
SHORT_SIDE = int(SIDE * 256 / 224)
VIDEO_SIZE = (SHORT_SIDE, 49)
FAMILIES = (
    *("videomae", "vjepa2", "dinov2", "dinov2_with_registers", "dinov3_vit", "clip", "xclip"),
)


def save_model(family: str, folder: Path, short_side: int = SHORT_SIDE) -> Any:
    """Save a model of a family and its processor's settings; returns the model."""
    torch.manual_seed(0)
    model = _model(family).eval()
    for parameter in model.parameters():  # random weights of 0.02 hide what a token has seen
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    settings, name = processor_settings(family, short_side)
    (folder / name).write_text(json.dumps(settings))
    if family in ("clip", "xclip"):
        tokenizer().save_pretrained(folder)
    return model


def small_architecture(family: str) -> dict[str, Any]:
    """What an ``HFEncoder`` takes for a small model of a family."""
    from sce_video.models.backbones.hf_encoder import architecture_of

    return architecture_of(_model(family).config)


def processor_settings(family: str, short_side: int = SHORT_SIDE) -> tuple[dict[str, Any], str]:
    """What the file of a family's processor holds, and its name."""
    name = "preprocessor_config.json"
    if family == "dinov3_vit":
        size = {"height": SIDE, "width": SIDE}
        kind = {"image_processor_type": "DINOv3ViTImageProcessorFast", "resample": 2}
        settings = {k: v for k, v in _CROP.items() if "crop" not in k}
        return {**settings, **kind, "size": size}, name
    settings = {**_CROP, "size": {"shortest_edge": short_side}, "resample": 2}
    if family == "vjepa2":
        kind = {"video_processor_type": "VJEPA2VideoProcessor"}
        return {**settings, **kind}, "video_preprocessor_config.json"
    kinds = {"videomae": "VideoMAEImageProcessor", "dinov2": "BitImageProcessor"}
    kind = {"image_processor_type": kinds.get(family.split("_")[0], "CLIPImageProcessor")}
    bicubic = {} if family.startswith(("videomae", "xclip")) else {"resample": 3}
    return {**settings, **kind, **bicubic}, name


def _model(family: str) -> Any:
    import transformers as hf

    if family.startswith("videomae"):
        config = hf.VideoMAEConfig(
            image_size=SIDE, patch_size=PATCH, num_frames=FRAMES, intermediate_size=64, **_VIT
        )
        classifies = family.endswith("_classifier")
        return (hf.VideoMAEForVideoClassification if classifies else hf.VideoMAEModel)(config)
    if family == "vjepa2":
        config = hf.VJEPA2Config(
            crop_size=SIDE,
            patch_size=PATCH,
            frames_per_clip=FRAMES,
            num_pooler_layers=1,
            pred_hidden_size=16,
            pred_num_hidden_layers=1,
            pred_num_attention_heads=2,
            **{**_VIT, "hidden_size": 48},  # rotary embedding: heads of a multiple of 6
        )
        return hf.VJEPA2ForVideoClassification(config)
    dino = dict(image_size=SIDE, patch_size=PATCH, mlp_ratio=2, **_VIT)
    if family == "dinov2":
        return hf.Dinov2Model(hf.Dinov2Config(**dino))
    if family == "dinov2_with_registers":
        config = hf.Dinov2WithRegistersConfig(num_register_tokens=2, **dino)
        return hf.Dinov2WithRegistersModel(config)
    if family == "dinov3_vit":
        return hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(
                image_size=SIDE,
                patch_size=PATCH,
                intermediate_size=64,
                num_register_tokens=2,
                **_VIT,
            )
        )
    return _video_text_model(family)


def _video_text_model(family: str) -> Any:
    import transformers as hf

    vocabulary = vocab()
    text = dict(
        vocab_size=len(vocabulary),
        max_position_embeddings=16,
        intermediate_size=64,
        bos_token_id=vocabulary["<|startoftext|>"],
        eos_token_id=vocabulary["<|endoftext|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
        **_VIT,
    )
    vision = dict(image_size=SIDE, patch_size=PATCH, intermediate_size=64, **_VIT)
    if family == "clip":
        return hf.CLIPModel(
            hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
        )
    vision |= dict(
        num_frames=FRAMES,
        mit_hidden_size=24,
        mit_intermediate_size=32,
        mit_num_hidden_layers=1,
        mit_num_attention_heads=2,
    )
    return hf.XCLIPModel(
        hf.XCLIPConfig(
            text_config=text,
            vision_config=vision,
            projection_dim=24,
            prompt_layers=1,
            prompt_num_attention_heads=2,
        )
    )


def vocab() -> dict[str, int]:
    """Letters, letters that end a word, and the two special tokens."""
    letters = [*string.ascii_lowercase, *(f"{c}</w>" for c in string.ascii_lowercase)]
    return {t: i for i, t in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}


def tokenizer() -> Any:
    """CLIP's tokenizer with that vocabulary."""
    import transformers as hf

    return hf.CLIPTokenizer(vocab=vocab(), merges=[])
