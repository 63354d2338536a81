"""Conditions on columns, against the same comparisons in Python; what they may not do."""

import csv
import json
import os
import sqlite3
from contextlib import closing
from importlib.util import find_spec

import numpy as np
import pytest
from helpers.small_index import HEADER

from sce_video.find import column_process
from sce_video.find import columns as columns_module
from sce_video.find.columns import ColumnSources, VideoColumn, columns_of_index, read_columns
from sce_video.find.query import query_index
from sce_video.find.store import FEATURES, TABLE, FileRecord, FileStore
from sce_video.find.table_store import TableStore
from sce_video.utils.records import read_record

COUNT = 60
PATHS = [f"{'ab'[i % 2]}/{i:02}.mp4" for i in range(COUNT)]


def cells(i):
    return {
        "path": PATHS[i],
        "camera": ["north", "south", "o'brien \u00e9"][i % 3],
        "date": f"2026-01-{i % 28 + 1:02}",
        "speed": "" if i % 7 == 0 else str(i - 30 if i % 2 else i / 4),
        "two words": "007" if i % 5 == 0 else "x",
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Columns of all videos but the last, in another order, and of one that is not indexed."""
    path = tmp_path_factory.mktemp("columns") / "meta.csv"
    with open(path, "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, ["camera", "path", "date", "speed", "two words"])
        writer.writeheader()
        writer.writerows(cells(i) for i in reversed(range(COUNT - 1)))
        writer.writerow({**cells(0), "path": "elsewhere.mp4"})
    return path


@pytest.fixture(scope="module")
def columns(file):
    return read_columns(np.array(PATHS), ColumnSources("/videos", file))


def number(text):
    return float(text) if text else None


CONDITIONS = [
    (
        "camera = 'north' and date >= '2026-01-10'",
        lambda c: c["camera"] == "north" and c["date"] >= "2026-01-10",
    ),
    ("camera = 'o''brien \u00e9'", lambda c: c["camera"] == "o'brien \u00e9"),
    ("speed > 9", lambda c: number(c["speed"]) is not None and number(c["speed"]) > 9),
    ("speed IS NULL", lambda c: not c["speed"]),
    ("NOT speed >= -3", lambda c: bool(c["speed"]) and not number(c["speed"]) >= -3),
    ("\"two words\" = '007'", lambda c: c["two words"] == "007"),
    (
        "CAMERA in ('south') or path like 'A/0%'",
        lambda c: c["camera"] == "south" or c["path"][:3] == "a/0",
    ),
    ("upper(camera) = 'NORTH' -- a comment", lambda c: c["camera"] == "north"),
    ("length(date) = 10 and strftime('%d', date) = '05'", lambda c: c["date"][-2:] == "05"),
    ("1", lambda c: True),
    ("", lambda c: True),
]  # fmt: skip


@pytest.mark.parametrize(("where", "expected"), CONDITIONS)
def test_the_same_rows_as_in_python(columns, where, expected):
    found = columns.matching(where)
    assert found.dtype == bool and found.shape == (COUNT,)
    assert found[:-1].tolist() == [bool(expected(cells(i))) for i in range(COUNT - 1)]
    none = {"speed IS NULL", "1", ""}  # columns of the video without a line are NULL
    assert found[-1] == (where in none)


def test_what_the_page_shows(columns):
    described = {column.name: column for column in columns.described}
    assert list(described) == ["camera", "date", "speed", "two words"]
    assert described["camera"].values == ("north", "o'brien \u00e9", "south")
    assert {name for name, c in described.items() if c.number} == {"speed"}
    speeds = [float(value) for value in described["speed"].values]
    assert speeds == sorted(speeds) and len(speeds) > 20
    assert columns.without == 1


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("camra = 'north'", r"no such column: camra\. .*meta\.csv are: path, camera, date"),
        ("camera = ", "syntax error"),
        ("camera = 'north", "unrecognized token"),
        ("1); DROP TABLE videos; --", "one statement"),
        ("1) UNION SELECT 1 /*", "without SELECT"),
        ("path IN (SELECT path FROM videos)", "without SELECT"),
        ("EXISTS (SELECT 1 FROM sqlite_master)", "without SELECT"),
        ("1 IN (WITH RECURSIVE c(x) AS (SELECT 1 UNION SELECT x FROM c) SELECT 1)", "SELECT"),
        ("camera IN pragma_database_list", "cannot be evaluated"),
        ("load_extension('/tmp/x.so')", "not authorized to use function"),
        ("readfile('/etc/passwd') > ''", "no such function"),
        ("writefile('/tmp/x', 'y')", "no such function"),
        ("length(randomblob(1000000000)) > 1", "not authorized to use function: randomblob"),
        ("hex(zeroblob(1000000000)) > ''", "not authorized to use function"),
        ("printf('%.*c', 1000000000, 'x') > ''", "not authorized to use function"),
        ("fts3_tokenizer('x') > ''", "function"),
        ("count(*) > 1", "function"),
        ("camera MATCH 'x'", "function"),
        ("?", "too many SQL variables"),
        ("(" * 500 + "1" + ")" * 500, "parser stack|too large"),
        ("1 OR " * 4000 + "1", "large|too long|too big|cannot be evaluated"),
        ("camera = '\0'", "null character"),
        ("camera = '\ud800'", "surrogates"),
    ],
)  # fmt: skip
def test_a_hostile_condition_is_one_sentence(columns, where, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        columns.matching(where)
    assert "\n" not in str(caught.value).replace(where, "") and len(str(caught.value)) < 1000
    assert list(tmp_path.iterdir()) == []
    assert columns.matching("camera = 'north'").sum() == 20  # the table is still there


def test_a_long_condition_is_stopped(monkeypatch, tmp_path):
    """Within one function, too: ``instr`` of long cells would take minutes here."""
    cells = "".join(f"{i}.mp4,{'a' * 9_999}\n" for i in range(300))
    (tmp_path / "m.csv").write_text("path,note\n" + cells)
    monkeypatch.setattr(columns_module, "_SECONDS", 1.0)
    sources = ColumnSources("/videos", tmp_path / "m.csv")
    columns = read_columns(np.array([f"{i}.mp4" for i in range(300)]), sources)
    first = columns._base._process.pid
    long, short = ("||".join(["note"] * count) for count in (90, 45))
    with pytest.raises(ValueError, match="it takes longer than 1 s"):
        columns.matching(f"instr({long}, {short}||'b')")
    assert columns.matching("instr(note, 'a')").all(), "a new process answers"
    second = columns._base._process.pid
    assert columns.matching("path = '7.mp4'").sum() == 1
    assert columns._base._process.pid == second != first, "and is kept for the next condition"


def test_patterns_that_would_try_everything(columns):
    """LIKE and GLOB try every place of a cell for every %: their patterns are short."""
    with pytest.raises(ValueError, match="too complex"):
        columns.matching(f"camera LIKE '{'%a_' * 100}'")


def test_its_process_ends_with_the_columns(tmp_path):
    columns = read_columns(np.array(["a.mp4"]), ColumnSources("/videos"))
    process = columns._base._process
    assert columns.matching("1").all() and process.poll() is None
    del columns
    assert process.poll() is not None
    kept = read_columns(np.array(["a.mp4"]), ColumnSources("/videos"))
    kept._base._process.kill()  # as by a system that is out of memory
    with pytest.raises(ValueError, match="SQLite cannot read it"):
        kept.matching("path = 'a.mp4'")
    assert kept.matching("path = 'a.mp4'").all()


COLUMN = {"name": "camera", "number": False, "values": ["north"]}


def facts(**changes):
    """The text of the facts of two rows of one video with the column camera."""
    given = {"columns": [COLUMN], "without": 0, "videos": 1, "state": "s", "source": "x.csv"}
    return json.dumps({**given, **changes})


def database(path, text, made=None, blob="x'0000000000000000'", more=""):
    """A database of columns with given facts, or other statements."""
    made = made or f"{column_process.FACTS}; INSERT INTO facts VALUES (:text, {blob})"
    first, _, rest = made.partition("; ")
    with closing(sqlite3.connect(path)) as base:
        base.execute(first)
        if rest:
            base.execute(rest, {"text": text})
        base.execute('CREATE TABLE videos ("#" INTEGER PRIMARY KEY, path TEXT, "camera" TEXT)')
        base.execute("INSERT INTO videos VALUES (0, 'a.mp4', 'north')")
        base.executescript(more)
        base.commit()
    return columns_module._open_database(path, "s", 2)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def test_a_database_of_columns_is_read(tmp_path):
    found = database(tmp_path / "c.sqlite", facts())
    assert found.described == (read_record(VideoColumn, COLUMN),)
    assert found.matching("camera = 'north'").tolist() == [True, True]
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as base:  # of another index, in its place
        base.execute("UPDATE facts SET text = ?", (facts(without=1),))
        base.commit()
    found._base.close()
    with pytest.raises(ValueError, match="database of columns was replaced. Open the index again"):
        found.matching("camera = 'south'")


@pytest.mark.parametrize(
    "given",
    [
        {"made": f"CREATE VIEW facts AS {ENDLESS} SELECT max(x) AS text, 1 AS video_of_row FROM c"},
        {
            "made": "CREATE VIEW facts AS SELECT hex(zeroblob(900000000)) AS text, "
            "zeroblob(900000000) AS video_of_row"
        },
        {"blob": "zeroblob(100000000)"},
        {"blob": "x'00000000'"},  # of one row
        {"blob": "x'0000000009000000'"},  # a video that is not there
        {"blob": "'12345678'"},
        {"text": b"{}"},
        {"text": "[" * 100_000},
        {"text": " " * (8 * 2**20) + facts()},
        {"text": facts(columns=[{**COLUMN, "values": [1]}])},
        {"text": facts(columns=[{**COLUMN, "values": ["x"] * 51}])},
        {"text": facts(columns=[{**COLUMN, "number": "no"}])},
        {"text": facts(columns=[{**COLUMN, "name": "other"}])},
        {"text": facts(videos="1")},
        {"text": facts(state="another")},
        {"more": f"CREATE VIEW more AS {ENDLESS} SELECT x FROM c"},
        {"more": "CREATE TRIGGER t AFTER INSERT ON facts BEGIN DELETE FROM videos; END"},
        {"more": "CREATE INDEX i ON videos (camera)"},
        {"more": f"DROP TABLE videos; CREATE VIEW videos AS {ENDLESS} SELECT x AS path FROM c"},
    ],
)
def test_an_untrusted_database_is_not_read(tmp_path, monkeypatch, given):
    """Views that never end or take 8 GB, other types, sizes and tables: it is made again."""
    monkeypatch.setattr(columns_module, "_SECONDS", 60.0)  # these are seen before any time is up
    assert database(tmp_path / "c.sqlite", **{"text": facts(), **given}) is None


def test_a_database_may_not_be_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "c.sqlite")
    assert columns_module._open_database(tmp_path / "c.sqlite", "s", 2) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.csv is empty"),
        ("camera,date\nx,y\n", "m.csv, line 1: there is no column path"),
        ("path,x,X\na.mp4,1,2\n", "m.csv, line 1: the column 'x' is named twice"),
        ("path,#\na.mp4,1\n", "m.csv, line 1: a column cannot be named '#'"),
        ("path,\na.mp4,1\n", "m.csv, line 1: a column has no name"),
        ("path,x\na.mp4,1\nb.mp4\n", "m.csv, line 3: 1 cells, not 2 as in the first line"),
        ("path,x\n,1\n", "m.csv, line 2: there is no path"),
        ("path,x\na.mp4,1\n\nb.mp4,2\na.mp4,3\n", "line 5: a.mp4 is already listed in line 2"),
        ("path,x\nz.mp4,1\n", "m.csv, line 2: none of its 1 paths is in the index, for example z"),
        (f"path,x\na.mp4,{'y' * 10_001}\n", "m.csv, line 2: a cell has 10001 characters"),
        ('path,x\n"a.mp4', "none of its|line 2"),
        (
            "path," + ",".join(f"c{i}" for i in range(200)) + "\n",
            "there are more than 200 columns",
        ),
    ],
)
def test_a_file_that_is_no_table_of_columns(tmp_path, text, message):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_columns(np.array(["a.mp4", "b.mp4"]), ColumnSources("/videos", tmp_path / "m.csv"))


def test_paths_of_windows_absolute_and_awkward(tmp_path):
    (tmp_path / "m.csv").write_bytes(b"File;who\n/videos/a.mp4;x\n\xff.mp4;y\n")
    paths = np.array(["a.mp4", "a.mp4", "\udcff.mp4", "c.mp4"])
    columns = read_columns(paths, ColumnSources("/videos", tmp_path / "m.csv"))
    assert columns.matching("who = 'x'").tolist() == [True, True, False, False]
    assert columns.matching("who = 'y'").tolist() == [False, False, True, False]
    assert columns.without == 1


def test_many_columns_are_kept_until_something_changes(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(1, 1, (COUNT, 4)).astype(np.float32)
    store = FileStore(tmp_path / FEATURES)
    records = {path: FileRecord(1, 1, row) for path, row in zip(PATHS, rows, strict=True)}
    store.write(HEADER, dict(sorted(records.items())))
    file, database = tmp_path / "columns.csv", tmp_path / columns_module.DATABASE

    def write(camera, count=COUNT):
        lines = [f"{path},{camera},{i}" for i, path in enumerate(PATHS[:count])]
        file.write_text("\n".join(["path,camera,number", *lines]))

    def north():
        reads.clear()
        columns = columns_of_index(store.open())
        assert [c.number for c in columns.described] == [False, True]
        return int(columns.matching("camera = 'north' AND number >= 0").sum()), bool(reads)

    reads = []
    real = columns_module.read_csv_lines
    monkeypatch.setattr(columns_module, "read_csv_lines", lambda f: reads.append(f) or real(f))
    write("north")
    assert north() == (COUNT, True) and not database.exists()
    monkeypatch.setattr(columns_module, "_MANY", 10)
    assert north() == (COUNT, True) and database.exists()
    assert north() == (COUNT, False)
    write("south!")
    assert north() == (0, True)
    write("north", 9)
    assert north() == (9, True) and north() == (9, False)
    del records[PATHS[0]]
    store.write(HEADER, dict(sorted(records.items())))
    file.write_text(file.read_text().replace(f"{PATHS[0]},north,0\n", ""))
    assert north() == (8, True)
    content = database.read_bytes()
    for damaged in (b"", b"no database" * 100, content[:5000], content[:100] + bytes(4000)):
        database.write_bytes(damaged)
        assert north() == (8, True) and north() == (8, False)
    database.unlink()
    with sqlite3.connect(database) as base:  # of somebody else
        base.execute("CREATE TABLE facts (text TEXT, video_of_row BLOB, more)")
        base.execute("CREATE VIEW videos AS SELECT 1")
    base.close()
    assert north() == (8, True) and north() == (8, False)
    database.unlink()
    database.mkdir()  # in the way
    assert north() == (8, True) and north() == (8, True)


@pytest.mark.skipif(find_spec("lance") is None, reason="needs Lance")
def test_an_index_in_a_table_gives_the_same_rows(tmp_path, file):
    features = np.random.default_rng(0).normal(1, 1, (COUNT, 12)).astype(np.float32)
    records = {path: FileRecord(1, 1, row) for path, row in zip(PATHS, features, strict=True)}
    records["broken.mp4"] = FileRecord(3, 4, None, "empty")
    found = []
    for store in (FileStore(tmp_path / "f" / FEATURES), TableStore(tmp_path / "t" / TABLE)):
        store.file.parent.mkdir()
        store.write(HEADER, dict(sorted(records.items())))
        index = store.open()
        (store.file.parent / "columns.csv").write_bytes(file.read_bytes())
        columns = columns_of_index(index)
        passing = {
            w: {index.path(i) for i in np.flatnonzero(columns.matching(w))} for w, _ in CONDITIONS
        }
        where = "camera = 'north'"
        allowed = np.flatnonzero(columns.matching(where))
        out = np.setdiff1d(np.arange(COUNT), allowed)
        matches = query_index(index, features[0], 100, leave_out=out)
        assert {m.row for m in matches} == {*allowed.tolist()}
        found.append((passing, [(m.path, m.similarity) for m in matches]))
    assert found[0] == found[1] and len(found[0][1]) == 20
