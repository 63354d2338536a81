"""Curation of videos with planted copies: groups, lists, table, report and page; wrong input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.tiny_encoder import write_lossless

from sce_video.commands.curate import main
from sce_video.curation import comparison
from sce_video.curation import near_duplicates as duplicates
from sce_video.datasets import read_annotation_list
from sce_video.evaluation import Rows, save_features

_FPS, _SIDE = 16, 64


def panned(seed: int, count: int = 40) -> np.ndarray:
    """Frames (count, 64, 64, 3) of a camera that moves over a random texture."""
    rng = np.random.default_rng(seed)
    texture = cv2.resize(rng.uniform(0, 255, (20, 20)), (3 * _SIDE, 3 * _SIDE))
    x = (rng.uniform(0, _SIDE) + np.linspace(0, 1, count) * rng.uniform(0.5, 1) * _SIDE).astype(int)
    y = int(rng.integers(0, 2 * _SIDE))
    grey = np.stack([texture[y : y + _SIDE, left : left + _SIDE] for left in x])
    return np.repeat(grey[..., None], 3, axis=3).astype(np.uint8)


def resized(frames: np.ndarray, side: int) -> np.ndarray:
    return np.stack([cv2.resize(f, (side, side), interpolation=cv2.INTER_AREA) for f in frames])


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Ten videos of two classes, copies of three of them; and features of all, with an outlier."""
    root = tmp_path_factory.mktemp("curated") / "videos"
    shown = {f"{'ab'[i % 2]}/{i}.mp4": panned(i) for i in range(10)}
    shown["a/small <b>.mp4"] = resized(shown["a/0.mp4"], 40)
    shown["b/crop.mp4"] = resized(shown["b/1.mp4"][:, 6:58, 8:60], 64)
    shown["b/trim.mp4"] = shown["b/1.mp4"][8:32]
    shown["a/trim of 2.mp4"] = resized(shown["a/2.mp4"][4:30], 48)
    for name, frames in shown.items():
        write_lossless(root / name, frames, _FPS)
    rng = np.random.default_rng(3)  # features know nothing of the copies
    values = rng.normal(size=(len(shown), 8)) * 0.2 + [1, 0, 0, 0, 0, 0, 0, 0]
    values[rng.permutation(len(shown))[:7], 1] += 2
    paths = sorted(shown)
    values[paths.index("b/9.mp4")] = [0, 0, 0, 0, 0, 0, 0, -9]
    rows = Rows(
        torch.from_numpy(values).float(),
        torch.tensor([int(path[0] == "b") for path in paths]),
        torch.arange(len(paths)),
        [str(root / path) for path in paths],
        [(str(root / "a/broken.mp4"), "no video in it")],
    )
    file = root.parent / "features.npz"
    save_features(file, rows, {"test": {"data_root": str(root), "classes": ["a", "b"]}})
    return file, root, paths


@pytest.fixture(scope="module")
def curated(videos):
    """Folder of the results of the command."""
    out = videos[0].parent / "out"
    words = [str(videos[0]), "--out", str(out), "--neighbours", "5", "--workers", "0"]
    words += ["--prefer", "length", "resolution"]  # the bitrate of lossless files says little
    assert main([*words, "--subset", "4", "--clusters", "3", "--drop-outliers"]) == 0
    return out


def test_copies_are_grouped_and_the_best_of_each_is_kept(curated):
    report = json.loads((curated / "report.json").read_text())
    groups = {g["kept"]: {video["path"] for video in g["removed"]} for g in report["groups"]}
    assert groups == {
        "b/1.mp4": {"b/crop.mp4", "b/trim.mp4"},
        "a/0.mp4": {"a/small <b>.mp4"},
        "a/2.mp4": {"a/trim of 2.mp4"},
    }
    assert [entry["path"] for entry in report["outliers"]] == ["b/9.mp4"]
    with open(curated / "removed.csv", newline="") as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    trim = rows["b/trim.mp4"]
    assert trim["reason"] == "near-duplicate by frames: correlation 0.97 or more"
    assert float(trim["start"]) == pytest.approx(0.5, abs=0.07) and trim["kept"] == "b/1.mp4"
    assert "outlier" in rows["b/9.mp4"]["reason"]
    broken = [row for path, row in rows.items() if path.endswith("broken.mp4")]
    assert broken[0]["reason"] == "cannot be decoded: no video in it"


def test_every_video_is_kept_or_removed_with_a_reason(curated, videos):
    kept = read_annotation_list(str(curated / "keep.txt"))
    with open(curated / "removed.csv", newline="") as file:
        removed = [row["path"] for row in csv.DictReader(file)]
    names = [kept.path(i) for i in range(len(kept))]
    broken = str(videos[1] / "a/broken.mp4")
    assert sorted([*names, *removed]) == sorted([*videos[2], broken])
    assert kept.labels.tolist() == [int(name[0] == "b") for name in names]
    assert (curated / "classes.txt").read_text() == "a\nb\n"
    subset = read_annotation_list(str(curated / "subset.txt"))
    assert len(subset) == 4 and {subset.path(i) for i in range(4)} <= set(names)
    clusters = read_annotation_list(str(curated / "clusters.txt"))
    assert [clusters.path(i) for i in range(len(clusters))] == names
    assert set(clusters.labels.tolist()) <= {0, 1, 2}


def test_features_alone_open_no_video(videos, tmp_path, capsys):
    moved = tmp_path / "features.npz"
    values = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    values[4] = values[1] * 3
    paths = np.array([f"/gone/{i}.mp4" for i in range(6)])
    np.savez(moved, features=values, paths=paths)
    words = [str(moved), "--out", str(tmp_path / "out"), "--clusters", "2", "--no-page"]
    words.append("--overwrite")
    # The mean is subtracted: the scaled row is near, not equal.
    assert main([*words, "--duplicates", "none"]) == 0
    assert "6 kept, 0 removed" in capsys.readouterr().out
    values[4] = values[1]
    np.savez(moved, features=values, paths=paths)
    assert main([*words, "--duplicates", "features"]) == 0
    with open(tmp_path / "out" / "removed.csv", newline="") as table:
        assert {row["reason"] for row in csv.DictReader(table) if row["kept"]} == {
            "near-duplicate by features: cosine 0.99 or more"
        }
    assert "5 kept, 1 removed" in capsys.readouterr().out
    assert main(words) == 2
    assert "--duplicates features" in capsys.readouterr().err


def test_earlier_results_are_replaced_only_with_overwrite(videos, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(videos[0]), "--duplicates", "none", "--clusters", "2", "--no-page"]
    assert main([*words, "--out", str(out), "--subset", "3"]) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    capsys.readouterr()
    assert main([*words, "--out", str(out)]) == 2
    error = capsys.readouterr().err.strip()
    assert "contains an earlier curation" in error and "--overwrite" in error and "\n" not in error
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    keep = tmp_path / "list.txt"
    keep.write_text("mine.mp4 0\n")
    assert main([*words, "--out", str(tmp_path / "new"), "--keep", str(keep)]) == 2
    assert keep.read_text() == "mine.mp4 0\n" and not (tmp_path / "new").exists()
    assert main([*words, "--out", str(out), "--overwrite"]) == 0
    assert not (out / "subset.txt").exists(), "a list of the earlier curation"


def test_a_signal_leaves_no_frames(videos, tmp_path, capsys, monkeypatch):
    number = signal.SIGTERM

    def ended(stored, *args):
        (frames,) = tmp_path.glob("out/.frames.*.part")
        assert frames.stat().st_size and not killed.exists()
        os.kill(os.getpid(), number)

    # Of a process that was killed by SIGKILL: one that has ended.
    pid = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    killed = tmp_path / "out" / f".frames.{pid}-0123abcd.part"
    killed.parent.mkdir()
    killed.write_bytes(bytes(10))
    monkeypatch.setattr(duplicates, "compare_pairs", ended)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        words = [str(videos[0]), "--out", str(tmp_path / "out"), "--workers", "0"]
        assert main(words) == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/.frames.*"))


def test_thumbnails_are_kept_until_a_file_changes(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    files = [str(tmp_path / name) for name in ("a.mp4", "b.mp4", "none.mp4")]
    for file in files[:2]:
        write_lossless(Path(file), rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8), 6)
    opened = []
    read = comparison.read_thumbnail
    monkeypatch.setattr(
        comparison, "read_thumbnail", lambda file, most: opened.append(file) or read(file, most)
    )

    def reading() -> tuple[list[str], list]:
        opened.clear()
        with closing(comparison.ThumbnailFile(tmp_path)) as stored:
            failed = comparison.read_thumbnails(stored, files, 0)
            assert failed == [(2, "the file is missing")]
            return opened.copy(), [stored.places[number].read() for number in (0, 1)]

    first, second = reading(), reading()
    assert (first[0], second[0]) == (files, files[2:])  # what failed is tried again
    for one, other, file in zip(first[1], second[1], files, strict=False):
        own = read(file)
        for found in (one, other):
            assert np.array_equal(found.frames, own.frames) and found.end == own.end
            assert np.array_equal(found.times, own.times) and found.width == 32
    os.utime(files[1], (1, 1))
    assert reading()[0] == files[1:]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FOLDER"], "is not an index"),
        (["FEATURES", "--similarity", "2"], "similarity must be above 0"),
        (["FEATURES", "--subset", "99", "--duplicates", "none"], "only 14 videos remain"),
        (["FEATURES", "--column", "a"], "is not a table of videos"),
    ],
)
def test_wrong_input_is_one_sentence(videos, tmp_path, capsys, words, message):
    names = {"FEATURES": str(videos[0]), "FOLDER": str(videos[1])}
    given = [names.get(word, word) for word in words]
    assert main([*given, "--out", str(tmp_path / "out"), "--workers", "0"]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error
