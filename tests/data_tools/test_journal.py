"""Journals: several of one folder, cut lines, locks."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack.file_status import open_journal


def test_of_several_journals_the_latest_entry_counts(tmp_path):
    with open_journal(tmp_path, "b.jsonl") as journal:
        journal.add({"path": "x", "status": "failed"})
    with open_journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "x", "status": "done"})
        journal.reload()
        assert journal.entries["x"]["status"] == "done"
    with open_journal(tmp_path, "b.jsonl") as journal:
        journal.add({"path": "x", "status": "again"})
    assert open_journal(tmp_path, None).entries["x"]["status"] == "again"
    with open_journal(tmp_path, "b.jsonl"), pytest.raises(ValueError, match="another run"):
        open_journal(tmp_path, "b.jsonl")
    (tmp_path / "c.jsonl").write_text('{"path": "x"}\n')
    with pytest.raises(ValueError, match=r"c\.jsonl"):
        open_journal(tmp_path, None)


def test_a_line_cut_in_two_does_not_corrupt_the_next(tmp_path):
    with open_journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "x"})
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"path": "y", "ti')
    with open_journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "z"})
    assert sorted(open_journal(tmp_path, None).entries) == ["x", "z"]


@pytest.mark.parametrize("content", ["no line end", "a.mp4 0\n", '{"frames": 3}\n', "[]\n"])
def test_another_file_is_left_alone(tmp_path, content):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"a\.jsonl is not a journal of repack: move it away"):
        open_journal(tmp_path, "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == content


def test_a_journal_that_is_only_read_cannot_be_written(tmp_path):
    with open_journal(tmp_path, None) as journal, pytest.raises(RuntimeError, match="to be read"):
        journal.add({"path": "x"})
    assert list(tmp_path.iterdir()) == []


def test_damaged_lines_are_passed_over(tmp_path):
    with open_journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "x", "status": "done"})
    lines = [b'{"path": ["x"]}', b'{"path": "y", "time": "z"}', b'{"path": "\xff"', b"[" * 10**5]
    with open(tmp_path / "a.jsonl", "ab") as file:
        file.write(b"\n".join([*lines, b'{"path": "caf\xe9"}', b'{"path": "cut\xff']))
    with open_journal(tmp_path, "a.jsonl") as journal:  # ends with a complete line, as bytes count
        journal.add({"path": "z"})
    assert sorted(open_journal(tmp_path, None).entries) == ["caf\udce9", "x", "z"]
