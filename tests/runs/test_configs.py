"""Finetuning on one's own folders and lists: classes are counted, their names kept."""

from __future__ import annotations

import pytest
import torch
from helpers.training import REPO

from sce_video.runs import configs
from sce_video.runs import configs as classifier

FOLDER = REPO / "configs/downstream/finetune/r3d18_folder.py"


def options(root, *parts, **changes) -> list[str]:
    """``--cfg-options`` that make the recipe small; ``changes`` with __ for dots."""
    values = {"model__backbone__base_channels": 4, "visualizer": None}
    for part in parts:
        values |= {f"{part}_dataloader__dataset__data_root": root}
        values |= {f"{part}_dataloader__num_workers": 0}
    values |= changes
    return [f"{key.replace('__', '.')}={value}" for key, value in values.items()]


def training(root, work_dir, **changes):
    changes = {"train_cfg__max_epochs": 1, "val_dataloader": None, "val_cfg": None,
               "val_evaluator": None, **changes}  # fmt: skip
    given = options(root, "train", **changes)
    return configs.training_config(
        FOLDER, work_dir=work_dir, pretrained="random", cfg_options=given
    )


def test_lists_count_their_labels_and_may_name_them(split_videos, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("run\nwalk\njump\n")
    annotated = dict(train_dataloader__dataset__ann_file="train_split1.txt")
    cfg = training(split_videos, tmp_path, **annotated)
    assert cfg.model.cls_head.num_classes == 2
    cfg = training(split_videos, tmp_path, **annotated, train_dataloader__dataset__class_file=names)
    assert cfg.model.cls_head.num_classes == 3
    cfg = training(split_videos, tmp_path, **annotated, model__cls_head__num_classes=7)
    assert cfg.model.cls_head.num_classes == 7


def test_a_label_without_videos_is_named(split_videos, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(classifier, "print_log", lambda text, **_: said.append(text))
    (tmp_path / "from_one.txt").write_text("class0/v00.mp4 1\nclass1/v01.mp4 3\n" * 2)
    cfg = training(
        split_videos, tmp_path, train_dataloader__dataset__ann_file=tmp_path / "from_one.txt"
    )
    assert cfg.model.cls_head.num_classes == 4
    assert said[0].startswith("4 classes in 4 videos of ")
    assert "has the label 0, 2. Labels count from 0 to 3" in said[1]
    head = training(split_videos, tmp_path).model.cls_head
    assert (head.num_classes, head.in_channels) == (2, 32)
    assert said[2:] == [f"2 classes in 12 videos of {split_videos}: class0, class1"]


def test_labels_that_number_no_classes_are_refused(split_videos, tmp_path):
    listed = tmp_path / "list.txt"
    for lines, message in (
        ("class0/v00.mp4 0\n", r"list\.txt' has 1 classes.*sub-folder for each"),
        # A classifier of that many outputs would not fit into memory.
        ("class0/v00.mp4 0\nclass1/v01.mp4 999999\n", "the label 999999, but only 2 videos"),
    ):
        listed.write_text(lines)
        with pytest.raises(ValueError, match=message):
            training(split_videos, tmp_path, train_dataloader__dataset__ann_file=listed)


def test_testing_takes_the_outputs_of_the_checkpoint_or_counts_for_random_weights(
    split_videos, tmp_path
):
    checkpoint = tmp_path / "five.pth"
    weights = {"cls_head.fc_cls.weight": torch.zeros(5, 32)}
    torch.save({"state_dict": weights, "meta": {}}, checkpoint)
    cfg = configs.testing_config(FOLDER, str(checkpoint))
    assert (cfg.model.cls_head.num_classes, cfg.model.cls_head.in_channels) == (5, 512)
    cfg = configs.testing_config(FOLDER, "random", cfg_options=options(split_videos, "train"))
    assert cfg.model.cls_head.num_classes == 2
    torch.save({"state_dict": {"backbone.conv1.weight": torch.zeros(1)}, "meta": {}}, checkpoint)
    with pytest.raises(ValueError, match=r"five\.pth contains no classifier"):
        configs.testing_config(FOLDER, str(checkpoint))
