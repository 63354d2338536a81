"""Pretrain an image encoder on a folder of frames, then test it on images and on videos.

The videos hold exactly the frames that lie in the folder as PNG files. The features of a 2-D
network on video are the means of its features of the frames, so the two tests check each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.run_tool import run_tool
from helpers.tiny_encoder import write_lossless
from PIL import Image

from sce_video.evaluation import load_features

pytestmark = pytest.mark.slow

FRAMES = 8
IMAGES, VIDEOS = "sce_r18_image_folder.py", "sce_r18_frames_folder.py"
SMALL = [
    "visualizer=None",
    "run_page=None",
    "model.backbone.base_channels=4",
    "model.projector.hidden_channels=16",
    "model.projector.out_channels=8",
    "model.predictor.hidden_channels=16",
    "model.queue_size=20",
]
TRAINING = [
    "train_dataloader.batch_size=8",
    "train_dataloader.sampler.min_samples=0",
    "train_dataloader.num_workers=0",
    "train_dataloader.persistent_workers=False",
    "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=32",
    "train_cfg.max_epochs=2",
    "default_hooks.checkpoint.interval=1",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """``train`` and ``test``, each with ``videos`` and the same frames in ``images``."""
    root = tmp_path_factory.mktemp("data")
    for number in range(8):
        split, label = ("test", "train")[number % 4 > 0], number // 4
        frames = drawn_frames(label, seed=number)
        write_lossless(root / split / f"videos/class{label}/v{number}.mp4", frames)
        folder = root / split / f"images/class{label}/v{number}"
        folder.mkdir(parents=True)
        for i, frame in enumerate(frames):
            Image.fromarray(frame).save(folder / f"{i}.png")
    return root


def drawn_frames(label: int, seed: int) -> np.ndarray:
    """(8, 48, 64, 3): stripes along or across, a random colour, moving with time."""
    rng = np.random.default_rng(seed)
    colour, period = rng.uniform(60, 255, 3), rng.uniform(6, 12)
    along = np.arange(64 if label else 48)
    lines = [np.sin((along + 2 * t) * 2 * np.pi / period) * 0.5 + 0.5 for t in range(FRAMES)]
    planes = [np.broadcast_to(x if label else x[:, None], (48, 64)) for x in lines]
    return np.stack([(plane[..., None] * colour).astype(np.uint8) for plane in planes])


def run(tool: str, recipe: str, *arguments: object, options: list[str]) -> None:
    arguments = (*arguments, "--cfg-options", *SMALL, *options)
    done = run_tool(tool, f"configs/sce/{recipe}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_options(data: Path, kind: str) -> list[str]:
    """Options of tools/test.py: where the data are, and small sizes."""
    options = ["test_cfg.dump=features.npz", "test_evaluator.KNN.k=3"]
    for loader, split in (("test_dataloader", "test"), ("test_cfg.gallery_dataloader", "train")):
        options += [
            f"{loader}.num_workers=0",
            f"{loader}.dataset.data_root={data / split / kind}",
            f"{loader}.dataset.pipeline.ResizeShortSide.size=40",
            f"{loader}.dataset.pipeline.CenterCropClips.size=32",
        ]
        if kind == "videos":
            clips = f"{loader}.dataset.pipeline.UniformClips"
            options += [f"{clips}.num_clips=1", f"{clips}.num_frames={FRAMES}"]
            options += [f"{clips}.clip_duration={FRAMES / 25}"]
        else:  # as the frames of videos are resized
            options += [f"{loader}.dataset.pipeline.LoadImage.resize=linear"]
    return options


test_options.__test__ = False


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory) -> Path:
    work_dir = tmp_path_factory.mktemp("pretrain")
    root = f"train_dataloader.dataset.data_root={data / 'train/images'}"
    run("train.py", IMAGES, "--work-dir", work_dir, options=[*TRAINING, root])
    return work_dir / "epoch_2.pth"


def test_images_then_the_same_network_on_videos(data, pretrained, tmp_path):
    found = {}
    for recipe, kind in ((IMAGES, "images"), (VIDEOS, "videos")):
        folder = tmp_path / kind
        options = test_options(data, kind)
        run("test.py", recipe, pretrained, "--work-dir", folder, options=options)
        found[kind] = load_features(folder / "features.npz")[0]
    images, videos = found["images"], found["videos"]
    assert (len(images.paths), len(videos.paths)) == (2 * FRAMES, 2)
    for path, feature in zip(videos.paths, videos.values.numpy(), strict=True):
        frames = [Path(path).stem == Path(image).parent.name for image in images.paths]
        assert sum(frames) == FRAMES
        of_frames = images.values.numpy()[frames]
        np.testing.assert_allclose(feature, of_frames.mean(axis=0), rtol=1e-4, atol=1e-6)
        assert np.ptp(of_frames, axis=0).max() > 1e-3  # the frames are not all alike
