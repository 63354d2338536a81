"""Rows of a training's files, kept over a resumption."""

from __future__ import annotations

import json

import pytest

from sce_video.utils.files import parse_json, read_json, read_json_lines
from sce_video.utils.run_files import append_row, keep_rows_until


def test_rows_after_the_checkpoint_are_removed(tmp_path):
    path = tmp_path / "a.jsonl"
    keep_rows_until(path, 5)
    assert not path.exists()
    for i in range(1, 5):
        append_row(path, {"kind": "train", "iter": i, "loss": 1.0 / i})
    before = path.read_text().splitlines(keepends=True)
    keep_rows_until(path, 4)
    assert path.read_text() == "".join(before)
    keep_rows_until(path, 2)
    assert path.read_text() == "".join(before[:2])


def test_rows_get_the_numbers_that_their_steps_have_now(tmp_path):
    """From 2 iterations a step to 1 and back; what is no row stays."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"iter": {i}}}\n' for i in range(1, 7)) + "what\n[]\n")
    keep_rows_until(path, 2, (2, 1))
    assert path.read_text() == '{"iter": 1}\n{"iter": 1}\n{"iter": 2}\n{"iter": 2}\nwhat\n[]\n'
    keep_rows_until(path, 3, (1, 3))
    assert path.read_text() == '{"iter": 3}\n{"iter": 3}\nwhat\n[]\n'


def test_damaged_lines_stay_but_a_half_written_last_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"iter": 1}\nwhat\xff\n[]\n{"iter": 9}\n{"it')
    keep_rows_until(path, 3)
    assert path.read_bytes() == b'{"iter": 1}\nwhat\xff\n[]\n'


def test_numbers_that_json_does_not_have(tmp_path):
    append_row(tmp_path / "a.jsonl", {"a": float("nan"), "b": float("-inf"), "c": 1.5, "d": 2})
    (line,) = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(line) == {"a": None, "b": None, "c": 1.5, "d": 2}


# -- JSON that is damaged or written by anybody


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"\xff{}", "invalid start byte"),
        (b"[" * 100_000, "recursion"),
        (b"[" * 60 + b"]" * 60, "nested more than 50 deep"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested more than 50 deep"),
        (b"1" * 5000, "limit"),
    ],
)
def test_the_file_and_the_reason_are_named(tmp_path, content, reason):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json is not JSON: .*{reason}"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.json.* is not JSON"):
        list(read_json_lines(tmp_path / "a.json") if b"\xff" in content else [parse(content)])


def parse(content):
    return parse_json(content.decode(), "a.json, line 3")


def test_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    assert [row for _, row in read_json_lines(path)] == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is not JSON"):
        list(read_json_lines(path))
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1 is no object"):
        list(read_json_lines(path))
