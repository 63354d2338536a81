"""The recognition recipes with tiny settings, and generated videos in three splits."""

from __future__ import annotations

from pathlib import Path

from helpers.training import REPO, make_videos

from sce_video.runs import configs, launch

FINETUNE = REPO / "configs/downstream/finetune/r3d18_1xb64-8x224-200e_ucf101.py"
LINEAR = REPO / "configs/downstream/linear/r3d18_8xb64-8x224-60e_k400.py"
RETRIEVAL = REPO / "configs/downstream/retrieval/r3d18_8x224_ucf101.py"


def make_splits(root: Path, count: int = 12) -> Path:
    """Write videos of two classes and the lists of three splits; each test list has 5 videos."""
    make_videos(root, count, frames=30)
    lines = [f"class{i % 2}/v{i:02d}.mp4 {i % 2}" for i in range(count)]
    for split in (1, 2, 3):
        test = lines[split : split + 5]
        (root / f"test_split{split}.txt").write_text("".join(f"{line}\n" for line in test))
        train = [line for line in lines if line not in test]
        (root / f"train_split{split}.txt").write_text("".join(f"{line}\n" for line in train))
    return root


def small_options(root: Path, **changes) -> list[str]:
    """``--cfg-options`` that make a recipe small; ``changes`` are dotted keys with __ for dots."""
    data = {
        "train_dataloader": "train_split1.txt",
        "val_dataloader": "test_split1.txt",
        "test_dataloader": "test_split1.txt",
    }
    options = {
        f"{name}.dataset.{key}": value
        for name, ann in data.items()
        for key, value in (("data_root", root), ("ann_file", ann))
    }
    options |= {f"{name}.num_workers": 0 for name in data} | {
        f"{name}.pin_memory": False for name in data
    }
    options |= {
        "train_dataloader.persistent_workers": False,
        "train_dataloader.batch_size": 4,
        "model.backbone.base_channels": 4,
        "model.cls_head.in_channels": 32,
        "model.cls_head.num_classes": 2,
        "train_dataloader.dataset.pipeline.RandomClips.clip_duration": 0.4,
        "train_dataloader.dataset.pipeline.RandomClips.num_frames": 2,
        "train_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
        "train_dataloader.dataset.pipeline.RandomCropClips.size": 32,
        "val_dataloader.dataset.pipeline.UniformClips.num_frames": 2,
        "val_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
        "val_dataloader.dataset.pipeline.CenterCropClips.size": 36,
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration": 0.4,
        "test_dataloader.dataset.pipeline.UniformClips.num_frames": 2,
        "test_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
        "test_dataloader.dataset.pipeline.PackVideo.crop_size": 36,
        "train_cfg.max_epochs": 2,
        "train_cfg.val_interval": 1,
        "default_hooks.logger.interval": 1,
        "visualizer": None,
        "run_page": None,
    }
    options |= {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in options.items()]


def folder_options(root: Path) -> list[str]:
    """:func:`small_options` that read the class folders of ``root`` instead of its lists."""
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    return small_options(root, **{f"{name}__dataset__ann_file": None for name in loaders})


def train_on_folders(root: Path, work_dir: Path) -> Path:
    """Finetune for an epoch on all videos of ``root``; returns the checkpoint."""
    cfg = configs.training_config(
        FINETUNE, work_dir=work_dir, pretrained="random", amp="float32",
        cfg_options=[*folder_options(root), "train_cfg.max_epochs=1"],
    )  # fmt: skip
    launch.run_training(cfg)
    return work_dir / "epoch_1.pth"
