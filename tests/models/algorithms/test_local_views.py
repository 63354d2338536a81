"""Every method trains on global and local views of one pipeline; targets see global views only."""

from __future__ import annotations

import math

import pytest
from helpers.training import Recorder, make_videos, small_config, train

from sce_video.models.modules import TargetEncoder

CLIPS, CROPS = (
    f"train_dataloader__dataset__pipeline__{step}"
    for step in ("1", "3")  # RandomClips, RandomResizedCropClips
)
LOCAL_VIEWS = {
    f"{CLIPS}__num_views": 4,
    f"{CLIPS}__num_local_views": 2,
    f"{CLIPS}__local_clip_duration": 0.2,
    f"{CLIPS}__local_num_frames": 1,
    f"{CROPS}__local_size": 16,
    f"{CROPS}__local_area": (0.1, 0.4),
    "data_preprocessor__views": [dict(name="strong-alpha"), dict(name="weak")] * 2,
}
GLOBAL, LOCAL = (2, 32, 32), (1, 16, 16)

NETWORK = dict(
    backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
    projector=dict(type="MLP", hidden_channels=16, out_channels=8, num_layers=2, norm_output=False),
)
PREDICTOR = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
#: The settings of a method, number of views through its online branch and through its target.
METHODS = {
    "SCE": (dict(queue_size=20, predictor=PREDICTOR), 4, 2),
    "MoCo": (dict(queue_size=20, target_views=[1]), 3, 1),
    "ReSSL": (dict(queue_size=20, target_views=[1]), 3, 1),
    "BYOL": (dict(predictor=PREDICTOR), 4, 2),
    "MoCoV3": (dict(predictor=PREDICTOR), 4, 2),
    "SimCLR": ({}, 4, 0),
    "SwAV": (dict(num_prototypes=8), 4, 0),
    "LeJEPA": (dict(num_directions=8), 4, 0),
}


class Shapes(Recorder):
    """Records (T, H, W) of the views that pass through the backbones."""

    def before_train(self, runner) -> None:
        self.online: list[tuple] = []
        self.target: list[tuple] = []
        for seen, module in (
            (self.online, runner.model.backbone),
            (self.target, getattr(runner.model, "target", None)),
        ):
            if module is not None:
                module.register_forward_pre_hook(
                    lambda _, inputs, seen=seen: seen.append(tuple(inputs[0].shape[2:]))
                )
        target = getattr(runner.model, "target", None)
        assert target is None or isinstance(target, TargetEncoder)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), 12)


def local_config(videos, folder, method, **changes):
    cfg = small_config(videos, folder, train_cfg__max_epochs=1, **LOCAL_VIEWS)
    settings = {**NETWORK, **METHODS[method][0], **changes}
    cfg.model = dict(type=method, data_preprocessor=cfg.data_preprocessor, **settings)
    cfg.custom_hooks[0].model = None  # no momentum to schedule in some
    cfg.default_hooks.checkpoint = None
    return cfg


@pytest.mark.parametrize("method", METHODS)
def test_trains_with_local_views(videos, tmp_path, method):
    _, watcher = train(local_config(videos, tmp_path, method), recorder=Shapes())
    assert len(watcher.rows) == 3
    assert all(math.isfinite(value) for row in watcher.rows for value in row)
    _, online, target = METHODS[method]
    assert watcher.online == ([GLOBAL] * (online - 2) + [LOCAL] * 2) * 3
    assert watcher.target == [GLOBAL] * target * 3


@pytest.mark.parametrize(
    ("method", "changes", "local"),
    [
        ("MoCo", dict(target_views=None), 3),  # the last view
        ("ReSSL", dict(target_views=None), 3),
        ("MoCo", dict(target_views=[1, 2]), 2),
        ("SwAV", dict(target_views=[0, 3]), 3),
        ("LeJEPA", dict(global_views=[0, 2]), 2),
    ],
)
def test_a_local_view_is_no_target(videos, tmp_path, method, changes, local):
    name = "global_views" if method == "LeJEPA" else "target_views"
    message = rf"view {local} is one of the 2 local views of 4.*set model.{name}, e.g. \[1\]"
    with pytest.raises(ValueError, match=message):
        train(local_config(videos, tmp_path, method, **changes))
