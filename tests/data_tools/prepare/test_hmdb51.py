"""HMDB51's official splits, by hand."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.actions import HMDB51, read_class_split, read_hmdb51
from sce_video.data_tools.prepare.lists import count_rows
from sce_video.data_tools.prepare.official import Entry

ODD = "Brushing_#1_&_(2)_[_NEW_AUDIO_]_UPDATED!!!!;*?_brush_hair_h_cm_np1_le_goo_1.avi"


@pytest.fixture
def tree(tmp_path):
    """Two classes; the class "wave" is written first, so that order comes from the names."""
    marks = {"wave": {"a.avi": "112", "b.avi": "120"}, "brush_hair": {ODD: "121", "c.avi": "211"}}
    for name, videos in marks.items():
        for split in (1, 2, 3):
            path = tmp_path / f"testTrainMulti_7030_splits/{name}_test_split{split}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{v} {m[split - 1]} \n" for v, m in videos.items()))
        for video in videos:
            (tmp_path / "hmdb51_org" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "hmdb51_org" / name / video).touch()
    return tmp_path


def test_the_official_files(tree):
    (tree / "testTrainMulti_7030_splits/.DS_Store").touch()
    official = read_hmdb51(tree)
    assert official.class_maps[0].names == ("brush_hair", "wave")
    by_name = {split.list_name: split.entries for split in official.splits}
    odd, c = Entry(f"brush_hair/{ODD}", 0), Entry("brush_hair/c.avi", 0)
    a, b = Entry("wave/a.avi", 1), Entry("wave/b.avi", 1)
    assert by_name == {
        "train_split1.txt": (odd, a, b),
        "test_split1.txt": (c,),
        "train_split2.txt": (c, a),
        "test_split2.txt": (odd, b),
        "train_split3.txt": (odd, c),
        "test_split3.txt": (a,),
    }
    assert official.unused == ("wave/b.avi",)
    assert len(official.names()) == 4
    assert official.published_videos == 6766
    assert [split.published for split in official.splits] == [3570, 1530] * 3
    assert [split.per_class for split in official.splits] == [70, 30] * 3
    located = HMDB51.locate(tree, official)
    assert located[odd.name].path == f"hmdb51_org/brush_hair/{ODD}"
    assert all(location.missing is None for location in located.values())


def test_a_name_is_not_a_glob_pattern(tree):
    """A glob would read [...], * and ? of the name, and find another file or none."""
    official = read_hmdb51(tree)
    folder = tree / "hmdb51_org/brush_hair"
    (folder / ODD).rename(folder / ODD.replace("[_NEW_AUDIO_]", "N"))
    assert HMDB51.locate(tree, official)[f"brush_hair/{ODD}"].missing == "no such file"


def test_class_folders_at_another_path(tree):
    (tree / "hmdb51_org").rename(tree / "videos")
    official = read_hmdb51(tree)
    with pytest.raises(FileNotFoundError, match="folder of videos: looked for .*hmdb51_org"):
        HMDB51.locate(tree, official)
    located = HMDB51.locate(tree, official, tree / "videos")
    assert located["wave/a.avi"].path == "videos/wave/a.avi"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.avi 1\nb.avi 3\n", "line 2: 'b.avi 3' must be 'NAME.avi MARK'"),
        ("a.avi\n", "line 1: 'a.avi' must be"),
        ("1\n", "line 1: '1' must be"),
        ("wave/a.avi 1\n", "line 1: .*must be"),
        ("a.avi 1\na.avi 2\n", "line 2: 'a.avi' is listed twice"),
        ("", "is empty"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    path = tmp_path / "wave_test_split1.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match="wave_test_split1.txt.*" + message):
        read_class_split(path)


def test_a_class_without_one_of_its_splits(tree):
    (tree / "testTrainMulti_7030_splits/wave_test_split2.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no split 2: looked for .*wave_test_split2"):
        read_hmdb51(tree)


def test_empty_folders_are_reported_with_the_layout(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"(.|\n)*hmdb51_org/brush_hair/April_09"):
        read_hmdb51(tmp_path)
    (tmp_path / "testTrainMulti_7030_splits").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no CLASS_test_split1.txt(.|\n)*hmdb51_org/brush"):
        read_hmdb51(tmp_path)


def test_full_size_agrees_and_one_video_less_does_not(tmp_path):
    """51 classes, 70 training and 30 test videos per split, and unused ones up to 6,766."""
    folder = tmp_path / "testTrainMulti_7030_splits"
    folder.mkdir()
    extra = [6766 // 51 + (i < 6766 % 51) for i in range(51)]
    assert sum(extra) == 6766
    for i, count in enumerate(extra):
        marks = [1] * 70 + [2] * 30 + [0] * (count - 100)
        text = "".join(f"v{j}.avi {mark} \n" for j, mark in enumerate(marks))
        for split in (1, 2, 3):
            (folder / f"class{i:02d}_test_split{split}.txt").write_text(text)
    rows = count_rows(read_hmdb51(tmp_path), set(), set())
    assert len(rows) == 1 + 1 + 6 * 2
    assert all(row.agrees for row in rows)
    path = folder / "class07_test_split2.txt"
    path.write_text(path.read_text().replace("v3.avi 1", "v3.avi 0"))
    rows = count_rows(read_hmdb51(tmp_path), set(), set())
    assert {row.title: row.listed for row in rows if not row.agrees} == {
        "train_split2": "3,569",
        "train_split2, per class": "69 to 70",
    }
