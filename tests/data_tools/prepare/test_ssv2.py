"""Something-Something V2's JSON files, by hand."""

from __future__ import annotations

import json

import pytest

from sce_video.data_tools.prepare.actions import (
    SSV2,
    read_ssv2,
    read_template_entries,
    read_templates,
)
from sce_video.data_tools.prepare.official import Entry

LABELS = {
    "Approaching something with your camera": "0",
    "Something falling like a feather or paper": "2",
    "Putting something similar to other things that are already on the table": "1",
}
CLASSES = tuple(sorted(LABELS, key=LABELS.get))
TRAIN = [
    {
        "id": "78687",
        "label": "approaching potato with your camera",
        "template": "Approaching [something] with your camera",
        "placeholders": ["potato"],
    },
    {"id": "42326", "template": "[Something] falling like a feather or paper"},
]
TEMPLATE = "Putting [something similar to other things that are already on the table]"
VALIDATION = [{"id": "1", "template": TEMPLATE}]


def _dump(folder, prefix="something-something-v2-"):
    folder.mkdir(parents=True, exist_ok=True)
    for part, data in {"labels": LABELS, "train": TRAIN, "validation": VALIDATION}.items():
        (folder / f"{prefix}{part}.json").write_text(json.dumps(data))


@pytest.mark.parametrize("prefix", ["something-something-v2-", ""])
@pytest.mark.parametrize("folder", ["labels", ".", "given"])
def test_the_official_files(tmp_path, prefix, folder):
    _dump(tmp_path / folder, prefix)
    official = read_ssv2(tmp_path, tmp_path / "given" if folder == "given" else None)
    assert official.class_maps[0].names == CLASSES
    assert official.class_maps[0].published == 174
    train, val = official.splits
    assert (train.list_name, train.published) == ("train.txt", 168913)
    assert (val.list_name, val.published) == ("val.txt", 24777)
    assert train.entries == (Entry("78687.webm", 0), Entry("42326.webm", 2))
    assert val.entries == (Entry("1.webm", 1),)
    videos = tmp_path / "20bn-something-something-v2"
    videos.mkdir()
    (videos / "1.webm").touch()
    located = SSV2.locate(tmp_path, official)
    assert located["1.webm"].path == "20bn-something-something-v2/1.webm"
    assert located["1.webm"].missing is None
    assert located["42326.webm"].missing == "no such file"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([TRAIN[0], {"id": "5"}], "entry 2: .* has no 'id' and 'template'"),
        ([["5", "x"]], "entry 1: .* has no 'id' and 'template'"),
        ([{"id": "a5", "template": "x"}], "entry 1: id 'a5' is not a number"),
        ([{"id": None, "template": "x"}], "entry 1: id None is not a number"),
        ([{"id": "5", "template": 3}], r"entry 1 \(id 5\): template 3 is not a string"),
        (
            [TRAIN[0], {"id": "5", "template": "Approaching [things] with your camera"}],
            r"entry 2 \(id 5\): unknown template 'Approaching \[things\].*nearest known name is "
            "'Approaching something with your camera'",
        ),
        ([TRAIN[0], TRAIN[1], TRAIN[0]], "entry 3: id 78687 is listed twice"),
        ([], r"must hold \[\{"),
        ({"id": "5"}, r"must hold \[\{"),
    ],
)
def test_bad_entries(tmp_path, entries, message):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="train.json.*" + message):
        read_template_entries(path, CLASSES)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"a": "0", "b": "2"}, "no entry has id 1; ids go from 0 to 1"),
        ({"a": "0", "b": "0"}, "entries 'a' and 'b' share 0"),
        ({"a": "zero"}, "entry 'a' has id 'zero', not a whole number"),
        ({"a": -1}, "entry 'a' has id -1"),
        ({}, "must hold"),
        (["a"], "must hold"),
    ],
)
def test_bad_labels(tmp_path, labels, message):
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(labels))
    with pytest.raises(ValueError, match="labels.json.*" + message):
        read_templates(path)


def test_a_file_that_is_not_json(tmp_path):
    (tmp_path / "train.json").write_text('[{"id": "5",')
    with pytest.raises(ValueError, match=r"train.json is not JSON: .*line 1"):
        read_template_entries(tmp_path / "train.json", CLASSES)


def test_a_video_in_train_and_validation(tmp_path):
    _dump(tmp_path)
    (tmp_path / "something-something-v2-validation.json").write_text(json.dumps(TRAIN[1:]))
    with pytest.raises(ValueError, match=r"1 videos are in train and in val .*42326"):
        read_ssv2(tmp_path)


@pytest.mark.parametrize("gone", ["labels", "train", "validation"])
def test_a_missing_file_is_reported_with_the_layout(tmp_path, gone):
    _dump(tmp_path / "labels", "")
    (tmp_path / f"labels/{gone}.json").unlink()
    with pytest.raises(FileNotFoundError, match=rf"no {gone} file: looked for (.|\n)*/78687\.webm"):
        read_ssv2(tmp_path)
