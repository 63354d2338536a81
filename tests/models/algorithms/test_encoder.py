"""The encoder, which is only a backbone, and the action detector."""

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import VideoDataPreprocessor
from sce_video.models.modules import roi_align
from sce_video.registry import MODELS

BACKBONE = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4}


def test_represents_every_view_as_its_mean_over_time_and_space():
    torch.manual_seed(0)
    model = MODELS.build({"type": "Encoder", "backbone": BACKBONE}).eval()
    assert isinstance(model.data_preprocessor, VideoDataPreprocessor)
    views = [torch.randn(2, 3, 2, 32, 32), torch.randn(1, 3, 4, 48, 40)]
    rows = model(inputs=views, mode="tensor")
    assert [tuple(row.shape) for row in rows] == [(2, 32), (1, 32)]
    for row, view in zip(rows, views, strict=True):
        maps = model.backbone(view)
        expected = torch.stack([torch.stack([c.mean() for c in sample]) for sample in maps])
        torch.testing.assert_close(row, expected)
    with pytest.raises(ValueError, match="'loss'"):
        model(inputs=views, mode="loss")


# Actions in given boxes: scores computed by hand, the loss, and training on one batch.


BACKBONE_ACTION_DETECTOR = {
    "type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4,
    "last_stage_stride": 1, "last_stage_dilation": 2,
}  # fmt: skip


def detector(**head):
    torch.manual_seed(0)
    return MODELS.build(
        {
            "type": "ActionDetector",
            "backbone": BACKBONE_ACTION_DETECTOR,
            "roi_head": {"type": "RoIActionHead", **head},
        }
    )


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    clips = torch.randint(0, 256, (2, 2, 64, 80, 3), generator=generator).to(torch.uint8)
    boxes = [torch.tensor([[4.0, 4, 40, 60], [10, 0, 70, 33]]), torch.tensor([[0.0, 0, 80, 64]])]
    actions = [torch.zeros(2, 80), torch.zeros(1, 80)]
    actions[0][0, 3] = actions[0][1, 70] = actions[1][0, 3] = 1
    return {"inputs": [clips], "boxes": boxes, "actions": actions}


def test_scores_by_hand():
    model = detector().eval()
    data = model.data_preprocessor(batch())
    with torch.no_grad():
        scores = model(**data, mode="tensor")
        features = model.backbone(data["inputs"])
        assert features.shape[-2:] == (4, 5), "stride 16"
        expected = []
        for i, boxes in enumerate(data["data_samples"]["boxes"]):
            for box in boxes:
                roi = torch.cat([torch.zeros(1), box])[None]
                grid = roi_align(features[i].mean(1)[None], roi, 7, 1 / 16)
                pooled = torch.stack([channel.max() for channel in grid[0]])
                expected.append(model.roi_head.fc_cls(pooled).sigmoid())
    torch.testing.assert_close(scores, torch.stack(expected))


def test_loss_is_the_mean_over_boxes_and_actions():
    model = detector(dropout_ratio=0.0)
    data = model.data_preprocessor(batch(), True)
    loss = model(**data, mode="loss")["loss"]
    logits = model.roi_head(model.backbone(data["inputs"]), data["data_samples"]["boxes"])
    actions = torch.cat(data["data_samples"]["actions"])
    by_hand = -(actions * F.logsigmoid(logits) + (1 - actions) * F.logsigmoid(-logits)).mean()
    torch.testing.assert_close(loss, by_hand)


def test_a_batch_without_boxes_has_zero_loss_and_gradients():
    model = detector()
    data = batch()
    data["boxes"] = [torch.zeros(0, 4)] * 2
    data["actions"] = [torch.zeros(0, 80)] * 2
    loss = model(**model.data_preprocessor(data, True), mode="loss")["loss"]
    assert loss.item() == 0
    loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    with pytest.raises(ValueError, match="'predict'"):
        model(**model.data_preprocessor(data), mode="predict")


def test_a_flip_on_the_device_is_refused():
    model = MODELS.build({"type": "BoxDataPreprocessor", "views": [{"name": "weak"}]})
    with pytest.raises(ValueError, match="must not flip"):
        model(batch(), True)
