"""Rows of a training's files, kept over a resumption."""

from __future__ import annotations

import json

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
