"""Names of candidates, and several pools of an image network from one pass of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.tiny_encoder import S3D_CONFIG, moving_frames, save_tiny, write_lossless

from sce_video.inference.clip_features import clip_network, embed_clips
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.encoders.encoder_folder import encoder_config, import_encoder
from sce_video.inference.encoders.transformers_files import ProcessorSettings
from sce_video.inference.model import build_model, load_model
from sce_video.inference.network_input import ViewOptions, settings_from_config
from sce_video.models import S3D, EfficientNetLite
from sce_video.options.connect import FRAME_POOLS
from sce_video.runs import candidates as module
from sce_video.runs.candidates import (
    ORDERED_PIXELS,
    PIXELS,
    RANDOM_WEIGHTS,
    Candidate,
    load_passes,
    named_candidates,
)
from sce_video.utils.errors import MissingPackageError

LITE = "efficientnet-lite0"


@pytest.fixture
def run(tmp_path):
    save_tiny(tmp_path / "run" / "epoch_1.pth")
    return str(tmp_path / "run")


def test_names_runs_and_pools(run, monkeypatch):
    monkeypatch.setattr(module, "check_run", lambda source: None)
    assert named_candidates([run, f"{LITE}:mean+std", "hf:a/b:mean", "s3://b/run:1"]) == [
        Candidate(run, run),
        Candidate(f"{LITE}:mean+std", LITE, "mean+std"),
        Candidate("hf:a/b:mean", "hf:a/b", "mean"),
        Candidate("s3://b/run:1", "s3://b/run:1"),
    ]
    every = [Candidate(f"{LITE}:{pool}", LITE, pool) for pool in FRAME_POOLS]
    assert named_candidates([f"{LITE}:all"]) == every
    assert named_candidates(["hf:mean"]) == [Candidate("hf:mean", "hf:mean")]
    monkeypatch.setattr(module, "has_public_teacher", lambda: True)
    assert named_candidates([]) == every


def test_mistakes_are_answered_before_a_network_is_read(run, monkeypatch):
    for names, message in (
        ([run, run], "twice"),
        ([f"{run}:most"], "the pool must be one of mean, "),
        (["hf:a/b:most"], "the pool must be one of mean, "),
        (["nowhere"], "no checkpoint at nowhere"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            named_candidates(names)
    monkeypatch.setattr(module, "has_public_teacher", lambda: False)
    with pytest.raises(MissingPackageError, match="no network to compare. Give --among RUN"):
        named_candidates([])


@pytest.fixture
def image_network(tmp_path):
    """A small image network with random weights in place of the public one, and a video."""
    torch.manual_seed(0)
    backbone = {"type": "EfficientNetLite", "variant": "lite0", "frame_pool": "mean+absdiff"}
    settings = ProcessorSettings(
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        short_side=32,
        crop_size=32,
        interpolation="bilinear",
        square=False,
        in_float=False,
        num_frames=4,
        clip_duration=0.5,
    )
    weights = EfficientNetLite("lite0").state_dict()
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in weights.items()}}, path)
    video = str(write_lossless(tmp_path / "a.mp4", moving_frames(40)))
    return settings_from_config(encoder_config(backbone, settings)), str(path), video


def test_pools_of_one_pass_equal_networks_with_these_pools(image_network, monkeypatch):
    settings, path, video = image_network

    def network(pool):
        backbone = {**settings.backbone, "frame_pool": pool}
        changed = type(settings)(**{**vars(settings), "backbone": backbone})
        return build_model(changed, path, "cpu")

    monkeypatch.setattr(
        "sce_video.inference.model.load_model", lambda *_, **__: network("mean+absdiff")
    )
    pooled = [Candidate(pool, LITE, pool) for pool in FRAME_POOLS]
    names = [*pooled, Candidate("own", LITE)]
    lite, pixels, ordered, untrained = load_passes(names, "cpu")
    assert lite.candidates == (names[-1], *pooled) and lite.network.positions == 4
    assert pixels.candidates == (Candidate(PIXELS),)
    assert ordered.candidates == (Candidate(ORDERED_PIXELS),) and ordered.network.num_clips == 1
    assert untrained.candidates == (Candidate(RANDOM_WEIGHTS),)
    assert untrained.network.settings.backbone["base_channels"] == 16
    (found,) = embed_clips(lite.network, [video], workers=1)
    for candidate in names:
        pool = candidate.pool or "mean+absdiff"
        own = clip_network(network(pool), 4)
        (expected,) = embed_clips(own, [video], workers=1)
        (values,) = lite.features(candidate, found.values[None].copy())
        np.testing.assert_allclose(values, expected.values, rtol=1e-5, atol=1e-6)
        assert values.shape == (4, own.feature_size) and lite.size(candidate) == own.feature_size
    assert len({found.values[:, i * 1280 : i * 1280 + 1280].tobytes() for i in range(4)}) == 4


def test_pools_of_a_network_that_pools_no_frames_are_networks_of_their_own(tmp_path, monkeypatch):
    save_tiny(tmp_path / "epoch_1.pth", S3D(base_channels=4), S3D_CONFIG)
    model, loaded = load_model(tmp_path / "epoch_1.pth", device="cpu"), []

    def load(name, device):
        loaded.append(name)
        return model

    monkeypatch.setattr("sce_video.inference.model.load_model", load)
    names = [Candidate(f"hf:a/b:{pool}", "hf:a/b", pool) for pool in ("class", "mean")]
    first, second, *_ = load_passes(names, "cpu")
    assert loaded == ["hf:a/b:class", "hf:a/b:mean"]
    assert (first.candidates, second.candidates) == ((names[0],), (names[1],))
    assert first.size(names[0]) == model.feature_size


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """DINOv2, VideoMAE, a run of DINOv2 with patch tokens, and a video that repeats a frame."""
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    root = tmp_path_factory.mktemp("encoders")
    for family in ("dinov2", "videomae"):
        save_model(family, root / family)
    import_encoder(str(root / "dinov2"), root / "run", pool="mean", frames=4, fps=8)
    frames = moving_frames(40)
    frames[1::2] = frames[::2]
    write_lossless(root / "a.mp4", frames)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCE_VIDEO_CACHE", str(root / "cache"))
        patch.chdir(root)
        yield root


MOTION = [pool for pool in FRAME_POOLS if pool != "mean"]


def in_this_process(network):
    """Return the rows of the clips (4, ...)."""
    options = ViewOptions(num_clips=4, num_workers=0)
    (found,) = iterate_features(network, ["a.mp4"], options)
    return found.values.reshape(4, -1).copy()


@pytest.mark.parametrize(
    ("among", "expected"),
    [
        (["dinov2:all"], [["dinov2:class"], [f"dinov2:{pool}" for pool in MOTION]]),
        (["run:all"], [[f"run:{pool}" for pool in FRAME_POOLS]]),
        (["videomae:all"], [["videomae"]]),
        (
            ["dinov2:mean", "dinov2:class", "dinov2:mean+std"],
            [["dinov2:class"], ["dinov2:mean+std"], ["dinov2:mean"]],
        ),
        (
            ["run:class", "run:concat", "run", "run:mean"],
            [["run", "run:concat", "run:mean"], ["run:class"]],
        ),
    ],
)
def test_a_name_in_the_table_is_the_network_that_was_compared(among, expected, encoders):
    """A name without motion is the name of the encoder's own pool of tokens."""
    passes = [
        one for one in load_passes(named_candidates(among), "cpu") if one.candidates[0].source
    ]
    assert [[candidate.name for candidate in one.candidates] for one in passes] == expected
    for one in passes:
        for candidate in one.candidates:
            own = clip_network(load_model(candidate.name, device="cpu"), 4)
            wanted = in_this_process(own)
            (values,) = one.features(candidate, in_this_process(one.network)[None])
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4)
            assert one.size(candidate) == own.feature_size


def test_a_pool_that_all_contains_is_not_listed_again(encoders):
    with pytest.raises(ValueError, match="--among names dinov2:class twice"):
        load_passes(named_candidates(["dinov2:all", "dinov2:class"]), "cpu")
