"""The command predict: printed lines, CSV file, failures, views and errors."""

import csv
import json
import shutil

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.commands import predict as tool
from sce_video.datasets.segments import read_segments
from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.inference import embed_job
from sce_video.inference.classifier import class_probabilities, load_classifier


@pytest.fixture(scope="module")
def folder(split_videos, tmp_path_factory):
    """Make three videos, one in a sub-folder, and a broken one."""
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
    expected = class_probabilities(
        load_classifier(folder_classifier, device="cpu"), [paths[0], paths[2]]
    )
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
    real = embed_job.iterate_features

    def interrupted(*args):
        for i, result in enumerate(real(*args)):
            if i == 1:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(embed_job, "iterate_features", interrupted)
    out = tmp_path / "out.csv"
    options = arguments(folder_classifier, folder / "v0.mp4", folder / "v2.mp4", "--csv", out)
    assert tool.main([*options, "--views", "1x1"]) == 130
    assert "contains the videos classified so far" in capsys.readouterr().err
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
        "1 or 3 crops, for example 10x3, got '1x2'": (folder_classifier, video, "--views", "1x2"),
    }.items():
        assert tool.main(arguments(*words)) == 2, message
        error = capsys.readouterr().err
        assert message in error and error.startswith("predict.py: error: ")
    assert tool.main(arguments(folder_classifier, folder / "broken.mp4")) == 1
    assert "0 of 1 files classified" in capsys.readouterr().err


@pytest.fixture
def long_video(tmp_path):
    """Make a video of five seconds, with labelled segments in two of them."""
    path = write_lossless(tmp_path / "long.mp4", moving_frames(125, seed=6))
    labels = "path,start,end,label\nlong.mp4,0,2,class0\nlong.mp4,2,5,class1\n"
    (tmp_path / "labels.csv").write_text(labels)
    return path


def test_segments_of_a_long_video(folder_classifier, long_video, tmp_path, capsys):
    outs = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "html")}
    given = [word for name, out in outs.items() for word in (f"--{name}", out)]
    options = ("--windows", "1s", "--stride", "0.5s", "--threshold", "0.05", "--background", "")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    clips = ("--clips", tmp_path / "clips")
    words = arguments(folder_classifier, long_video, broken, *options, *given, *clips)
    assert tool.main(words) == 0
    printed = capsys.readouterr()
    assert "2 segments in 1 of 2 videos" in printed.out and str(broken) in printed.out
    # Every score is above 0.05: each class is one segment of the whole video.
    found = read_segments(str(outs["csv"]))
    assert [(s.path, s.start, s.end, s.label) for s in found] == [
        (str(long_video), 0.0, 5.0, name) for name in ("class0", "class1")
    ]
    content = json.loads(outs["json"].read_text())
    (video,) = content["videos"]
    assert content["classes"] == ["class0", "class1"] and len(video["scores"]) == 9
    np.testing.assert_allclose(np.sum(video["scores"], axis=1), 1, atol=2e-4)
    assert video["starts"][:3] == [0, 0.5, 1] and video["ends"][-1] == 5
    means = np.mean(video["scores"], axis=0)
    assert [s.score for s in found] == pytest.approx(means, abs=0.1)
    page = outs["html"].read_text()
    assert 'src="./long.mp4"' in page and page.count('class="mark"') == 2
    assert len(list((tmp_path / "clips").iterdir())) == 2


def test_a_threshold_chosen_on_labels(folder_classifier, long_video, tmp_path, capsys):
    words = ("--windows", "1s", "--segments", tmp_path / "labels.csv")
    assert tool.main(arguments(folder_classifier, long_video, *words)) == 0
    printed = capsys.readouterr()
    assert "chosen on 2 labelled segments: --threshold" in printed.err
    assert "segment mAP on the labelled segments" in printed.err
    assert "the rule was chosen on them" in printed.err
    for line in printed.out.splitlines():
        assert line.startswith(f"{long_video}@")
    given = ("--threshold", "0.9")
    assert tool.main(arguments(folder_classifier, long_video, *words, *given)) == 0
    assert "chosen on 2 labelled segments: --min-length" in capsys.readouterr().err
    given += ("--min-length", "1s")
    assert tool.main(arguments(folder_classifier, long_video, *words, *given)) == 0
    assert "chosen" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stride", "1s"), "--stride needs --windows"),
        (("--html", "p.html"), "--html needs --windows"),
        (("--windows", "soon"), "--windows must be a time like 5s"),
        (("--windows", "1s", "--threshold", "2"), "must be above 0 and at most 1, got 2"),
        (("--windows", "1s", "--fast"), "--fast has an effect only on --clips"),
        (("--windows", "1s", "--segments", "none.csv"), "no file of segments at none.csv"),
    ],
)
def test_wrong_options_of_segments(folder_classifier, folder, capsys, options, message):
    assert tool.main(arguments(folder_classifier, folder / "v0.mp4", *options)) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_file_of_segments(folder_classifier, long_video, tmp_path, capsys):
    (tmp_path / "labels.csv").write_text("path,start,end,label\nlong.mp4,3,9,class0\n")
    words = ("--windows", "1s", "--segments", tmp_path / "labels.csv")
    assert tool.main(arguments(folder_classifier, long_video, *words)) == 2
    assert "labels.csv, line 2: the segment ends at 9 s, but" in capsys.readouterr().err
    (tmp_path / "labels.csv").write_text("path,start,end,label\nlong.mp4,3,4,fly\n")
    assert tool.main(arguments(folder_classifier, long_video, *words)) == 2
    assert "the label 'fly' of the segments is not a class" in capsys.readouterr().err
