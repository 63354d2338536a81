"""Local views: shorter and smaller clips beside the global ones, from one decoding pass."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.readers import FramesReader
from PIL import Image

from sce_video.datasets import ImageDataset, SampleRequest
from sce_video.datasets.clip_sampling import make_clip
from sce_video.datasets.transforms.spatial import crop_and_resize, random_box
from sce_video.registry import TRANSFORMS

CLIPS = dict(
    type="RandomClips",
    clip_duration=1.2,
    num_frames=4,
    num_views=4,
    num_local_views=2,
    local_clip_duration=0.6,
    local_num_frames=2,
)
CROPS = dict(
    type="RandomResizedCropClips", size=16, area=(0.5, 1.0), local_size=8, local_area=(0.1, 0.3)
)
PIPELINE = [dict(type="OpenVideo"), CLIPS, dict(type="DecodeClips"), CROPS, dict(type="PackClips")]


def run(steps, **results):
    for step in steps:
        results = TRANSFORMS.build(step)(results)
    return results


def test_views_equal_a_loop_over_plain_arrays():
    frames = np.random.default_rng(0).integers(0, 256, (40, 30, 36, 3), dtype=np.uint8)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        reader = FramesReader(frames)
        sample = run(PIPELINE[1:], reader=reader, rng=rng, label=0, index=0, seed=seed)

        rng = np.random.default_rng(seed)
        starts = rng.random((4, 4))[:, 1]
        settings = [(1.2, 4, 16, (0.5, 1.0))] * 2 + [(0.6, 2, 8, (0.1, 0.3))] * 2
        for view, start, (seconds, count, size, area) in zip(
            sample["inputs"], starts, settings, strict=True
        ):
            clip = make_clip(
                reader.timestamps,
                start=start * (reader.duration - seconds),
                clip_duration=seconds,
                num_frames=count,
            )
            box = random_box((30, 36), area, (3 / 4, 4 / 3), rng.random((10, 4)))
            expected = crop_and_resize(frames[clip.frames], box, (size, size))
            assert np.array_equal(view.numpy(), expected)


SIZES = (24, 20, 16, 12)
AREAS = ((0.172, 0.86), (0.143, 0.715), (0.114, 0.571), (0.086, 0.429))
MULTI_CROP = dict(
    type="RandomResizedCropClips", size=28, area=(0.2, 1.0), local_size=SIZES, local_area=AREAS
)


def test_each_local_view_of_an_image_has_its_size_and_area(tmp_path):
    """Two global and four local views, as in tab:sota-multi-crop, against a loop over crops."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    load = dict(type="LoadImage", num_views=6, num_local_views=4, resize="linear")
    dataset = ImageDataset(str(tmp_path), pipeline=[load, MULTI_CROP, dict(type="PackClips")])
    for seed in range(5):
        views = dataset[SampleRequest(0, seed)]["inputs"]
        rng = np.random.default_rng(seed)
        settings = [(28, (0.2, 1.0))] * 2 + list(zip(SIZES, AREAS, strict=True))
        for view, (size, area) in zip(views, settings, strict=True):
            box = random_box((40, 52), area, (3 / 4, 4 / 3), rng.random((10, 4)))
            expected = crop_and_resize(pixels[None], box, (size, size))
            assert np.array_equal(view.numpy(), expected)


WRONG_CLIPS = [
    (dict(num_local_views=4), "num_local_views must be from 0 to 3, because num_views=4"),
    (dict(num_local_views=0), "local_clip_duration=0.6 and local_num_frames=2 without local"),
    (dict(local_num_frames=0), "local_num_frames must be at least 1, got 0"),
    (
        dict(local_clip_duration=0),
        "local_clip_duration must be a positive number of seconds, got 0",
    ),
]
WRONG_CROPS = [
    (dict(local_area=(0, 1)), r"local_area must be 0 < low <= high <= 1, got \(0, 1\)"),
    (dict(local_size=(24, 20, 16)), r"local_size=\[24, 20, 16\] .* for 4 local views"),
    (dict(local_area=[(0.1, 0.2)]), r"local_area=\[\(0.1, 0.2\)\] .* for 4 local views"),
    (dict(local_size=[]), "for 4 local views. Use one value for all views, or a"),
]


def test_wrong_settings():
    for changes, message in WRONG_CLIPS:
        with pytest.raises(ValueError, match=message):
            TRANSFORMS.build({**CLIPS, **changes})
    given = {"views": [np.zeros((4, 40, 40, 3), np.uint8)] * 6, "rng": np.random.default_rng(0)}
    for changes, message in WRONG_CROPS:
        with pytest.raises(ValueError, match=message):
            run([{**MULTI_CROP, **changes}], num_local_views=4, **given)
    with pytest.raises(ValueError, match="local_size=8 and local_area=.* Set num_local_views"):
        run([CROPS], **given)
    same_size = {key: value for key, value in CROPS.items() if key != "local_size"}
    state = run([same_size], num_local_views=1, **given)
    with pytest.raises(
        ValueError, match="local view 5 has 4 frames of 16x16, so it is not smaller than view 0"
    ):
        run([dict(type="PackClips")], **state)
