"""Features of files and arrays against an independent computation in numpy."""

import math
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from helpers.tiny_encoder import (
    CLIP_DURATION,
    CONFIG,
    CROP_SIZE,
    FEATURE_SIZE,
    MEAN,
    NUM_FRAMES,
    SHORT_SIDE,
    STD,
    moving_frames,
    save_tiny,
    tiny_backbone,
    write_lossless,
)
from helpers.videos import write_video

from sce_video.datasets import VideoDecodeError
from sce_video.inference.embed import ViewOptions, embed_files, embed_videos
from sce_video.inference.model import load_model


@pytest.fixture(scope="module")
def segment_model(tmp_path_factory):
    """A network trained with segment sampling: a clip is the whole video."""
    text = CONFIG.replace(
        "clip_duration=0.48, num_frames=4, num_views=2, type='RandomClips'",
        "num_frames=5, type='RandomSegmentClip'",
    )
    assert text != CONFIG
    return load_model(
        save_tiny(tmp_path_factory.mktemp("model") / "s.pth", text=text), device="cpu"
    )


def decoded(path: Path) -> tuple[np.ndarray, np.ndarray, float]:
    """All frames of a file, their timestamps and the end of the last frame."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    times = np.array([float(f.time) for f in frames])
    frames_rgb = np.stack([f.to_ndarray(format="rgb24") for f in frames])
    return frames_rgb, times - times[0], float(times[-1] - times[0]) + 1 / 25


def clips_by_hand(times, end, num_clips):
    """Frame numbers of clips that start at equal steps: T of the frames that begin inside."""
    last = max(0.0, end - CLIP_DURATION)
    starts = [last / 2] if num_clips == 1 else np.linspace(0, last, num_clips)
    clips = []
    for start in starts:
        inside = [
            i for i, t in enumerate(times) if start - 1e-6 <= t < start + CLIP_DURATION - 1e-6
        ]
        steps = [
            math.floor(i * (len(inside) - 1) / (NUM_FRAMES - 1) + 1e-9) for i in range(NUM_FRAMES)
        ]
        clips.append([inside[s] for s in steps])
    return clips


def feature_by_hand(frames_rgb, clips, num_crops, backbone=None):
    """Resize, crop, normalise, network, mean over the views."""
    height, width = frames_rgb.shape[1:3]
    short = min(height, width)
    size = (width * SHORT_SIDE // short, height * SHORT_SIDE // short)
    small = [cv2.resize(p, size, interpolation=cv2.INTER_LINEAR) for p in frames_rgb]
    rounded = round if num_crops == 1 else math.ceil  # torchvision's rule, SlowFast's
    top, left = (rounded((n - CROP_SIZE) / 2) for n in (size[1], size[0]))
    if num_crops == 1:
        corners = [(top, left)]
    elif width >= height:
        corners = [(top, 0), (top, left), (top, size[0] - CROP_SIZE)]
    else:
        corners = [(0, left), (top, left), (size[1] - CROP_SIZE, left)]
    rows = []
    for clip in clips:
        for y, x in corners:
            view = np.stack([small[i][y : y + CROP_SIZE, x : x + CROP_SIZE] for i in clip])
            view = (view / 255.0 - MEAN) / STD
            tensor = torch.from_numpy(view.transpose(3, 0, 1, 2)[None].astype(np.float32))
            with torch.no_grad():
                rows.append((backbone or tiny_backbone())(tensor)[0].mean(dim=(1, 2, 3)).numpy())
    return np.mean(rows, axis=0)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Five lossless videos of different length and shape, and their frames."""
    folder = tmp_path_factory.mktemp("videos")
    shapes = [(40, 48, 64), (23, 64, 48), (60, 40, 40), (5, 48, 80), (1, 32, 44)]
    frames = [moving_frames(*shape, seed=i) for i, shape in enumerate(shapes)]
    paths = [write_lossless(folder / f"v{i}.mp4", f) for i, f in enumerate(frames)]
    return paths, frames


@pytest.mark.parametrize(("num_clips", "num_crops"), [(1, 1), (4, 1), (3, 3)])
def test_a_file_equals_the_computation_by_hand(model, tmp_path, num_clips, num_crops):
    for i, shape in enumerate([(40, 48, 64), (30, 64, 48)]):
        path = write_video(tmp_path / f"v{i}.mp4", moving_frames(*shape, seed=i))
        frames_rgb, times, end = decoded(path)
        clips = clips_by_hand(times, end, num_clips)
        expected = feature_by_hand(frames_rgb, clips, num_crops)
        feature = embed_videos(model, path, ViewOptions(num_clips=num_clips, num_crops=num_crops))
        assert feature.shape == (1, FEATURE_SIZE)
        assert feature.dtype == np.float32
        np.testing.assert_allclose(feature[0], expected, rtol=1e-4, atol=1e-5)
        assert expected.std() > 1e-2


def test_an_array_with_fps_is_the_video_of_a_file(model, videos, tmp_path):
    paths, frames = videos
    slow = write_lossless(tmp_path / "slow.mp4", frames[0], fps=10)
    np.testing.assert_array_equal(embed_videos(model, frames[0], fps=10), embed_videos(model, slow))
    for options in (ViewOptions(num_clips=4), ViewOptions(num_clips=1, num_crops=3)):
        np.testing.assert_array_equal(
            embed_videos(model, frames, options, fps=25), embed_videos(model, paths, options)
        )
    # Another rate is another video: a clip of 0.48 s holds other frames.
    assert not np.allclose(
        embed_videos(model, frames[0], fps=12), embed_videos(model, paths[0]), atol=1e-4
    )


def test_an_array_without_fps_is_one_clip(model, videos):
    _, frames = videos
    for array in (frames[1], frames[4]):
        positions = [i * (len(array) - 1) // (NUM_FRAMES - 1) for i in range(NUM_FRAMES)]
        for num_crops in (1, 3):
            expected = feature_by_hand(array, [positions], num_crops)
            feature = embed_videos(model, array, ViewOptions(num_crops=num_crops))
            np.testing.assert_allclose(feature[0], expected, rtol=1e-4, atol=1e-5)


def test_segment_sampling_covers_the_whole_video(segment_model, videos):
    paths, frames = videos
    assert segment_model.settings.clip_duration is None
    features = embed_videos(segment_model, paths)
    for array, feature in zip(frames, features, strict=True):
        positions = [int((i + 0.5) * len(array) / 5) for i in range(5)]
        expected = feature_by_hand(array, [positions], 1)
        np.testing.assert_allclose(feature, expected, rtol=1e-4, atol=1e-5)
    for fps in (25, None):
        np.testing.assert_array_equal(embed_videos(segment_model, frames, fps=fps), features)
    assert embed_files(segment_model, paths).num_views == 1


def test_a_feature_depends_only_on_its_video(model, videos):
    paths, frames = videos
    together = embed_videos(model, paths)
    alone = np.concatenate([embed_videos(model, path) for path in paths])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(embed_videos(model, paths[::-1])[::-1], together)
    np.testing.assert_array_equal(embed_videos(model, paths, ViewOptions(num_workers=1)), together)
    mixed = [frames[0], paths[1], str(paths[2]), torch.from_numpy(frames[3]), paths[4]]
    np.testing.assert_array_equal(embed_videos(model, mixed, fps=25), together)
    for max_views in (1, 3):
        np.testing.assert_allclose(
            embed_videos(model, paths, ViewOptions(max_views=max_views)), together, atol=1e-5
        )
    assert len(np.unique(together.round(4), axis=0)) == len(paths)


GOOD = np.zeros((4, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (GOOD.astype(np.float32), r"video 1 must be uint8.*float32.*255 \* array"),
        (GOOD[0], r"video 1 must be \(T, H, W, 3\), got shape \(32, 32, 3\).*array\[None\]"),
        (GOOD.transpose(3, 0, 1, 2), r"video 1 .*\(3, 4, 32, 32\).*moveaxis\(array, 0, -1\)"),
        (GOOD[..., :1], r"video 1 .*\(4, 32, 32, 1\)"),
        (GOOD[:0], r"video 1 is empty, shape \(0, 32, 32, 3\)"),
        (list(GOOD), r"video 1 must be a path or an array.*np\.stack"),
        (7, "video 1 must be a path or an array.*int"),
    ],
)
def test_wrong_arrays_are_reported_with_their_position(model, item, message):
    with pytest.raises(ValueError, match=message):
        embed_videos(model, [GOOD, item])


@pytest.mark.parametrize(
    "options", [{"num_clips": 1.5}, {"num_crops": 2}, {"num_workers": -1}, {"timeout": 0}]
)
def test_wrong_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ViewOptions(**options)


def test_files_that_are_missing_or_broken(model, videos, tmp_path):
    paths, _ = videos
    (tmp_path / "broken.mp4").write_bytes(b"not a video" * 100)
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4 \(position 1\)"):
        embed_videos(model, [paths[0], tmp_path / "nothing.mp4"])
    with pytest.raises(VideoDecodeError, match=r"broken\.mp4: cannot be opened"):
        embed_videos(model, [paths[0], tmp_path / "broken.mp4"])
    with pytest.raises(ValueError, match="fps must be positive"):
        embed_videos(model, GOOD, fps=float("nan"))
    with pytest.raises(ValueError, match="fps is only for arrays"):
        embed_videos(model, paths, fps=25)


def test_embed_files_skips_bad_files(model, videos, tmp_path):
    paths, _ = videos
    (tmp_path / "broken.mp4").write_bytes(b"not a video" * 100)
    given = [paths[0], tmp_path / "broken.mp4", paths[1], tmp_path / "no.mp4", tmp_path]
    found = embed_files(model, given, ViewOptions(num_clips=2, num_crops=3))
    assert found.paths == [str(paths[0]), str(paths[1])]
    assert found.indices.tolist() == [0, 2]
    assert found.num_views == 6
    expected = embed_videos(model, paths[:2], ViewOptions(num_clips=2, num_crops=3))
    np.testing.assert_array_equal(found.values, expected)
    reasons = dict(found.failures)
    assert list(reasons) == [str(p) for p in (given[1], given[3], given[4])]
    assert "No such file" in reasons[str(given[3])]
    assert "regular file" in reasons[str(given[4])]
    nothing = embed_files(model, given[1:2])
    assert nothing.values.shape == (0, FEATURE_SIZE)
    assert len(nothing.failures) == 1


def test_an_error_in_a_library_makes_a_bad_file(model, videos, monkeypatch):
    """An error in one of many files must not stop the run."""

    def no_memory(*args, **kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(cv2, "resize", no_memory)
    found = embed_files(model, videos[0][:2])
    assert [reason for _, reason in found.failures] == ["MemoryError: no room"] * 2
