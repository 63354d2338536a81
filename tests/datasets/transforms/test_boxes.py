"""Boxes follow crop, resizing and flip: checked on the pixels that they enclose."""

import numpy as np
import pytest
import torch

from sce_video.datasets import collate_boxes
from sce_video.datasets.transforms import (
    FlipWithBoxes,
    PackBoxes,
    RandomCropWithBoxes,
    ResizeWithBoxes,
)

HEIGHT, WIDTH = 120, 200
BOXES = np.array([[20, 30, 80, 90], [100, 10, 160, 110], [150, 60, 199, 119]], dtype=np.float32)


def sample(seed=0):
    """A black clip with a grey rectangle per box, of a different value each."""
    view = np.zeros((2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for number, (x1, y1, x2, y2) in enumerate(BOXES.astype(int)):
        view[:, y1:y2, x1:x2] = np.maximum(view[:, y1:y2, x1:x2], 80 * (number + 1))
    scale = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], dtype=np.float32)
    return {
        "views": [view],
        "boxes": BOXES / scale,
        "actions": np.eye(3, 80, dtype=np.float32),
        "rng": np.random.default_rng(seed),
        **{"label": -1, "index": 4, "seed": seed},
    }


def value_inside(clip, box):
    """The value in the middle of a box."""
    x1, y1, x2, y2 = (float(v) for v in box)
    return int(clip[0, int((y1 + y2) / 2), int((x1 + x2) / 2), 0])


def edges(clip, box, value):
    """The rectangle of a value in a clip, as x1 y1 x2 y2."""
    rows, columns = np.nonzero(np.abs(clip[0, :, :, 0].astype(int) - value) < 12)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_resizing_without_a_crop():
    packed = PackBoxes()(ResizeWithBoxes(60)(sample()))
    clip = packed["inputs"][0].numpy()
    assert clip.shape == (2, 60, 100, 3)
    np.testing.assert_allclose(packed["boxes"].numpy(), BOXES / 2, atol=1e-4)
    assert [value_inside(clip, box) for box in packed["boxes"]] == [80, 160, 240]


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_follow_random_crops_and_flips(flip):
    dropped, seen = 0, set()
    for seed in range(30):
        results = RandomCropWithBoxes((80, 150), 72)(sample(seed))
        packed = PackBoxes()(FlipWithBoxes(flip)(results))
        clip = packed["inputs"][0].numpy()
        assert clip.shape == (2, 72, 72, 3)
        assert len(packed["boxes"]) == len(packed["actions"])
        dropped += 3 - len(packed["boxes"])
        for box, actions in zip(packed["boxes"].numpy(), packed["actions"], strict=True):
            number = int(actions.argmax())
            assert 0 <= box[0] < box[2] <= 72 and 0 <= box[1] < box[3] <= 72
            if min(box[2] - box[0], box[3] - box[1]) < 6:
                continue
            assert abs(value_inside(clip, box) - 80 * (number + 1)) < 12, (seed, number)
            if number == 2:  # the brightest: no blend of others looks like it
                found = edges(clip, box, 80 * (number + 1))
                np.testing.assert_allclose(found, box, atol=2.0)
            seen.add(number)
    assert dropped > 0 and seen == {0, 1, 2}


def test_the_probability_of_a_flip():
    flipped = [FlipWithBoxes(0.3)(sample(seed))["flipped"] for seed in range(100)]
    assert 10 < sum(flipped) < 60
    with pytest.raises(ValueError, match="prob"):
        FlipWithBoxes(1.5)
    with pytest.raises(ValueError, match="size"):
        RandomCropWithBoxes((100, 120), 112)


def test_collated_boxes_stay_a_list_per_sample():
    first = PackBoxes()(RandomCropWithBoxes((80, 80), 64)(sample(1)))
    second = PackBoxes()(RandomCropWithBoxes((80, 80), 64)(sample(2)))
    skipped = {"inputs": None, "failures": [("a", "broken")]}
    batch = collate_boxes([first, skipped, second])
    assert batch["inputs"][0].shape == (2, 2, 64, 64, 3)
    assert [len(b) for b in batch["boxes"]] == [len(first["boxes"]), len(second["boxes"])]
    assert torch.equal(batch["actions"][1], second["actions"])
    assert batch["failures"] == [("a", "broken")] and batch["index"].tolist() == [4, 4]
