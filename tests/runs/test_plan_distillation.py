"""The student of an image network: its settings, its weights and a whole small training."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.tiny_encoder import CONFIG, save_tiny
from helpers.training import make_videos, needs_teacher, planned_pretraining, write_planned
from helpers.videos import write_video
from runs.test_plan_pretraining import FACTS

import sce_video
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.engine.weights import load_backbone
from sce_video.inference.features import read_features
from sce_video.inference.model import load_model
from sce_video.models import EfficientNetLite
from sce_video.models.backbones.frame_pools import pooled_channels
from sce_video.runs.plan_distillation import FRAME_POOL, clip_duration, clips_of_video
from sce_video.runs.planned_config import planned_config
from sce_video.utils.run_files import TEACHER_FEATURES, newest_checkpoint


def test_a_clip_covers_a_short_video_and_several_cover_a_long_one():
    short, long = replace(FACTS, duration=1.3), replace(FACTS, duration=8.0)
    assert clip_duration(short) == 1.3 and clips_of_video(short, 1.3, usual=4) == 1
    assert clip_duration(long) == 2.56 and clips_of_video(long, 2.56, usual=4) == 4


@needs_teacher
def test_short_clips_that_are_given_cover_no_video(tmp_path):
    """They are tested with several clips, too."""
    videos = make_videos(tmp_path / "videos", count=6)  # of 0.8 s
    for seconds, clips in ((0.4, 4), (0.7, 1)):
        planned = planned_pretraining(
            videos, tmp_path / "run", teacher="efficientnet-lite0", clip_duration=seconds
        )
        found = {choice.setting: choice.value for choice in planned.choices}
        assert found["teacher_clips"] == clips and found["clip_duration"] == seconds
        *_, views = (s for s in planned.config.test_dataloader.dataset.pipeline if "num_clips" in s)
        assert views.num_clips == clips


def test_an_image_network_gets_temporal_layers_that_change_nothing():
    torch.manual_seed(0)
    image = torch.nn.ModuleDict({"backbone": EfficientNetLite()})
    video = torch.nn.ModuleDict({"backbone": EfficientNetLite(temporal=True)})
    weights = {"state_dict": copy.deepcopy(image.state_dict())}
    with pytest.raises(ValueError, match="4 missing, for example .*temporal"):
        load_backbone(video, weights, "image.pth")
    load_backbone(video, weights, "image.pth", allow_identity=True)
    view = torch.randn(2, 3, 4, 32, 32)
    for network in (image, video):
        network.eval()
    torch.testing.assert_close(video["backbone"](view), image["backbone"](view))
    del weights["state_dict"]["backbone.stem.0.weight"]  # any other layer has to be there
    with pytest.raises(ValueError, match="1 missing, for example .*stem"):
        load_backbone(video, weights, "image.pth", allow_identity=True)


@needs_teacher
def test_the_plan_of_a_student(tmp_path):
    videos = make_videos(tmp_path / "videos", count=6)
    planned = planned_pretraining(videos, tmp_path / "run", teacher="efficientnet-lite0")
    found = {choice.setting: choice.value for choice in planned.choices}
    assert found["recipe"] == "distill_efficientnet_lite0_folder"
    assert found["starts from"] == "efficientnet-lite0" and found["objective"] == "frames"
    assert found["size"] == 40  # the videos have no more
    text = "the teacher's frames are enlarged from 40 to 224 pixels, the input size of efficient"
    assert any(remark.startswith(text) for remark in planned.plan.remarks)
    assert planned.config.model.backbone.temporal
    assert planned.config.model.projector.num_layers == 0
    *_, views = (s for s in planned.config.test_dataloader.dataset.pipeline if "num_clips" in s)
    assert views.num_clips == 1  # the videos are shorter than a clip
    folder = write_planned(planned)
    assert planned_config(folder).pretrained == planned.config.pretrained  # is read again as data
    assert "width" not in found and "queue" not in found
    relations = planned_pretraining(
        videos, tmp_path / "relations", teacher="efficientnet-lite0", objective="relations"
    )
    assert relations.config.model.backbone.type == "EfficientNetLite"
    assert relations.config.model.queue_size < 6  # fewer keys than videos
    given = planned_pretraining(videos, tmp_path / "other", teacher="efficientnet-lite0", width=8)
    assert given.config.model.backbone.type == "ResNet3dSlowPath"


@needs_teacher
def test_a_teacher_pools_frames_as_its_student(tmp_path):
    teacher = tmp_path / "teacher"
    sce_video.encoder("efficientnet-lite0", out=str(teacher), pool="mean")
    planned = planned_pretraining(
        make_videos(tmp_path / "videos", count=6),
        tmp_path / "run",
        teacher=str(teacher),
        objective="cosine",
    )
    model = planned.config.model
    recipe = load_config("distill_efficientnet_lite0_folder").model
    assert model.backbone.frame_pool == recipe.backbone.frame_pool == FRAME_POOL
    assert model.teacher_channels == pooled_channels(FRAME_POOL, 1280)
    assert model.projector.num_layers == 0  # their features correspond one to one


@needs_teacher
def test_a_linear_layer_leads_to_features_of_another_size(tmp_path):
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    save_model("dinov2", tmp_path / "dinov2")
    planned = planned_pretraining(
        make_videos(tmp_path / "videos", count=6),
        tmp_path / "run",
        teacher=str(tmp_path / "dinov2"),
    )
    model = planned.config.model
    assert model.backbone.type == "EfficientNetLite" and model.objective == "frames"
    assert model.projector.num_layers == 1 and model.teacher_channels != 1280


@needs_teacher
def test_a_linear_layer_leads_to_other_weights_of_the_same_size(tmp_path):
    """Channels of equal number mean the same only if both networks have the same weights."""
    own = "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False"
    text = CONFIG.replace(own, "type='EfficientNetLite', variant='lite1'")
    teacher = save_tiny(tmp_path / "epoch_1.pth", EfficientNetLite(variant="lite1"), text)
    videos = make_videos(tmp_path / "videos", count=6)
    planned = planned_pretraining(videos, tmp_path / "run", teacher=str(teacher))
    model = planned.config.model
    assert model.backbone.variant == "lite0" and model.teacher_channels == 1280
    assert model.projector.num_layers == 1


@needs_teacher
@pytest.mark.parametrize(
    ("objective", "size", "dtype"),
    [("cosine", 3 * 1280 + 343, np.float32), ("frames", 4 * 1280, np.float16)],
)
def test_a_student_is_trained_and_read_by_other_commands(objective, size, dtype, tmp_path):
    """The whole command. The features of frames are many, so they have half the precision."""
    videos = make_videos(tmp_path / "videos", count=8, write=write_video)
    run = tmp_path / "run"
    result = sce_video.pretrain(
        videos=str(videos),
        out=str(run),
        teacher="efficientnet-lite0",
        objective=objective,
        size=32,
        frames=4,
        epochs=6,
        batch=4,
        workers=0,
        seed=0,
    )
    assert result.status == 0
    stored = read_features(run / TEACHER_FEATURES)
    assert stored.values.shape == (8, size)
    with np.load(run / TEACHER_FEATURES) as file:
        assert file["features"].dtype == dtype
    checkpoint = load_checkpoint_file(newest_checkpoint(run))
    layers = [v for name, v in checkpoint["state_dict"].items() if ".temporal." in name]
    assert len(layers) == 4 and all(layer.abs().max() > 0 for layer in layers)
    model = load_model(run)
    assert model.settings.num_frames == 4 and model.feature_size == 3 * 1280 + 343
