"""The command export: what it prints, its exit status, mistakes."""

from __future__ import annotations

import pytest
from helpers.small_index import OPTIONS
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.commands import export
from sce_video.find.index import build_index
from sce_video.inference.model import load_model


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for i, name in enumerate(("run/a.mp4", "run/b.mp4", "sit/c.mp4")):
        write_lossless(folder / "videos" / name, moving_frames(20, seed=i))
    model = load_model(save_tiny(folder / "tiny.pth"), device="cpu")
    build_index(model, folder / "videos", folder / "index", OPTIONS)
    (folder / "videos" / "run" / "b.mp4").unlink()
    return folder / "index"


def test_labels_and_what_is_missing(index, tmp_path, capsys):
    (tmp_path / "labels.txt").write_text("run/a.mp4 0\nsit/c.mp4 1\n")
    (tmp_path / "labels_classes.txt").write_text("first\nsecond\n")
    words = [str(index), "--to", "projector", "--out", str(tmp_path / "my p"), "--workers", "0"]
    assert export.main([*words, "--labels", str(tmp_path / "labels.txt")]) == 1
    captured = capsys.readouterr()
    assert "3 videos, 2 with a label, map by PCA, 1 without a thumbnail" in captured.out
    assert "  run/b.mp4: the file is missing" in captured.out
    assert f"next: tensorboard --logdir '{tmp_path / 'my p'}'" in captured.out
    assert "reading thumbnails 3/3 (100%)" in captured.err
    metadata = (tmp_path / "my p" / "metadata.tsv").read_text()
    assert metadata == "path\tlabel\nrun/a.mp4\tfirst\nrun/b.mp4\tno label\nsit/c.mp4\tsecond\n"
