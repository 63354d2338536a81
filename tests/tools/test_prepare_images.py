"""``sce-video prepare`` of Tiny-ImageNet and ImageNet on small trees of the official layouts."""

from __future__ import annotations

import pytest
from helpers import image_trees
from helpers.run_tool import prepare

pytestmark = pytest.mark.usefixtures("in_process")
WHOLE = [{"type": "LoadImage", "num_views": 1}, {"type": "PackClips"}]


def run(name, root, *options, capsys):
    capsys.readouterr()
    status = prepare(name, root, "--workers", "1", *options)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def test_every_file_is_decoded_and_bad_ones_are_left_out(tmp_path, capsys):
    root = image_trees.make_tiny_imagenet(tmp_path, train=2, val=1)
    folder = root / "tiny-imagenet-200"
    (folder / "train/n01443537/images/n01443537_1.JPEG").write_bytes(b"")
    cut = folder / "val/images/val_2.JPEG"
    cut.write_bytes(cut.read_bytes()[:-100])  # the header is fine
    (folder / "train/n04067472/images/n04067472_1.JPEG").unlink()
    status, out, err = run("tiny_imagenet", root, "--strict", capsys=capsys)
    assert status == 1 and "counts differ from the published ones" in err
    assert len((root / "train.txt").read_text().splitlines()) == 4
    assert (root / "missing_tiny_imagenet.txt").read_text() == (
        "tiny-imagenet-200/train/n04067472/images/n04067472_1.JPEG\tno such file\n"
    )
    assert (root / "unreadable_tiny_imagenet.txt").read_text() == (
        "tiny-imagenet-200/train/n01443537/images/n01443537_1.JPEG\tis empty (0 bytes)\n"
        "tiny-imagenet-200/val/images/val_2.JPEG\tis no image that can be decoded\n"
    )
    line = next(line for line in out.splitlines() if line.startswith("train "))
    assert line.split() == ["train", "6", "5", "1", "1", "100,000", "differs"]


def test_imagenet100_writes_its_own_lists(tmp_path, capsys):
    from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES

    root = image_trees.make_imagenet(tmp_path, IMAGENET100_CLASSES, train=1, size=(8, 8))
    status, out, _ = run("imagenet", root, "--no-check", "--imagenet100", capsys=capsys)
    assert status == 0
    assert {path.name for path in root.glob("*.txt")} == {
        "imagenet100_train.txt",
        "imagenet100_val.txt",
        "imagenet100_classes.txt",
    }
    assert "126,689" in out and "5,000" in out
