"""Small models of transformers with random weights and their processors, in local folders."""

from __future__ import annotations

import json
import string
from importlib.util import find_spec
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
    *("dinov3_convnext", "siglip", "siglip2", "videoprism", "videoprism_vision_model"),
    *(("pe_video",) if find_spec("timm") else ()),
)
#: Networks that compare videos with texts.
WITH_TEXT = ("clip", "xclip", "siglip", "siglip2", "videoprism", *FAMILIES[12:])
MAX_PATCHES = 36  # of SigLIP 2: 5 x 7 of a frame of VIDEO_SIZE


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
    if family in WITH_TEXT:
        tokenizer(family).save_pretrained(folder)
    return model


def small_architecture(family: str) -> dict[str, Any]:
    """What an ``HFEncoder`` takes for a small model of a family."""
    from sce_video.models.backbones.hf_encoder import architecture_of

    return architecture_of(_model(family).config)


def processor_settings(family: str, short_side: int = SHORT_SIDE) -> tuple[dict[str, Any], str]:
    """What the file of a family's processor holds, and its name."""
    name = "preprocessor_config.json"
    squashes = {"dinov3": "DINOv3ViTImageProcessorFast", "siglip": "SiglipImageProcessor"}
    squashes |= {"videoprism": "LlavaOnevisionVideoProcessor", "pe": "PeVideoVideoProcessor"}
    if kind := squashes.get(family.split("_")[0].removesuffix("2")):
        side = 384 if family == "pe_video" else SIDE  # of the smallest of timm
        settings = {k: v for k, v in _CROP.items() if "crop" not in k}
        settings |= {"resample": 3 if family.startswith(("siglip", "videoprism")) else 2}
        settings["size"] = {"height": side, "width": side}
        if family == "siglip2":
            kind, settings["size"] = "Siglip2ImageProcessor", None
            settings |= {"max_num_patches": MAX_PATCHES, "patch_size": PATCH, "resample": 2}
        if "VideoProcessor" in kind:  # the number of frames is read of pe_video alone
            settings |= {"video_processor_type": kind, "num_frames": FRAMES}
            return settings, "video_preprocessor_config.json"
        return {**settings, "image_processor_type": kind}, name
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
    if family == "dinov3_convnext":
        config = hf.DINOv3ConvNextConfig(hidden_sizes=[8, 12, 16, 24], depths=[1, 2, 1, 1])
        return hf.DINOv3ConvNextModel(config)
    if family.startswith("videoprism_"):
        config = hf.VideoPrismVisionConfig(**_PRISM)
        if family.endswith("_classifier"):
            return hf.VideoPrismForVideoClassification(config)
        return hf.VideoPrismVisionModel(config)
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


_PRISM = dict(
    **dict(image_size=SIDE, num_frames=FRAMES, tubelet_size=[1, PATCH, PATCH], hidden_size=32),
    **dict(intermediate_size=64, num_attention_heads=2, num_auxiliary_layers=1),
    **dict(num_spatial_layers=2, num_temporal_layers=1),
)
#: Special tokens as in the vocabularies of SigLIP, the space, letters and a mark.
_LETTERS = ["<pad>", "</s>", "<unk>", "\u2581", *string.ascii_lowercase, "A", ","]
_TEXT = dict(
    **dict(vocab_size=len(_LETTERS), max_position_embeddings=16, intermediate_size=64, **_VIT),
    **dict(pad_token_id=0, bos_token_id=1, eos_token_id=1),
)


def _siglip_or_later(family: str) -> Any:
    """Models whose texts are made by other tokenizers."""
    import transformers as hf

    vision = dict(patch_size=PATCH, intermediate_size=64, **_VIT)
    if family == "siglip":
        vision["image_size"] = SIDE
        return hf.SiglipModel(hf.SiglipConfig(text_config=_TEXT, vision_config=vision))
    if family == "siglip2":
        vision["num_patches"] = 16
        return hf.Siglip2Model(hf.Siglip2Config(text_config=_TEXT, vision_config=vision))
    if family == "videoprism":
        config = hf.VideoPrismConfig(text_config=_TEXT, vision_config=_PRISM)
        return hf.VideoPrismClipModel(config)
    return hf.PeVideoModel(pe_video_config())


def pe_video_config() -> Any:
    """The config of a small Perception Encoder; its network needs timm."""
    import transformers as hf

    text = dict(model_type="modernbert", cls_token_id=1, sep_token_id=1, **_TEXT)
    timm = dict(architecture="vit_pe_core_tiny_patch16_384", num_classes=24, num_labels=24)
    video = dict(intermediate_size=48, head_dim=16, vision_config=timm, **_VIT)
    return hf.PeVideoConfig(text_config=text, video_config=video)


def _video_text_model(family: str) -> Any:
    import transformers as hf

    if family not in ("clip", "xclip"):
        return _siglip_or_later(family)
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


def tokenizer(family: str = "clip") -> Any:
    """CLIP's tokenizer with the vocabulary above, or one of letters of the family's kind."""
    import transformers as hf
    from tokenizers import Tokenizer, models, normalizers, processors

    if family in ("clip", "xclip"):
        return hf.CLIPTokenizer(vocab=vocab(), merges=[])
    if family == "siglip":
        model = models.Unigram([(token, -1.0) for token in _LETTERS], unk_id=2)
    else:
        numbers = {token: number for number, token in enumerate(_LETTERS)}
        model = models.BPE(vocab=numbers, merges=[], unk_token="<unk>")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    if family != "videoprism":
        backend.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
    pad = "</s>" if family == "siglip" else "<pad>"
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, unk_token="<unk>")
