"""Which videos are compared: labels, folds, and an order whose beginnings are fair samples."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest

from sce_video.options.choose import ChooseOptions
from sce_video.runs.candidates import in_sampling_order, read_choice_videos


@pytest.fixture
def folder(tmp_path):
    """Empty files of two classes of 40 and 20 videos, of ten persons and four folds."""
    rows = []
    for number in range(60):
        name = f"{'run' if number % 3 else 'walk'}/person{number % 10}_{number:02}.mp4"
        path = tmp_path / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        rows.append([name, name.split("/")[0], f"p{number % 10}", number % 10 % 4])
    with open(tmp_path / "clips.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "person", "fold"], *rows])
    return tmp_path


def chosen(folder, **given):
    options = ChooseOptions(videos=str(folder / "videos"), out="out", **given)
    return in_sampling_order(read_choice_videos(options), options)


def test_beginnings_have_all_classes_and_folds_in_proportion(folder):
    found = chosen(folder, labels=folder / "clips.csv", group_column="person", fold_column="fold")
    assert found.left_out == "one of 4 given folds" and found.grouped and len(found) == 60
    for count in (12, 30, 45):
        share = np.bincount(found.labels[:count]) / count
        assert share == pytest.approx([2 / 3, 1 / 3], abs=2 / count)
        of_fold = np.bincount(found.folds[:count], minlength=4) / count
        assert of_fold == pytest.approx(np.bincount(found.folds) / 60, abs=3 / count)
    again = chosen(folder, labels=folder / "clips.csv", group_column="person", fold_column="fold")
    assert again.paths == found.paths
    # Each person is in one fold, and its rows stay together with its label.
    for path, label, group in zip(found.paths, found.labels, found.groups, strict=True):
        assert found.classes[label] in path and f"person{group}_" in path


def test_groups_of_paths_and_videos_alone(folder):
    by_person = chosen(folder, labels="folders", group_pattern=r"person(\d)")
    assert by_person.left_out == "one of 10 groups" and len(np.unique(by_person.groups)) == 10
    alone = chosen(folder, labels="folders")
    assert alone.left_out == "one of 5 folds of 60 groups" and not alone.grouped
    assert len(np.unique(alone.groups)) == 60
    ten = chosen(folder, labels="folders", group_pattern=r"_(\d+)\.", folds=10)
    assert ten.left_out == "one of 10 folds of 60 groups" and ten.grouped


def test_folders_are_no_labels_unless_they_are_said_to_be(folder):
    found = chosen(folder)
    assert not found.labelled and (found.labels == -1).all() and found.classes == ()


def test_classes_of_one_fold_cannot_be_compared(folder):
    found = chosen(folder, labels="folders", group_pattern=r"person(\d)")
    rows = np.flatnonzero((found.labels == 0) | (found.groups == 3))
    some = found.subset(rows)
    assert (some.comparable() == (some.labels == 0)).all() and (some.labels == 1).any()


def test_a_comparison_needs_some_videos_of_each_class(folder):
    labelled = chosen(folder, labels="folders")
    assert labelled.least == 20 and chosen(folder).least == 20
    assert labelled.subset(np.arange(12)).least == 12
    many = dataclasses.replace(labelled, labels=np.arange(60) // 6)
    assert many.least == 50


def test_mistakes_name_the_file(folder, tmp_path):
    for given, message in (
        ({"labels": folder / "clips.csv", "group_column": "scene"}, "no column 'scene'"),
        ({"labels": folder / "none.csv"}, "none.csv"),
        ({"labels": "folders", "group_pattern": r"human(\d)"}, "matches nothing"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            chosen(folder, **given)
    one = tmp_path / "one"
    one.mkdir()
    (one / "a.mp4").touch()
    with pytest.raises(ValueError, match="contains only one video"):
        read_choice_videos(ChooseOptions(videos=str(one), out="out"))


def test_segments_of_a_recording_stay_together(tmp_path):
    """Without groups, the folds and the intervals divide recordings, not their segments."""
    lines = ["path,start,end,label"]
    for number in range(12):
        (tmp_path / f"{number}.mp4").touch()
        lines += [f"{number}.mp4,{start},{start + 1},{start % 2}" for start in range(5)]
    (tmp_path / "cuts.csv").write_text("\n".join(lines))
    options = ChooseOptions(videos=str(tmp_path), out="out", labels=str(tmp_path / "cuts.csv"))
    found = in_sampling_order(read_choice_videos(options), options)
    folds_of = {}
    for path, fold in zip(found.paths, found.folds.tolist(), strict=True):
        folds_of.setdefault(path.partition("@")[0], set()).add(fold)
    assert len(folds_of) == 12 and all(len(folds) == 1 for folds in folds_of.values())
    assert len(np.unique(found.groups)) == 12 and found.grouped


@pytest.mark.parametrize("given", [{}, {"group_column": "person"}])
def test_the_order_of_the_list_does_not_matter(folder, given):
    before = chosen(folder, labels=folder / "clips.csv", **given)
    header, *lines = (folder / "clips.csv").read_text().split()
    np.random.default_rng(0).shuffle(lines)
    (folder / "clips.csv").write_text("\n".join([header, *lines]))
    after = chosen(folder, labels=folder / "clips.csv", **given)
    assert before.paths == after.paths
    for name in ("labels", "groups", "folds"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
