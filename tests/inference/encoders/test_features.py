"""Features of models of transformers against transformers' own models and processors."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest
import torch
from helpers.hf_models import FAMILIES, SIDE, save_model
from helpers.tiny_encoder import moving_frames, write_lossless
from safetensors.torch import load_file, save_file
from torch.nn import functional

from sce_video.datasets.readers import open_reader
from sce_video.datasets.transforms import CenterSegmentClip, UniformClips
from sce_video.inference.embed import EmbedOptions, embed
from sce_video.inference.encoders.run import import_encoder
from sce_video.inference.model import load_model

TORCHVISION = importlib.util.find_spec("torchvision") is not None
POOLS = [(family, None) for family in FAMILIES]
POOLS += [("dinov2", "mean"), ("dinov3_vit", "mean"), ("vjepa2", "mean")]
POOLS += [("videomae_classifier", None), ("videomae_classifier", "mean")]
#: Names of the weights of block 1 in published files ("*": weight and bias), and of others.
PUBLISHED = {
    "videomae_classifier": """videomae.encoder.layer.1.attention.attention.{q_bias,v_bias}
        videomae.encoder.layer.1.attention.attention.{query,key,value}.weight
        videomae.encoder.layer.1.{attention.output.dense,intermediate.dense,output.dense}.*
        videomae.encoder.layer.1.{layernorm_before,layernorm_after}.*
        videomae.embeddings.patch_embeddings.projection.* fc_norm.* classifier.*""",
    "vjepa2": """vjepa2.encoder.layer.1.attention.{query,key,value,proj}.*
        vjepa2.encoder.layer.1.{norm1,norm2,mlp.fc1,mlp.fc2}.* vjepa2.encoder.layernorm.*
        vjepa2.encoder.embeddings.patch_embeddings.proj.* pooler.query_tokens classifier.*
        pooler.self_attention_layers.0.self_attn.{q_proj,k_proj,v_proj,out_proj}.*
        pooler.cross_attention_layer.cross_attn.{q_proj,k_proj,v_proj}.*""",
    "dinov2": """encoder.layer.1.attention.attention.{query,key,value}.*
        encoder.layer.1.attention.output.dense.* encoder.layer.1.{norm1,norm2,mlp.fc1,mlp.fc2}.*
        encoder.layer.1.{layer_scale1,layer_scale2}.lambda1 layernorm.*
        embeddings.{cls_token,mask_token,position_embeddings}
        embeddings.patch_embeddings.projection.*""",
    "dinov3_vit": """layer.1.attention.k_proj.weight layer.1.attention.{q_proj,v_proj,o_proj}.*
        layer.1.{norm1,norm2,mlp.up_proj,mlp.down_proj}.*
        layer.1.{layer_scale1,layer_scale2}.lambda1
        embeddings.{cls_token,mask_token,register_tokens} embeddings.patch_embeddings.* norm.*""",
    "clip": """vision_model.encoder.layers.1.self_attn.{q_proj,k_proj,v_proj,out_proj}.*
        vision_model.encoder.layers.1.{layer_norm1,layer_norm2,mlp.fc1,mlp.fc2}.*
        vision_model.embeddings.class_embedding vision_model.pre_layrnorm.*
        vision_model.embeddings.{patch_embedding,position_embedding}.weight
        vision_model.post_layernorm.* {visual_projection,text_projection}.weight logit_scale""",
    "xclip": """vision_model.encoder.layers.1.self_attn.{q_proj,k_proj,v_proj,out_proj}.*
        vision_model.encoder.layers.1.message_attn.{q_proj,k_proj,v_proj,out_proj}.*
        vision_model.encoder.layers.1.{message_fc,message_ln,layer_norm1,mlp.fc1}.*
        vision_model.pre_layernorm.* vision_model.embeddings.class_embedding
        mit.encoder.layers.0.{self_attn.q_proj,mlp.fc2}.* mit.position_embedding
        {visual_projection,text_projection}.weight prompts_visual_projection""",
}
#: From these names to those of the modules of transformers, where they differ.
RENAMED = {
    "videomae_classifier": {"q_bias": "query.bias", "v_bias": "value.bias"},
    "dinov2": {
        **{f"attention.attention.{n}": f"attention.{n[0]}_proj" for n in ("query", "key", "value")},
        "attention.output.dense": "attention.o_proj",
    },
    "dinov3_vit": {r"^layer\.": "model.layer."},
}
#: Others in such files: of the decoder of a pretraining, numbers of positions.
OTHERS = {
    "videomae_classifier": "decoder.decoder_layers.0.attention.attention.q_bias",
    "clip": "vision_model.embeddings.position_ids",
    "xclip": "text_model.embeddings.position_ids",
}


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
    if family in ("vjepa2", "dinov3_vit") and not TORCHVISION:
        return processed_without_torchvision(folder, family, frames)
    import transformers as hf

    if family == "vjepa2":
        processor = hf.AutoVideoProcessor.from_pretrained(folder)
        return processor(frames, return_tensors="pt")["pixel_values_videos"][0]
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    values = processor(list(frames), return_tensors="pt")["pixel_values"]
    return values[0] if values.ndim == 5 else values


def processed_without_torchvision(folder, family, frames):
    """The steps of the two processors that exist for torchvision only (transformers 5.23)."""
    name = "video_preprocessor_config.json" if family == "vjepa2" else "preprocessor_config.json"
    stored = json.loads((folder / name).read_text())
    images = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    if family == "dinov3_vit":  # scaled, then squashed to a square
        images = functional.interpolate(images / 255, (SIDE, SIDE), mode="bilinear", antialias=True)
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
    if family == "xclip":
        return model.get_video_features(clip[None]).pooler_output[0]
    if family == "clip":
        return model.get_image_features(clip).pooler_output.mean(0)
    output = model(clip)
    first = 1 if family == "dinov2" else 3  # two registers
    tokens = output.last_hidden_state[:, first:].mean(1)
    return (tokens if pool == "mean" else output.pooler_output).mean(0)


def compare(folder, model, family, pool, video, tmp_path):
    if pool is None:
        network = load_model(f"hf:{folder}", device="cpu")
    else:
        imported = import_encoder(str(folder), tmp_path / "run", pool=pool)
        network = load_model(imported.checkpoint, device="cpu")
    feature = embed(network, str(video), EmbedOptions(num_clips=2))[0]
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
    pools = {"videomae": "mean", "vjepa2": "attentive", "clip": "projection"}
    pools |= {"videomae_classifier": "mean_norm"}
    default = pools.get(family, "projection" if family == "xclip" else "class")
    assert network.settings.backbone["pool"] == (pool or default)
    assert not network.encoder.training


def published_names(family):
    """Expanded: braces, and "*" as weight and bias."""
    for text in PUBLISHED[family].split():
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
    renamed = RENAMED.get(family, {})

    def own_name(name):
        for pattern, replacement in renamed.items():
            name = re.sub(pattern, replacement, name)
        return name

    stored = {}
    own = model.state_dict()
    for name in set(load_file(folder / "model.safetensors")) | set(published_names(family)):
        stored[name] = own[own_name(name)].clone()  # KeyError: not what transformers calls it
    assert set(map(own_name, stored)) == set(own)
    if family in OTHERS:
        stored[OTHERS[family]] = torch.arange(4)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    compare(folder, model, family, None, hf_videos / "a" / "0.mp4", tmp_path)


@pytest.mark.skipif(not TORCHVISION, reason="torchvision is not installed")
@pytest.mark.parametrize("family", FAMILIES)
def test_resampled_features_are_those_of_transformers(family, hf_model, tmp_path):
    video = write_lossless(tmp_path / "v.mp4", moving_frames(30, 58, 76))
    folder, model = hf_model(family)
    compare(folder, model, family, None, video, tmp_path)


def test_wrong_clips_are_refused(hf_model):
    network = load_model(f"hf:{hf_model('videomae')[0]}", device="cpu").encoder
    with pytest.raises(ValueError, match=r"takes clips of 4 frames.*got 3"):
        network.represent(torch.zeros(1, 3, 3, SIDE, SIDE))
    with pytest.raises(ValueError, match=r"frames of 32x32 pixels.*got 40x40"):
        network.represent(torch.zeros(1, 3, 4, 40, 40))
    network = load_model(f"hf:{hf_model('dinov2')[0]}", device="cpu").encoder
    with pytest.raises(ValueError, match=r"multiples of its patches of 8"):
        network.represent(torch.zeros(1, 3, 1, 36, 36))
    network = load_model(f"hf:{hf_model('vjepa2')[0]}", device="cpu").encoder
    with pytest.raises(ValueError, match=r"multiple of 2"):
        network.represent(torch.zeros(1, 3, 3, SIDE, SIDE))
