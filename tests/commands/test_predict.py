"""The command predict: lines, the CSV file, failures, views and mistakes."""

import csv
import importlib
import shutil

import numpy as np
import pytest
from helpers.tiny_encoder import save_tiny

from sce_video.commands import predict as tool
from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.inference.classifier import load_classifier, predict


@pytest.fixture(scope="module")
def folder(split_videos, tmp_path_factory):
    """Three videos, one in a sub-folder, and a broken one."""
    folder = tmp_path_factory.mktemp("new")
    for i, path in enumerate(sorted(split_videos.glob("class*/*.mp4"))[:3]):
        target = folder / ("sub" if i == 1 else "") / f"v{i}.mp4"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


def arguments(checkpoint, *more):
    return [str(checkpoint), *map(str, more), "--workers", "0", "--device", "cpu"]


def test_a_line_per_video(folder_classifier, folder, capsys):
    assert tool.main(arguments(folder_classifier, folder, "--views", "1x1")) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    names = ["sub/v1.mp4", "v0.mp4", "v2.mp4"]
    assert [line.split(": ")[0] for line in lines] == [str(folder / name) for name in names]
    for line in lines:
        assert "class0 0." in line and "class1 0." in line
    assert "3 of 4 files classified" in printed.err
    assert f"{folder / 'broken.mp4'}: cannot be opened" in printed.err


def test_the_file_has_the_probabilities_of_the_test_views(
    folder_classifier, folder, tmp_path, capsys
):
    out = tmp_path / "new folder" / "out.csv"
    paths = [folder / "v2.mp4", folder / "broken.mp4", folder / "v0.mp4"]
    assert tool.main(arguments(folder_classifier, *paths, "--csv", out)) == 0
    assert f"written to {out}" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["path"] for row in rows] == list(map(str, paths))
    assert list(rows[0]) == "path class_1 probability_1 class_2 probability_2 failure".split()
    expected = predict(load_classifier(folder_classifier, device="cpu"), [paths[0], paths[2]])
    for row, probabilities in zip([rows[0], rows[2]], expected, strict=True):
        assert row["class_1"] == f"class{probabilities.argmax()}"
        found = [float(row["probability_1"]), float(row["probability_2"])]
        np.testing.assert_allclose(found, sorted(probabilities)[::-1], atol=1e-6)
        assert row["failure"] == ""
    assert rows[1]["class_1"] == ""
    assert rows[1]["failure"].startswith("cannot be opened")


def test_an_interrupt_keeps_the_rows_so_far(
    folder_classifier, folder, tmp_path, capsys, monkeypatch
):
    embed = importlib.import_module("sce_video.inference.embed")
    real = embed.iterate_embeddings

    def interrupted(*args):
        for i, result in enumerate(real(*args)):
            if i == 1:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(embed, "iterate_embeddings", interrupted)
    out = tmp_path / "out.csv"
    options = arguments(folder_classifier, folder / "v0.mp4", folder / "v2.mp4", "--csv", out)
    assert tool.main([*options, "--views", "1x1"]) == 130
    assert "has the videos so far" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 2


def test_without_names_classes_are_numbers(folder_classifier, folder, tmp_path, capsys):
    stored = load_checkpoint_file(folder_classifier)
    del stored["meta"]["classes"]
    save_checkpoint_file(stored, tmp_path / "bare.pth")
    few = arguments(tmp_path / "bare.pth", folder / "v0.mp4", "--views", "1x1", "--top", "1")
    assert tool.main(few) == 0
    printed = capsys.readouterr()
    assert "contains no class names" in printed.err
    assert printed.out.split(": ")[1].split()[0] in ("0", "1")
    (tmp_path / "names.txt").write_text("run\nhop \x1b[31m\n")
    assert tool.main([*few, "--top", "2", "--classes", str(tmp_path / "names.txt")]) == 0
    printed = capsys.readouterr()
    assert "contains no class names" not in printed.err
    assert "run 0." in printed.out and r"hop \x1b[31m 0." in printed.out


def test_mistakes_and_nothing_decoded(folder_classifier, folder, tmp_path, capsys):
    (tmp_path / "two").write_text("a\nb\nc\n")
    save_tiny(tmp_path / "tiny.pth")
    video = folder / "v0.mp4"
    for message, words in {
        "3 class names are given": (folder_classifier, video, "--classes", tmp_path / "two"),
        "has no classifier": (tmp_path / "tiny.pth", video),
        "1 or 3 crops, for example 10x3, got 1x2": (folder_classifier, video, "--views", "1x2"),
    }.items():
        assert tool.main(arguments(*words)) == 2, message
        error = capsys.readouterr().err
        assert message in error and error.startswith("predict.py: error: ")
    assert tool.main(arguments(folder_classifier, folder / "broken.mp4")) == 1
    assert "0 of 1 files classified" in capsys.readouterr().err
