"""Annotation lists and folders."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.datasets import VideoDataset, read_annotation_list, scan_folder
from sce_video.datasets.video_list import line_number, subset_indices, write_annotation_list


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def entries(videos):
    return [(videos.path(i), int(videos.labels[i])) for i in range(len(videos))]


def test_lists_with_and_without_labels(tmp_path):
    text = "\ufeff\na.mp4 3\n\nclass one/my video 2.mp4 0\n  c.avi\t12 \n"
    path = write(tmp_path / "list.txt", text)
    found = entries(read_annotation_list(path))
    assert found == [("a.mp4", 3), ("class one/my video 2.mp4", 0), ("c.avi", 12)]
    assert line_number(path, 0) == 2
    videos = read_annotation_list(write(tmp_path / "list.txt", "a b.mp4\nc.mp4\nvidéo 7.mkv"))
    assert entries(videos) == [("a b.mp4", -1), ("c.mp4", -1), ("vidéo 7.mkv", -1)]
    assert videos.blob.nbytes == len("a b.mp4c.mp4vidéo 7.mkv".encode())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["list.txt", "no video"]),
        ("\n \n", ["list.txt", "no video"]),
        ("a.mp4 1\nb.mp4 -2\n", ["list.txt", "line 2", "-2", "negative"]),
        ("a.mp4 1\nb.mp4\n", ["list.txt", "line 2", "b.mp4", "label"]),
        ("a.mp4 1\nb.mp4 99999999999999999999\n", ["line 2", "99999999999999999999", "999999"]),
        ("a.mp4 1000000\n", ["list.txt", "line 1", "is too large"]),
        ("17\n", ["list.txt", "line 1", "without a path"]),
        ("a.mp4\n\nb.mp4 1\n", ["list.txt", "line 3", "b.mp4 1", "label"]),
        (
            "a.mp4 1\nb/a.mp4 zero\n",
            ["list.txt", "line 2", "'zero' is not a label", "whole number"],
        ),
        ("a.mp4 1\nmy b.mp4\n", ["list.txt", "line 2", "'my b.mp4' has no label"]),
    ],
)
def test_wrong_lists_name_file_and_line(tmp_path, text, words):
    with pytest.raises(ValueError) as error:
        read_annotation_list(write(tmp_path / "list.txt", text))
    for word in words:
        assert word in str(error.value)


def test_class_names_of_a_list(tmp_path):
    listed = write(tmp_path / "list.txt", "a.mp4 1\nb.mp4 0\n")
    names = write(tmp_path / "classes.txt", "\ufeffpush up\n crouch \njump\n\n")
    assert read_annotation_list(listed, class_file=names).classes == ("push up", "crouch", "jump")
    assert read_annotation_list(listed).classes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "push\n",
            r"list\.txt, line 1: label 1 is out of range: .*classes\.txt names the classes 0 to 0",
        ),
        ("push\n\njump\n", r"classes\.txt, line 2: '' is not a class name"),
        ("push\njump\npush\n", r"classes\.txt, line 3: 'push' appears a second time in the file"),
        ("\n", r"classes\.txt' is empty"),
        (None, r"there is no file of class names .*classes\.txt'"),
    ],
)
def test_wrong_class_files_name_file_and_line(tmp_path, text, words):
    names = tmp_path / "classes.txt"
    if text is not None:
        names.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_annotation_list(write(tmp_path / "list.txt", "a.mp4 1\n"), class_file=str(names))


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_folder_with_classes(tmp_path):
    touch(tmp_path, "walk/b.mp4", "walk/deep/a.avi", "run/x.MKV", "empty/notes.txt", "loose.mp4")
    touch(tmp_path, "run/.hidden.mp4", ".cache/z.mp4")
    videos = scan_folder(str(tmp_path))
    assert entries(videos) == [
        ("loose.mp4", -1), ("run/x.MKV", 0), ("walk/b.mp4", 1), ("walk/deep/a.avi", 1)
    ]  # fmt: skip
    assert videos.classes == ("run", "walk")


def test_folder_without_videos(tmp_path):
    touch(tmp_path, "a.txt")
    with pytest.raises(ValueError, match=r"no video in .*, but 1 other file, .* \(1 \.txt\)"):
        scan_folder(str(tmp_path))
    with pytest.raises(ValueError, match="there is no folder"):
        scan_folder(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"nowhere\.txt"):
        read_annotation_list(str(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize(
    "text", ["a.mp4,3\nb.mp4,4\n", "a.mp4, 3\n", "abseiling,0347ZoDXyP0,95,105,val\n"]
)
def test_a_table_with_commas_is_refused_with_what_to_give(tmp_path, text):
    path = tmp_path / "train.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"train\.csv, line 1: .* table with commas") as error:
        read_annotation_list(str(path))
    assert "'path label'" in str(error.value) and "sce-video prepare kinetics" in str(error.value)


def test_a_binary_file_a_folder_and_a_file_in_the_wrong_place(tmp_path):
    video = tmp_path / "clip.mp4"
    video.write_bytes(b"\0\0\0\x20ftypisom" * 10)
    with pytest.raises(ValueError, match=r"clip\.mp4, line 1: this is not a text file"):
        read_annotation_list(str(video))
    with pytest.raises(ValueError, match="is a folder. To use the videos below it"):
        read_annotation_list(str(tmp_path))
    with pytest.raises(ValueError, match="must be a folder of videos, got the file .*ann_file"):
        scan_folder(str(video))


# -- A list that is written reads back, and what no list can contain is returned


@pytest.mark.parametrize(
    ("labels", "held", "refused"),
    [
        ([3, 0], ["a 12", "b/ü\udc80 c.mp4", "a\tb.mp4"], ["a\nb.mp4", " a.mp4", "\ud800.mp4"]),
        ([-1], ["a b.mp4", "c\td.mp4"], ["a 12", "a\rb.mp4", "a.mp4 "]),
    ],
)
def test_lists_read_back(tmp_path, labels, held, refused):
    file = str(tmp_path / "list.txt")
    paths = [*held, *refused]
    numbers = [labels[i % len(labels)] for i in range(len(paths))]
    assert write_annotation_list(file, paths, numbers) == refused
    found = read_annotation_list(file)
    assert [found.path(i) for i in range(len(found))] == held
    assert found.labels.tolist() == numbers[: len(held)]
    with pytest.raises(ValueError, match="none of 1 paths"):
        write_annotation_list(file, refused[:1], numbers[:1])


@pytest.mark.parametrize("gallery", [0, 12, 1000])
def test_parts_of_a_folder_are_disjoint_and_of_the_seed(gallery):
    """Of each class its share is held out; the gallery is as equal as the classes allow."""
    labels = np.repeat([-1, 0, 1, 2], [5, 40, 9, 6])
    held_out = subset_indices(labels, "held_out", 20, seed=3)
    training = subset_indices(labels, "training", 20, seed=3)
    assert sorted([*held_out, *training]) == list(range(60)) and len(held_out) == 20
    shares = [round(20 * count / 60) for count in (5, 40, 9, 6)]
    assert [int((labels[held_out] == name).sum()) for name in (-1, 0, 1, 2)] == shares
    assert held_out.tolist() != subset_indices(labels, "held_out", 20, seed=4).tolist()
    if not gallery:
        with pytest.raises(ValueError, match="each part needs a video"):
            subset_indices(labels, "gallery", 20, gallery)
        return
    others = subset_indices(labels, "gallery", 20, gallery, seed=3)
    assert set(others) <= set(training) and len(others) == min(gallery, 40)
    left = {name: int((labels[training] == name).sum()) for name in (-1, 0, 1, 2)}
    found = {name: int((labels[others] == name).sum()) for name in left}
    assert found == (dict.fromkeys(left, 3) if gallery == 12 else left)


def test_a_part_of_a_data_set(tmp_path):
    for name in ("a/1", "a/2", "a/3", "b/4", "b/5", "b/6"):
        (tmp_path / f"{name}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.mp4").touch()
    parts = [
        VideoDataset(str(tmp_path), subset={"part": part, "held_out": 2, "seed": 0})
        for part in ("training", "held_out")
    ]
    paths = [[d.path(i) for i in range(len(d))] for d in parts]
    assert [len(one) for one in paths] == [4, 2] and not set(paths[0]) & set(paths[1])
    for dataset, names in zip(parts, paths, strict=True):
        assert dataset.metainfo["classes"] == ("a", "b")
        assert [dataset.metainfo["classes"][n] for n in dataset.labels] == [p[-7] for p in names]
    for subset, words in (
        ({"part": "test", "held_out": 2}, "part must be one of"),
        ({"part": "training", "held_out": 6}, "6 videos cannot be divided"),
        ({"part": "training", "held_out": 2, "seed": -1}, "seed=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            VideoDataset(str(tmp_path), subset=subset)
    (tmp_path / "list.txt").write_text("a/1.mp4\n")
    with pytest.raises(ValueError, match=r"not the list 'list.txt'"):
        VideoDataset(str(tmp_path), "list.txt", subset={"part": "training", "held_out": 1})
