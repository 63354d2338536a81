"""Local views: shorter and smaller clips beside the global ones, from one decoding pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.readers import FramesReader
from helpers.videos import numbered_frames, write_video
from PIL import Image
from torch.utils.data import DataLoader

from sce_video.datasets import ImageDataset, SampleRequest, VideoDataset, collate_views
from sce_video.datasets.clip_sampling import make_clip, random_start
from sce_video.datasets.transforms import crop_and_resize, random_box
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
SHAPES = [(4, 16, 16, 3)] * 2 + [(2, 8, 8, 3)] * 2


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
            start = random_start(reader.duration, seconds, start)
            clip = make_clip(
                reader.timestamps, start=start, clip_duration=seconds, num_frames=count
            )
            box = random_box((30, 36), area, (3 / 4, 4 / 3), rng.random((10, 4)))
            expected = crop_and_resize(frames[clip.frames], box, (size, size))
            assert np.array_equal(view.numpy(), expected)


def test_global_clips_do_not_depend_on_local_ones():
    frames = np.zeros((40, 8, 8, 3), dtype=np.uint8)
    plain = {k: v for k, v in CLIPS.items() if "local" not in k}

    def clips(step):
        state = run([step], reader=FramesReader(frames), rng=np.random.default_rng(3))
        return [(clip.start, clip.frames.tolist()) for clip in state["clips"]]

    assert clips(CLIPS)[:2] == clips({**plain, "num_views": 2}) == clips(plain)[:2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for i in range(4):
        write_video(root / f"{i}.mp4", numbered_frames(20 + i, 32, 40), fps=10)
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_loader_equal_single_samples_without_a_copy(folder, workers):
    requests = [SampleRequest(i % 4, 100 + i) for i in range(8)]

    def collate(samples):
        batch = collate_views(samples)
        views = zip(samples[1]["inputs"], batch["inputs"], strict=True)
        batch["in_place"] = [own.data_ptr() == view[1].data_ptr() for own, view in views]
        return batch

    dataset = VideoDataset(str(folder), pipeline=PIPELINE)
    assert dataset.num_views == 4
    alone = VideoDataset(str(folder), pipeline=PIPELINE)
    loader = DataLoader(dataset, 4, sampler=requests, num_workers=workers, collate_fn=collate)
    for number, batch in enumerate(loader):
        own = [alone[request]["inputs"] for request in requests[4 * number : 4 * number + 4]]
        assert [view.shape[1:] for view in batch["inputs"]] == SHAPES
        for view, tensors in zip(batch["inputs"], zip(*own, strict=True), strict=True):
            assert torch.equal(view, torch.stack(tensors))
        assert batch["in_place"] == [number > 0] * 4


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(local_size=(24, 20, 16)), r"local_size=\[24, 20, 16\] .* for 4 local views"),
        (dict(local_area=[(0.1, 0.2)]), r"local_area=\[\(0.1, 0.2\)\] .* for 4 local views"),
        (dict(local_size=[]), "for 4 local views: give one value for all, or a list"),
    ],
)
def test_sizes_and_areas_are_as_many_as_local_views(changes, message):
    views = [np.zeros((1, 40, 40, 3), dtype=np.uint8)] * 6
    with pytest.raises(ValueError, match=message):
        run(
            [{**MULTI_CROP, **changes}], views=views, rng=np.random.default_rng(), num_local_views=4
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_local_views=4), "num_local_views must be from 0 to 3, below num_views=4"),
        (dict(num_local_views=-1), "num_local_views must be from 0 to 3"),
        (dict(num_local_views=0), "local_clip_duration=0.6 and local_num_frames=2 without local"),
        (dict(local_num_frames=0), "local_num_frames must be at least 1, got 0"),
        (dict(local_clip_duration=0), "local_clip_duration must be positive seconds, got 0"),
    ],
)
def test_wrong_clips(changes, message):
    with pytest.raises(ValueError, match=message):
        TRANSFORMS.build({**CLIPS, **changes})


def test_wrong_crops():
    with pytest.raises(ValueError, match=r"local_area must be 0 < low <= high <= 1, got \(0, 1\)"):
        TRANSFORMS.build({**CROPS, "local_area": (0, 1)})
    views = [np.zeros((4, 20, 20, 3), dtype=np.uint8)] * 2
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="local_size=8 and local_area=.* set num_local_views"):
        run([CROPS], views=views, rng=rng)
    same_size = {key: value for key, value in CROPS.items() if key != "local_size"}
    state = run([same_size], views=views, rng=rng, num_local_views=1)
    with pytest.raises(ValueError, match="local view 1 has 4 frames of 16x16, as much as view 0"):
        run([dict(type="PackClips")], **state)
