"""Features of models of transformers against transformers' own models and processors."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hf_models import FAMILIES, MAX_PATCHES, PATCH, SIDE, WITH_TEXT, save_model, tokenizer
from helpers.tiny_encoder import moving_frames, write_lossless
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.models.siglip2.image_processing_pil_siglip2 import (
    convert_image_to_patches,
    get_image_size_for_max_num_patches,
)

from sce_video.datasets.readers import open_reader
from sce_video.datasets.transforms import CenterSegmentClip, UniformClips
from sce_video.engine.weights import checked_backbone
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.encoders.encoder_folder import import_encoder
from sce_video.inference.encoders.text import text_feature
from sce_video.inference.encoders.transformers_files import EncoderError
from sce_video.inference.model import load_model
from sce_video.models.backbones.hf_encoder import HFEncoder, architecture_of, config_of

TORCHVISION = importlib.util.find_spec("torchvision") is not None
POOLS = [(family, None) for family in FAMILIES]
POOLS += [("dinov2", "mean"), ("dinov3_vit", "mean"), ("vjepa2", "mean")]
POOLS += [("videomae_classifier", None), ("videomae_classifier", "mean")]
POOLS += [("videoprism_vision_classifier", pool) for pool in (None, "mean")]
POOLS += [(family, "mean") for family in FAMILIES[7:] if family != "videoprism_vision_model"]
#: Of published files, as the conversion scripts of transformers write them: names of the weights of
#: a block ("*": weight and bias) and of others; patterns of those that its modules call otherwise;
#: one of a decoder or of numbers of positions.
PUBLISHED = json.loads(Path(__file__).with_name("published_names.json").read_text())


def clips_of(video, settings, num_clips):
    """Frames (T, H, W, 3) of every clip."""
    reader = open_reader(str(video))
    if settings.clip_duration is None:
        sampling = CenterSegmentClip(settings.num_frames)
    else:
        sampling = UniformClips(settings.clip_duration, settings.num_frames, num_clips)
    clips = sampling({"reader": reader, "rng": np.random.default_rng(0)})["clips"]
    frames = [reader.read(np.asarray(clip.frames)) for clip in clips]
    reader.close()
    return frames


def processed(folder, family, frames):
    """A clip (T, 3, H, W) by the model's own processor."""
    steps = family in ("vjepa2", *FAMILIES[7:], "videoprism_vision_classifier", "dinov3_vit")
    # In float where the package says so: its processor rounds.
    if family == "siglip2" or (steps and not TORCHVISION):
        return processed_without_torchvision(folder, family, frames)
    import transformers as hf

    if (folder / "video_preprocessor_config.json").is_file():
        processor = hf.AutoVideoProcessor.from_pretrained(folder)
        if "videoprism" in family:  # what VideoPrismProcessor says to it
            processor.do_normalize = False
        settings = dict(do_sample_frames=False, return_tensors="pt")
        return processor(frames, **settings)["pixel_values_videos"][0]
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    values = processor(list(frames), return_tensors="pt")["pixel_values"]
    return values[0] if values.ndim == 5 else values


def processed_without_torchvision(folder, family, frames):
    """The steps of processors that exist for torchvision only, or whose Pillow rounds otherwise."""
    (file,) = folder.glob("*preprocessor_config.json")
    stored = json.loads(file.read_text())
    images = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    mode = "bicubic" if stored["resample"] == 3 else "bilinear"
    if family == "siglip2" or "height" in stored["size"]:  # not cropped
        size = get_image_size_for_max_num_patches(*images.shape[2:], PATCH, MAX_PATCHES)
        assert size == (40, 56)  # the aspect is kept
        size = size if family == "siglip2" else tuple(stored["size"].values())
        in_float = family in ("siglip2", "dinov3_vit", "dinov3_convnext")
        images = images / 255 if in_float else images
        images = functional.interpolate(images, size, mode=mode, antialias=True)
        images = images if in_float else images / 255
        if "videoprism" in family:
            return images
    else:  # nothing to resize
        assert stored["size"]["shortest_edge"] == min(images.shape[2:])
        top, left = (int((side - SIDE) / 2) for side in images.shape[2:])
        images = images[..., top : top + SIDE, left : left + SIDE] / 255
    mean, std = (torch.tensor(stored[k]).view(3, 1, 1) for k in ("image_mean", "image_std"))
    return (images - mean) / std


@torch.no_grad()
def own_feature(model, family, pool, clip):
    """The representation (C,) of a processed clip, by transformers' own functions."""
    if family.startswith("videomae"):
        mean = model.base_model(clip[None]).last_hidden_state[0].mean(0)
        return model.fc_norm(mean) if family != "videomae" and pool is None else mean
    if family == "vjepa2":
        tokens = model.vjepa2(clip[None], skip_predictor=True).last_hidden_state
        return tokens[0].mean(0) if pool == "mean" else model.pooler(tokens)[0]
    if family == "pe_video":
        output = model.video_encoder(clip[None])
        embedded = model.video_head(output.pooler_output)[0]
        return output.last_hidden_state[0].mean(0) if pool == "mean" else embedded
    if family.startswith("videoprism_"):
        tokens = model.base_model(clip[None]).last_hidden_state
        pools = family.endswith("classifier") and pool is None
        return model.head_layernorm(model.head(tokens)[0])[0, 0] if pools else tokens[0].mean(0)
    if family in ("xclip", "videoprism"):
        output = model.get_video_features(clip[None])
        return output.last_hidden_state[0].mean(0) if pool else output.pooler_output.flatten()
    if family == "siglip2":
        return torch.stack([own_naflex(model, pool, image) for image in clip]).mean(0)
    if family in ("clip", "siglip"):
        output = model.get_image_features(clip)
        tokens = output.last_hidden_state.mean(1)
        return (tokens if pool else output.pooler_output).mean(0)
    output = model(clip)
    first = 3 if family.endswith(("registers", "vit")) else 1  # two registers
    tokens = output.last_hidden_state[:, first:].mean(1)
    return (tokens if pool == "mean" else output.pooler_output).mean(0)


def own_naflex(model, pool, image):
    """Feature of one image (3, H, W), filled up with patches that are masked."""
    rows, columns = (side // PATCH for side in image.shape[1:])
    patches = torch.from_numpy(convert_image_to_patches(image.numpy(), PATCH))
    missing = MAX_PATCHES - len(patches)
    output = model.get_image_features(
        pixel_values=functional.pad(patches, (0, 0, 0, missing), value=7.0)[None],
        pixel_attention_mask=torch.tensor([[1] * len(patches) + [0] * missing]),
        spatial_shapes=torch.tensor([[rows, columns]]),
    )
    own = output.last_hidden_state[0, : len(patches)].mean(0)
    return own if pool else output.pooler_output[0]


def compare(folder, model, family, pool, video, tmp_path):
    if pool is None:
        network = load_model(f"hf:{folder}", device="cpu")
    else:
        imported = import_encoder(str(folder), tmp_path / "run", pool=pool)
        network = load_model(imported.checkpoint, device="cpu")
    feature = embed_videos(network, str(video), ViewOptions(num_clips=2))[0]
    clips = clips_of(video, network.settings, 2)
    own = [own_feature(model, family, pool, processed(folder, family, c)) for c in clips]
    expected = torch.stack(own).mean(0).numpy()
    assert np.abs(expected).max() > 0.1
    assert np.abs(feature - expected).max() < 1e-4
    return network


@pytest.mark.parametrize(("family", "pool"), POOLS)
def test_features_are_those_of_transformers(family, pool, hf_model, hf_videos, tmp_path):
    folder, model = hf_model(family)
    network = compare(folder, model, family, pool, hf_videos / "a" / "0.mp4", tmp_path)
    pools = {"videomae": "mean", "vjepa2": "attentive", "videoprism_vision_model": "mean"}
    pools |= {"videomae_classifier": "mean_norm", "videoprism_vision_classifier": "attentive"}
    pools |= dict.fromkeys(WITH_TEXT, "projection")
    default = pools.get(family, "class")
    assert network.settings.backbone["pool"] == (pool or default)
    assert not network.encoder.training


def published_names(family):
    """Expanded: braces, and "*" as weight and bias."""
    for text in PUBLISHED[family]["names"]:
        head, inner, tail = re.fullmatch(r"(.*?)(?:\{(.*)\})?([^{}]*)", text).groups()
        for name in (inner or "").split(","):
            for end in ("weight", "bias") if tail.endswith("*") else ("",):
                yield f"{head}{name}{tail.removesuffix('*')}{end}"


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_files_have_other_names(family, hf_videos, tmp_path):
    """The names of the files on the hub, whatever transformers calls its modules today."""
    folder = tmp_path / "model"
    model = save_model(family, folder)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # no norm is the identity, no bias is 0
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    renamed, other = PUBLISHED[family]["renamed"], PUBLISHED[family]["other"]

    def own_name(name):
        for pattern, replacement in renamed.items():
            name = re.sub(pattern, replacement, name)
        return name

    stored = {}
    own = model.state_dict()
    for name in set(load_file(folder / "model.safetensors")) | set(published_names(family)):
        stored[name] = own[own_name(name)].clone()  # KeyError: not what transformers calls it
    assert set(map(own_name, stored)) == set(own)
    if other:
        stored[other] = torch.arange(4)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    compare(folder, model, family, None, hf_videos / "a" / "0.mp4", tmp_path)


@pytest.mark.skipif(not TORCHVISION, reason="torchvision is not installed")
@pytest.mark.parametrize("family", FAMILIES)
def test_resampled_features_are_those_of_transformers(family, hf_model, tmp_path):
    video = write_lossless(tmp_path / "v.mp4", moving_frames(30, 58, 76))
    folder, model = hf_model(family)
    compare(folder, model, family, None, video, tmp_path)


@pytest.mark.parametrize("family", FAMILIES[7:])
def test_weights_that_are_missing_or_too_many(family, hf_model, tmp_path):
    folder = shutil.copytree(hf_model(family)[0], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = sorted(key for key in weights if "layers.0" in key and "text" not in key)[0]
    save_file({**weights, f"{name}_extra": weights[name].clone()}, folder / "model.safetensors")
    with pytest.raises(EncoderError, match=r"contains 1 weights that .* does not have"):
        import_encoder(str(folder), tmp_path / "run")
    del weights[name]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(EncoderError, match="lacks 1 weights of"):
        import_encoder(str(folder), tmp_path / "run")


def test_a_perception_encoder_that_is_published_with_sound(hf_model, hf_videos, tmp_path):
    """The layout of facebook/pe-av-base (PeAudioVideoModel): texts are those of the whole."""
    source, model = hf_model("pe_video")
    folder = shutil.copytree(source, tmp_path / "model")
    stored = {"audio_model.audio_encoder.norm.weight": torch.ones(3)}
    stored["audio_video_encoder.embedder.video_norm.weight"] = torch.ones(3)
    for name, value in load_file(folder / "model.safetensors").items():
        stored[("" if name.startswith("text_model.") else "video_model.") + name] = value
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    inner = {"model_type": "pe_audio_video_encoder", "video_config": config.pop("video_config")}
    config |= {"model_type": "pe_audio_video", "audio_video_config": inner}
    (folder / "config.json").write_text(json.dumps(config))
    compare(folder, model, "pe_video", None, hf_videos / "a" / "0.mp4", tmp_path)
    assert import_encoder(str(folder), tmp_path / "run").unused == 2


@pytest.mark.parametrize("family", WITH_TEXT)
def test_texts_are_those_of_transformers(family, hf_model, tmp_path):
    folder, model = hf_model(family)
    imported = import_encoder(str(folder), tmp_path / "run")
    words, simple = "A man,  bends", {"siglip": "a man bends", "siglip2": "a man,  bends"}
    filled = "siglip" in family  # SigLIP sees what fills a text, and is trained in small letters
    options = dict(padding="max_length", max_length=16) if filled else {}
    tokens = tokenizer(family)(simple.get(family, words), return_tensors="pt", **options)
    tokens = {key: tokens[key] for key in ("input_ids", *(() if filled else ("attention_mask",)))}
    if family == "videoprism":  # VideoPrismProcessor fills texts and masks that
        tokens = {k: functional.pad(v, (0, 16 - v.shape[1])) for k, v in tokens.items()}
    with torch.no_grad():
        if family == "pe_video":
            states = model.text_model(**tokens, output_hidden_states=True).hidden_states[-1]
            expected = model.text_video_head(states[:, 0])[0]  # as PeVideoModel.forward
        else:
            expected = model.get_text_features(**tokens).pooler_output[0]
    found = text_feature(imported.checkpoint, imported.backbone, words)
    assert np.abs(expected.numpy()).max() > 0.1
    assert np.abs(found - expected.numpy()).max() < 1e-4
    with pytest.raises(ValueError, match="but the model accepts at most 16"):
        text_feature(imported.checkpoint, imported.backbone, "x" * 17)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_stages(family, hf_model):
    """Every stage freezes more; what is frozen is the start of the network."""
    architecture = architecture_of(hf_model(family)[1].config)
    frozen = []
    for stages in (-1, 0, 1, 2, 3, 4):
        parameters = dict(HFEncoder(architecture, frozen_stages=stages).named_parameters())
        frozen.append({name for name, p in parameters.items() if not p.requires_grad})
        assert frozen[-1] >= frozen[-2 if stages >= 0 else -1]
    assert frozen[0] < frozen[1] < frozen[3] < frozen[5] == set(parameters)
    assert all(re.search("embed|_token|downsample|norm_pre|pre_lay", name) for name in frozen[1])


def test_published_configs_and_shapes():
    """config.json of google/siglip2-base-patch16-512 and videoprism-lvt-base-f16r288."""
    prism = dict(num_frames=16, num_spatial_layers=12, num_temporal_layers=4)
    parts = {"text_config": {"num_text_layers": 12}, "vision_config": prism}
    texts = {"text_config": {"vocab_size": 256000}, "vision_config": {"image_size": 512}}
    patches = "vision_model.spatial_embeddings.patch_embeddings.projection.weight"
    for kind, sizes, name, shape in (
        ("siglip", texts, "embeddings.position_embedding.weight", (1024, 768)),
        ("videoprism", parts, "head.q_proj.weight", (3072, 768)),
        ("videoprism", parts, patches, (768, 3, 1, 18, 18)),
    ):
        architecture = architecture_of(config_of({"model_type": kind, **sizes}))
        backbone = {"type": "HFEncoder", "architecture": architecture}
        with torch.device("meta"):
            network = HFEncoder(checked_backbone(backbone)["architecture"]).network
        assert tuple(network.state_dict()[name].shape) == shape


def test_wrong_clips_are_refused(hf_model):
    for family, clip, message in (
        ("videomae", (3, SIDE, SIDE), r"accepts clips of 4 frames.*got 3"),
        ("videomae", (4, 40, 40), r"frames of 32x32 pixels.*got 40x40"),
        ("dinov2", (1, 36, 36), r"multiples of its patch size of 8"),
        ("vjepa2", (3, SIDE, SIDE), r"multiple of 2"),
        ("siglip", (1, 40, 40), "frames of 32x32 pixels"),
        ("siglip2", (1, 40, 36), "multiples of its patch size of 8"),
        ("videoprism", (3, SIDE, SIDE), "clips of 4 frames"),
        ("dinov3_convnext", (1, 48, 64), "multiples of its patch size of 32"),
    ):
        network = HFEncoder(architecture_of(hf_model(family)[1].config))
        with pytest.raises(ValueError, match=message):
            network(torch.zeros(1, 3, *clip))
    siglip = architecture_of(hf_model("siglip")[1].config)
    siglip["vision_config"]["vision_use_head"] = False
    with pytest.raises(ValueError, match="has no head"):
        HFEncoder(siglip)
    features = HFEncoder(siglip, pool="mean")(torch.zeros(1, 3, 2, SIDE, SIDE))
    assert features.shape == (1, 32, 2, 4, 4)
