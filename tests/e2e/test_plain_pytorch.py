"""The parts of the package in plain PyTorch: the minimal example, and the reader of the docs."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.page_commands import blocks
from helpers.training import make_videos
from helpers.videos import numbered_frames, write_video

import sce_video
from sce_video.models import SCE, VideoDataPreprocessor

REPO = Path(__file__).resolve().parents[2]
WIDTH, QUEUE = 4, 24


@pytest.fixture(scope="module")
def example():
    """The module ``examples/sce_minimal.py``."""
    spec = importlib.util.spec_from_file_location("sce_minimal", REPO / "examples/sce_minimal.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch_of(seed: int, samples: int = 6) -> dict:
    """A collated batch of two views of random clips."""
    rng = np.random.default_rng(seed)
    clips = rng.integers(0, 256, (2, samples, 2, 32, 32, 3), dtype=np.uint8)
    return {"inputs": list(torch.from_numpy(clips)), "seed": torch.arange(samples) + 100 * seed}


def registered_sce() -> SCE:
    """The algorithm that recipes name, with the sizes of the example."""
    heads = dict(type="MLP", hidden_channels=1024)
    return SCE(
        dict(type="ResNet3dSlowPath", depth=18, base_channels=WIDTH, zero_init_residual=False),
        dict(heads, out_channels=256, num_layers=3, norm_output=True),
        dict(heads, num_layers=2, norm_output=False),
        queue_size=QUEUE,
    )


def test_the_example_is_the_registered_algorithm(example):
    """Losses, weights, targets and queues of three steps on the same views are bit-identical."""
    torch.manual_seed(0)
    own, registered = example.SCE(WIDTH, QUEUE), registered_sce()
    registered.load_state_dict(own.state_dict())
    augmentation = VideoDataPreprocessor([{"name": "strong-alpha"}, {"name": "strong-beta"}])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (own, registered)]
    for step in range(3):
        views = augmentation.prepare_views(batch_of(step), training=True)
        losses = own(views), registered.loss(views)["loss"]
        assert losses[0].item() == losses[1].item()
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        own.target.update(own.backbone, own.projector, registered.momentum)
        own.queue.commit()
        registered.after_optimizer_step()
    for name, value in registered.state_dict().items():
        assert torch.equal(value, own.state_dict()[name]), name


def test_the_loss_of_the_example_falls_below_chance_level(example):
    """On one batch, which a network can learn by heart, against a fixed queue."""
    torch.manual_seed(0)
    model = example.SCE(8, QUEUE)
    views = VideoDataPreprocessor().prepare_views(batch_of(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(25):
        loss = model(views)
        model.queue.discard_staged()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.8 * math.log(QUEUE + 1)


def test_the_example_trains_and_its_network_is_loaded(example, tmp_path, capsys):
    videos = make_videos(tmp_path / "videos", count=12)
    sizes = dict(batch_size=4, seconds=0.4, frames=2, size=32, width=WIDTH, workers=0)
    model, losses = example.train(str(videos), epochs=2, **sizes)
    assert len(losses) == 42 and np.isfinite(losses).all()  # an epoch is at least 20 batches
    last = f"epoch 2 of 2: loss {np.mean(losses[21:]):.3f}, chance level {math.log(6 + 1):.3f}"
    assert capsys.readouterr().out.splitlines()[1:] == [last]
    torch.save({"state_dict": model.state_dict()}, tmp_path / "sce.pth")
    recipe = f"_base_ = {str(REPO / 'configs/sce/sce_r3d18_folder.py')!r}\n"
    config = tmp_path / "narrow.py"
    config.write_text(recipe + f"model = dict(backbone=dict(base_channels={WIDTH}))\n")
    loaded = sce_video.load_model(tmp_path / "sce.pth", config=config).encoder.backbone.state_dict()
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(loaded[name], value), name


def test_the_reader_of_the_page(tmp_path, monkeypatch, capsys):
    """Its block runs as it stands, on two videos of 2 seconds."""
    (block,) = [b for b in blocks(REPO / "docs/extend.md", "python") if "open_video" in b]
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, numbered_frames(50))
    monkeypatch.chdir(tmp_path)
    exec(compile(block.replace("num_workers=2", "num_workers=0"), "extend.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown == "torch.Size([2, 8, 64, 80, 3]) tensor([0.4800, 1.0000], dtype=torch.float64)\n"
