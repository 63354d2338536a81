"""Tables of text: the delimiters and encodings of spreadsheets, in every command that reads one."""

from __future__ import annotations

import csv

import pytest

from sce_video.data_tools.repack.plan import plan_segments
from sce_video.datasets.text_tables import read_csv_lines, read_csv_table, write_csv

ROWS = [["path", "start", "end", "output"], ["a.mp4", "0.5", "2", "o.mp4"], ["é,b", "1", "2", "p"]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t")])
def test_lines_equal_those_that_were_written(tmp_path, name, delimiter, encoding):
    with open(tmp_path / name, "w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([*ROWS, [" ", "", "", ""]])
    assert list(read_csv_lines(tmp_path / name)) == list(enumerate(ROWS, 1))
    (_, first), (where, _) = read_csv_table(tmp_path / name, ["path", "output"])
    assert first == dict(zip(ROWS[0], ROWS[1], strict=True)) and where.endswith(f"{name}, line 3")


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_repack_reads_the_tables_that_spreadsheets_write(tmp_path, delimiter):
    lines = [delimiter.join(row) for row in ROWS[:2]]
    (tmp_path / "s.csv").write_text("\n".join(lines), encoding="utf-16")
    (item,) = plan_segments(str(tmp_path / "s.csv")).items
    assert (item.path, item.span, item.output) == ("a.mp4", (0.5, 2.0), "o.mp4")


def test_a_line_of_another_length_and_a_missing_column_are_named(tmp_path):
    (tmp_path / "s.csv").write_text("path,end\na.mp4,1\nb.mp4\n")
    with pytest.raises(
        ValueError, match="the column 'start' is missing. The header must be path,start"
    ):
        list(read_csv_table(tmp_path / "s.csv", ["path", "start"]))
    with pytest.raises(ValueError, match="line 3 has 1 columns, but the header has 2"):
        list(read_csv_table(tmp_path / "s.csv", ["path"]))


def test_what_is_written_is_read(tmp_path):
    write_csv(tmp_path / "new" / "t.csv", ROWS)
    assert [cells for _, cells in read_csv_lines(tmp_path / "new" / "t.csv")] == ROWS
    assert (tmp_path / "new" / "t.csv").read_bytes().count(b"\r") == 0
