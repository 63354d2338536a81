"""``NAME:POOL`` in every command that accepts an image network."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from helpers.hf_models import SIDE, save_model
from helpers.tiny_encoder import CONFIG, S3D_CONFIG, save_tiny, tiny_backbone
from helpers.training import make_videos

from sce_video import embed_videos, load_model
from sce_video.commands.main import main
from sce_video.engine.run_json import read_run_json
from sce_video.find.index import read_index
from sce_video.inference.encoders.encoder_folder import import_encoder, run_of_model
from sce_video.inference.encoders.text import has_text, text_feature
from sce_video.models import S3D, ResNet2d
from sce_video.runs.plan_distillation import FRAME_POOL, plan_teacher, refuse_pool
from sce_video.utils.run_files import is_model, split_pool

#: Channels of the features of a frame. ``concat`` has four times as many, the default twice.
CHANNELS = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small networks and eight videos.

    The networks are an image network in timm's layout, its weights alone, a video run, and DINOv2.
    """
    root = tmp_path_factory.mktemp("pools")
    torch.manual_seed(0)
    weights = ResNet2d(18, base_channels=8).state_dict()
    (root / "net").mkdir()
    torch.save(weights, root / "net" / "pytorch_model.bin")
    given = dict(input_size=[3, 32, 32], mean=[0.5] * 3, std=[0.5] * 3, crop_pct=1.0)
    config = {"architecture": "resnet18", "pretrained_cfg": given}
    (root / "net" / "config.json").write_text(json.dumps(config))
    torch.save({"fc.weight": torch.zeros(2, CHANNELS), **weights}, root / "weights.pth")
    own = CONFIG.replace("base_channels=4", "base_channels=8")
    save_tiny(root / "own" / "epoch_1.pth", tiny_backbone(base_channels=8), own)
    make_videos(root / "videos", 8)
    save_model("dinov2", root / "dino")
    return root


def features_of(folder, name):
    return np.load(folder / name)["features"]


NAMES = ("net", "hf:{}/net", "weights.pth", "net/pytorch_model.bin")


def planned(folder, name):
    return read_run_json(folder / name).config["model"]["backbone"]["frame_pool"]


def candidates(folder, name):
    return json.loads((folder / name / "choose.json").read_text())["candidates"]


#: Command lines with {} for the network, and how to find the pool in what they leave in OUT.
COMMANDS = {
    "embed videos --checkpoint {} --out OUT/f.npz": lambda out: (
        features_of(out, "f.npz").shape[1] // CHANNELS
    ),
    "embed videos --checkpoint {} --windows 0.4s --out OUT/f.npz": lambda out: (
        features_of(out, "f.npz").shape[1] // CHANNELS
    ),
    "index videos --checkpoint {} --out OUT/i --workers 0": lambda out: (
        read_index(out / "i").features.shape[1] // CHANNELS
    ),
    "evaluate {} --test videos --gallery videos --no-random --out OUT/r.json": lambda out: (
        json.loads((out / "r.json").read_text())["protocol"]["network"]["frame_pool"]
    ),
    "finetune {} --train videos --out OUT/r --plan --workers 0": lambda out: planned(out, "r"),
    "finetune {} --train videos --out OUT/r --plan --workers 0 --route finetune": lambda out: (
        planned(out, "r")
    ),
    "pretrain videos --from {} --out OUT/r --plan --workers 0 --keep last": lambda out: planned(
        out, "r"
    ),
    "encoder {} --out OUT/r": lambda out: load_model(out / "r").settings.backbone["frame_pool"],
    "export {} --to pretrained --out OUT/e": lambda out: load_model(out / "e").settings.backbone[
        "frame_pool"
    ],
    "choose videos --among {} --out OUT/c --workers 1": lambda out: candidates(out, "c")[0]["pool"],
}
#: Commands whose output names the pool. DINOv2's features have another size than the others'.
NAMING = [*COMMANDS][3:]


@pytest.mark.parametrize(
    ("command", "network"),
    [
        (command, network)
        for command in COMMANDS
        for network in ("net", "own")
        if not (command.startswith("encoder") and network == "own")  # only for third-party models
    ]
    + [(command, "dino") for command in NAMING],
)
def test_every_command_pools_as_it_is_told(command, network, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(data)
    words = command.format(f"{network}:concat").replace("OUT", str(tmp_path)).split()
    assert main(words) == 0, capsys.readouterr().err
    assert COMMANDS[command](tmp_path) in ("concat", 4)


@pytest.mark.parametrize("name", [*NAMES, "own", "own/epoch_1.pth"])
def test_every_name_of_a_network_may_have_a_pool(name, data, tmp_path, monkeypatch):
    """``concat`` of a clip of four frames has their features, from which the others follow."""
    monkeypatch.chdir(data)
    name = name.format(data)
    clip = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)

    def embedded(pool):
        return torch.tensor(embed_videos(load_model(f"{name}:{pool}"), clip))

    frames = embedded("concat").unflatten(1, (4, CHANNELS))
    mean, delta = frames.mean(1), frames[:, 3] - frames[:, 0]
    for pool, expected in (("mean", mean), ("mean+delta", torch.cat([mean, delta], 1))):
        torch.testing.assert_close(embedded(pool), expected, rtol=0, atol=1e-4)
    assert run_of_model(f"{name}:mean") != run_of_model(f"{name}:concat")


#: Names of DINOv2's pools, of the pools of a run of DINOv2 with patch tokens, and what they select
DINO_POOLS = {
    "dino": ("class", "mean"),
    "dino:class": ("class", "mean"),
    "dino:mean": ("mean", "mean"),
    "dino:mean+std": ("class", "mean+std"),
    "patches": ("mean", "mean"),
    "patches:class": ("class", "mean"),
    "patches:mean": ("mean", "mean"),
    "patches:concat": ("mean", "concat"),
}


@pytest.mark.parametrize("name", DINO_POOLS)
def test_a_plus_pools_frames_and_other_names_pool_tokens(name, data, monkeypatch):
    """The model of transformers encodes the frames of the clip one by one."""
    monkeypatch.chdir(data)
    if not (data / "patches").exists():
        assert main("encoder dino --out patches --pool mean --frames 4 --fps 8".split()) == 0
    network = load_model(name)
    backbone, (of_tokens, of_frames) = network.settings.backbone, DINO_POOLS[name]
    assert (backbone["pool"], backbone.get("frame_pool", "mean")) == (of_tokens, of_frames)
    moves = name.startswith("patches") or of_frames != "mean"
    clip = (network.settings.num_frames, network.settings.clip_duration)
    assert clip == ((4, 0.5) if moves else (1, 1.0))  # an image, unless the pool needs motion
    view = torch.rand(1, 3, 4, SIDE, SIDE)
    with torch.no_grad():
        found = network.encoder.backbone(view).mean((2, 3, 4))[0]
        images = view[0].transpose(0, 1)
        tokens = load_model("dino").encoder.backbone.network(images).last_hidden_state
    frames = tokens[:, 0] if of_tokens == "class" else tokens[:, 1:].mean(1)
    expected = {
        "mean": frames.mean(0),
        "mean+std": torch.cat([frames.mean(0), frames.std(0, correction=0)]),
        "concat": frames.flatten(),
    }
    torch.testing.assert_close(found, expected[of_frames], rtol=1e-4, atol=1e-4)


def test_the_pool_and_the_clip_of_an_image_encoder_can_be_given(data, tmp_path, capsys):
    name = str(data / "dino")
    words = ["encoder", name, "--out", str(tmp_path / "a"), "--pool", "mean+absdiff"]
    assert main([*words, "--frames", "8", "--fps", "4"]) == 0
    assert "pool: mean+absdiff" in capsys.readouterr().out
    settings = load_model(tmp_path / "a").settings
    assert (settings.num_frames, settings.clip_duration) == (8, 2.0)
    assert settings.backbone["frame_pool"] == "mean+absdiff"
    usual = import_encoder(name, tmp_path / "b")  # the same file as before motion was possible
    assert "frame_pool" not in usual.backbone and usual.settings.num_frames == 1


def test_pools_that_a_model_of_transformers_does_not_have(hf_model, tmp_path):
    motion = "mean+absdiff, mean+std, mean+delta, mean+absdiff+delta, mean+absdiff+delta+energy"
    for family, pool, accepted in (
        ("videomae", "mean+absdiff", "mean"),
        ("vjepa2", "concat", "mean, attentive"),
        ("xclip", "mean+std", "projection"),
        ("clip", "mean", f"projection, {motion}, concat"),
        ("dinov2", "attentive", f"class, mean, {motion}, concat"),
    ):
        name = str(hf_model(family)[0])
        message = f"pool of {name} must be one of {accepted}, got {pool!r}"
        with pytest.raises(ValueError, match=re.escape(message)):
            load_model(f"hf:{name}:{pool}")
    import_encoder(str(hf_model("videomae")[0]), tmp_path / "video")
    import_encoder(str(hf_model("dinov2")[0]), tmp_path / "image")
    for name, message in (
        ("video:mean+std", "a HFEncoder does not keep the features of single frames"),
        ("image:projection", "image/epoch_0.pth must be one of class, mean, mean+absdiff, "),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            load_model(tmp_path / name)


def test_only_projections_are_compared_with_texts(hf_model, tmp_path):
    folder = hf_model("clip")[0]
    usual = import_encoder(str(folder), tmp_path / "usual")
    motion = import_encoder(str(folder), tmp_path / "motion", pool="mean+absdiff")
    assert usual.has_text and has_text(usual.backbone)
    assert not motion.has_text and not has_text(motion.backbone)
    assert "text" not in torch.load(motion.checkpoint)["meta"]
    message = "features with the pool mean+absdiff cannot be compared with a text"
    with pytest.raises(ValueError, match=re.escape(message)):
        text_feature(motion.checkpoint, motion.backbone, "a man")
    back = load_model(f"{tmp_path / 'usual'}:projection")  # the same network, with its texts
    assert has_text(back.settings.backbone)
    found = text_feature(back.checkpoint, back.settings.backbone, "a man")
    np.testing.assert_array_equal(found, text_feature(usual.checkpoint, usual.backbone, "a man"))
    patches = import_encoder(str(hf_model("siglip")[0]), tmp_path / "patches", pool="mean")
    with pytest.raises(ValueError, match="features with the pool mean cannot be compared"):
        text_feature(patches.checkpoint, patches.backbone, "a man")


def test_what_is_no_pool(data, monkeypatch):
    monkeypatch.chdir(data)
    (data / "a:mean").mkdir(exist_ok=True)
    for text in ("a:mean", "s3://b/run:mean", "hf:mean", "hf:/x/y", "nowhere:mean", "net"):
        assert split_pool(text) == (text, None)
    assert split_pool("efficientnet-lite0:x") == ("efficientnet-lite0", "x")
    assert split_pool("hf:a/b:mean") == ("hf:a/b", "mean") and is_model("net:mean")
    save_tiny(data / "s3d" / "epoch_1.pth", S3D(base_channels=4), S3D_CONFIG)
    for text, message in (
        ("s3d:mean", "a S3D does not keep the features of single frames, so its pool cannot be"),
        ("net:most", "net:most: the pool must be one of mean, "),
        ("s3d:most", "s3d:most: the pool must be one of mean, "),
        ("own:class", "epoch_1.pth:class: the pool must be one of mean, "),
    ):
        with pytest.raises(ValueError, match=message):
            load_model(text)


def test_a_student_fixes_the_pool_of_its_teacher(data, monkeypatch):
    monkeypatch.chdir(data)
    message = f"net:mean: a student and its teacher pool frames by {FRAME_POOL}. Give net"
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_teacher("net:mean", None, {}, has_student=True)
    refuse_pool("net")
    refuse_pool(f"net:{FRAME_POOL}")
