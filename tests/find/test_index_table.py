"""An index in a Lance table: the same results as from a file, updates that add and remove rows."""

import json
import os
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from helpers.small_index import HEADER, NAMES, OPTIONS

from sce_video.commands.index import main
from sce_video.datasets.tables.table import make_table, read_table
from sce_video.find import query as search
from sce_video.find import table_store as index_table
from sce_video.find.examples import query_feature, rows_of_file
from sce_video.find.index import build_index, read_index
from sce_video.find.query import query_index, searches_approximately
from sce_video.find.reading import find_store
from sce_video.find.store import FEATURES, TABLE, FileRecord, FileStore
from sce_video.find.table_store import TableStore, path_to_text, text_to_path
from sce_video.runs.machine_checks import FAILURE, OK, check_index_files

pytestmark = pytest.mark.skipif(
    find_spec("lance") is None, reason="needs Lance: pip install 'sce-video[lance]'"
)


def some_records(count=1500, size=24):
    """Records of videos, three of them equal, and of two that failed."""
    features = np.random.default_rng(0).normal(1, 1, (count, size)).astype(np.float32)
    features[count - 1] = features[5] = features[700]
    records = {f"{i:04}.mp4": FileRecord(i, i, row) for i, row in enumerate(features)}
    records |= {
        "0100b.mp4": FileRecord(1, 2, None, "broken"),
        "a'b\udcff.mp4": FileRecord(5, 6, features[3] + 1),
        "zz.mp4": FileRecord(3, 4, None, "empty"),
    }
    return dict(sorted(records.items()))


def both(folder, records):
    """An index of the records in a file, and one in a table."""
    found = []
    for name, store in (
        ("file", FileStore(folder / "file" / FEATURES)),
        ("table", TableStore(folder / "table" / TABLE)),
    ):
        (folder / name).mkdir(exist_ok=True)
        known = store.read()[1] if store.file.exists() else {}
        same = {p: known[p] if same_state(known.get(p), r) else r for p, r in records.items()}
        store.write(HEADER, same)
        found.append(store.open())
    return found


def same_state(known, record):
    return known is not None and (known.size, known.mtime_ns) == (record.size, record.mtime_ns)


def assert_same_results(file, table, queries, **options):
    for query in queries:
        left_out = ["0005.mp4", "0700.mp4"]
        for k in (3, 40):
            for names in ([], left_out):
                rows = [[i.row(n) for n in names if i.row(n) is not None] for i in (file, table)]
                expected = query_index(file, query, k, leave_out=rows[0], **options)
                assert query_index(table, query, k, leave_out=rows[1], **options) == expected
                assert len(expected) == k


def data_files(table):
    return {file.name: file.stat().st_mtime_ns for file in (table / "data").iterdir()}


def test_results_equal_those_of_a_file_bit_for_bit(tmp_path, monkeypatch):
    records = some_records()
    file, table = both(tmp_path, records)
    queries = [records["0005.mp4"].feature, records["0009.mp4"].feature * 2 + 1]
    for centred in (False, True):
        assert_same_results(file, table, queries, centred=centred)
    assert table.failures == file.failures
    assert table.header == file.header
    assert sorted(table.paths) == file.paths
    # Read in blocks, as one that is not held in memory.
    monkeypatch.setattr(index_table, "_HELD_BYTES", 1000)
    monkeypatch.setattr(index_table, "READ_ROWS", 300)
    monkeypatch.setattr(search, "READ_ROWS", 200)
    table = read_index(tmp_path / "table")
    for centred in (False, True):
        assert_same_results(file, table, queries, centred=centred)
    np.testing.assert_array_equal(np.asarray(table.features), file.features)
    np.testing.assert_array_equal(table.features[[7, 3, 7]], file.features[[7, 3, 7]])
    np.testing.assert_array_equal(table.features[[]], np.empty((0, 24)))


def test_an_update_leaves_other_rows_where_they_are(tmp_path):
    records = some_records()
    both(tmp_path, records)
    before = data_files(tmp_path / "table" / TABLE)
    records = dict(records)
    del records["0700.mp4"], records["zz.mp4"]
    records["0009.mp4"] = FileRecord(9, 99, records["0010.mp4"].feature)
    records["0100b.mp4"] = FileRecord(1, 3, records["0011.mp4"].feature)
    records["0.mp4"] = FileRecord(1, 3, records["0012.mp4"].feature)
    file, table = both(tmp_path, dict(sorted(records.items())))
    after = data_files(tmp_path / "table" / TABLE)
    assert before.items() < after.items()
    assert len(after) == len(before) + 1
    assert len(table) == len(file) == 1502
    assert table.failures == []
    queries = [records[name].feature for name in ("0005.mp4", "0012.mp4")]
    for centred in (False, True):
        assert_same_results(file, table, queries, centred=centred)
    for name in ("0.mp4", "0009.mp4", "0100b.mp4", "a'b\udcff.mp4", "1499.mp4"):
        row = table.row(name)
        assert table.path(row) == name
        np.testing.assert_array_equal(table.features[row], records[name].feature)
        state = table.sizes[row], table.mtimes[row]
        assert state == (records[name].size, records[name].mtime_ns)
    assert [table.row(name) for name in ("0700.mp4", "zz.mp4", "x' OR ''='", "")] == [None] * 4


def test_a_vector_index_and_rows_that_it_does_not_hold_yet(tmp_path, monkeypatch):
    records = some_records()
    file, table = both(tmp_path, records)
    assert not searches_approximately(table)
    TableStore(tmp_path / "table" / TABLE).make_vector_index(wanted=True)
    table = read_index(tmp_path / "table")
    assert searches_approximately(table)
    assert not searches_approximately(table, centred=True)
    compared = []
    real = search._exact
    monkeypatch.setattr(search, "_exact", lambda *a: compared.append(1) or real(*a))
    query = records["0009.mp4"].feature + 0.01
    expected = query_index(file, query, 5)
    of_path = {match.path: match.similarity for match in query_index(file, query, 1500)}
    compared.clear()
    found = query_index(table, query, 5)
    assert found[0] == expected[0]
    assert all(match.similarity == of_path[match.path] for match in found)  # to the last bit
    row = table.row("0009.mp4")
    assert query_index(table, query, 5, leave_out=[row])[0] == replace(found[1], rank=1)
    assert not compared
    assert query_index(table, query, 5, exact=True) == expected
    assert query_index(table, query, 5, centred=True) == query_index(file, query, 5, centred=True)
    assert query_index(table, query * 0, 3) == query_index(file, query * 0, 3)
    with pytest.raises(ValueError, match="dimensions"):
        query_index(table, query[:7], 3)

    records["new.mp4"] = FileRecord(7, 7, query)
    _, table = both(tmp_path, dict(sorted(records.items())))
    assert table.indexed == 1503
    compared.clear()
    assert [m.path for m in query_index(table, query, 2)] == ["new.mp4", "0009.mp4"]
    assert not compared
    TableStore(tmp_path / "table" / TABLE).make_vector_index(wanted=False)
    table = read_index(tmp_path / "table")
    assert table.indexed == 1504
    assert [m.path for m in query_index(table, query, 2)] == ["new.mp4", "0009.mp4"]


def test_conditions_with_a_vector_index(tmp_path, monkeypatch):
    """Where many rows are left out it is asked for more; where few remain these are compared."""
    records = some_records()
    file, _ = both(tmp_path, records)
    TableStore(tmp_path / "table" / TABLE).make_vector_index(wanted=True)
    table = read_index(tmp_path / "table")
    monkeypatch.setattr(search, "_MOST_LEFT_OUT", 20)
    monkeypatch.setattr(search, "_FEW", 30)
    asked = []
    real = type(table).nearest
    monkeypatch.setattr(
        type(table),
        "nearest",
        lambda self, query, k, kept: asked.append(k) or real(self, query, k, kept),
    )
    query = records["0009.mp4"].feature + 0.01
    for step, approximate in ((3, True), (100, False)):
        out = {p for i, p in enumerate(file.paths) if i % step}
        rows = [[i.row(path) for path in sorted(out)] for i in (file, table)]
        expected = query_index(file, query, 5, leave_out=rows[0])
        asked.clear()
        found = query_index(table, query, 5, leave_out=rows[1])
        assert bool(asked) == approximate and not {m.path for m in found} & out
        assert found[0] == expected[0] and len(found) == 5
        assert approximate or found == expected
    monkeypatch.setattr(
        search, "_MORE", 0.1
    )  # none of its candidates pass: all that do are compared
    best = {m.path for m in query_index(file, query, 1400)}
    rows = [[i.row(path) for path in sorted(best)] for i in (file, table)]
    expected = query_index(file, query, 50, leave_out=rows[0])
    asked.clear()
    assert query_index(table, query, 50, leave_out=rows[1]) == expected and asked


def numbers(report):
    return report.videos, report.new, report.changed, report.kept, report.dropped


def test_build_update_and_convert(model, root, originals, tmp_path, opened):
    folder = tmp_path / "index"
    imported = "lance" in sys.modules
    build_index(model, root, folder, OPTIONS)
    file = read_index(folder)
    expected = query_index(file, file.features[1], 5)
    opened.clear()
    report = build_index(model, root, folder, OPTIONS, table=True)
    assert numbers(report) == (5, 0, 0, 6, 0)
    assert opened == []
    assert (folder / TABLE).exists() and not (folder / "features.npz").exists()
    table = read_index(folder)
    assert query_index(table, file.features[1], 5) == expected
    assert [path for path, _ in table.failures] == ["broken.mp4"]
    assert rows_of_file(table, root / "c/d.mp4") == [table.row("c/d.mp4")]
    feature = query_feature(table, root / "b.mp4", lambda: 1 / 0)
    np.testing.assert_array_equal(feature, file.features[file.row("b.mp4")])

    shutil.copy(originals / "more.mp4", root / "c" / "new.mp4")
    shutil.copy(originals / "more.mp4", root / "b.mp4")
    (root / "f.mp4").unlink()
    opened.clear()
    before = data_files(folder / TABLE)
    assert numbers(build_index(model, root, folder, OPTIONS)) == (5, 1, 1, 4, 1)
    assert sorted(opened) == ["b.mp4", "new.mp4"]
    assert before.items() < data_files(folder / TABLE).items()
    assert not (folder / "features.npz").exists()
    assert ("lance" in sys.modules) == imported  # a process of its own has read and written


def test_a_conversion_that_ends_before_the_file_is_removed(model, root, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    build_index(model, root, folder, OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr("sce_video.find.index._remove_stores", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(model, root, folder, OPTIONS, table=True)
    assert (folder / "features.npz").exists()
    assert isinstance(read_index(folder), index_table.TableIndex)
    assert numbers(build_index(model, root, folder, OPTIONS)) == (5, 0, 0, 6, 0)
    assert not (folder / "features.npz").exists()


def test_only_broken_files_then_others(model, root, tmp_path):
    for name in NAMES:
        (root / name).rename(tmp_path / os.path.basename(name))
    folder = tmp_path / "index"
    with pytest.raises(ValueError, match="none of 1 videos in .* could be read"):
        build_index(model, root, folder, OPTIONS, table=True)
    (tmp_path / "a.mp4").rename(root / "a.mp4")
    # What could not be read is recorded, and not tried again.
    assert numbers(build_index(model, root, folder, OPTIONS, table=True)) == (1, 1, 0, 1, 0)
    assert read_index(folder).paths == ["a.mp4"]
    assert [path for path, _ in read_index(folder).failures] == ["broken.mp4"]


# -- bad input -------------------------------------------------------------------------------


def test_features_that_are_not_finite_are_refused(tmp_path):
    store = TableStore(tmp_path / TABLE)
    records = some_records(800)
    records["0007.mp4"] = FileRecord(1, 1, np.full(24, np.nan, np.float32))
    with pytest.raises(ValueError, match=r"the feature of 0007\.mp4 contains NaN.*diverged"):
        store.write(HEADER, records)
    assert not store.file.exists()
    del records["0007.mp4"]
    store.write(HEADER, records)
    table = read_table(str(store.file))
    rows = table.call("read", ["path", "size", "mtime_ns", "failure", "feature"])
    damaged = rows.slice(20, 1).to_pylist()[0]
    damaged["feature"][3] = float("nan")
    table.call("replace", "path", rows.from_pylist([damaged], schema=rows.schema))
    with pytest.raises(
        ValueError, match=rf"damaged: the feature of {damaged['path']} contains NaN"
    ):
        query_index(read_index(tmp_path), np.ones(24))


def test_a_table_that_is_no_index(model, root, tmp_path):
    import pyarrow as pa

    folder = tmp_path / "index"
    folder.mkdir()
    make_table(str(folder / TABLE), pa.schema([("path", pa.string()), ("label", pa.int64())]))
    with pytest.raises(ValueError, match="is not the table of an index.*columns are path, label"):
        read_index(folder)
    for rebuild in (False, True):
        with pytest.raises(ValueError, match="is not the table of an index"):
            build_index(model, root, folder, OPTIONS, rebuild=rebuild)
    assert (folder / TABLE).is_dir()


@pytest.mark.parametrize("wrong", [{"version": 9}, {"settings": {"num_clips": 10**9}}, None])
def test_settings_of_an_untrusted_table_are_checked(tmp_path, wrong):
    store = TableStore(tmp_path / TABLE)
    store.write(HEADER, some_records(800))
    facts = "not JSON" if wrong is None else json.dumps({"version": 1, **HEADER.to_dict(), **wrong})
    read_table(str(store.file)).call("describe", "feature", {"sce_video.index": facts})
    with pytest.raises(ValueError, match=r"features\.lance is not the table of an index"):
        read_index(tmp_path)


def test_a_table_that_was_half_copied(model, root, tmp_path):
    folder = tmp_path / "index"
    build_index(model, root, folder, OPTIONS, table=True)
    shutil.rmtree(folder / TABLE / "_versions")
    with pytest.raises(ValueError, match=r"cannot open the table .*--rebuild"):
        read_index(folder)
    with pytest.raises(ValueError, match=r"cannot open the table .*--rebuild"):
        build_index(model, root, folder, OPTIONS)
    assert numbers(build_index(model, root, folder, OPTIONS, rebuild=True))[:2] == (5, 6)
    for file in (folder / TABLE / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(Exception, match=r"cannot read the table .*features\.lance"):
        query_index(read_index(folder), np.ones(32))


def test_names_that_are_no_utf8_come_back():
    for path in ("a.mp4", "ü\udcc3\udca9.mp4", "a\\xff", "line\nbreak", "☃"):
        assert text_to_path(path_to_text(path)) == path
        path_to_text(path).encode()


def test_a_check_names_the_damaged_file(tmp_path, capsys):
    both(tmp_path, some_records(count=12_000))
    both(tmp_path, some_records(count=12_010))  # an update: the table has more files
    for name in ("file", "table"):
        out = tmp_path / name
        assert main(["videos", "--out", str(out), "--check"]) == 0
        assert "all files are intact" in capsys.readouterr().out
        files = [out / FEATURES] if name == "file" else sorted((out / TABLE / "data").iterdir())
        file = max(files, key=lambda file: file.stat().st_size)
        whole = file.read_bytes()
        for at in (len(whole) // 2, len(whole) // 3):
            damaged = bytearray(whole)
            damaged[at] ^= 4
            file.write_bytes(damaged)
            assert main(["videos", "--out", str(out), "--check"]) == 1
            assert str(file) in capsys.readouterr().out
        file.write_bytes(whole)
    file.unlink()
    assert main(["videos", "--out", str(out), "--check"]) == 1
    assert f"{file} is missing" in capsys.readouterr().out
    found = [check_index_files(find_store(tmp_path / name)) for name in ("file", "table")]
    assert [finding.level for finding in found] == [OK, FAILURE]
    assert str(file) in found[1].what and "--rebuild" in found[1].advice
    hidden = check_index_files(find_store(tmp_path / "table"), named=False)
    assert hidden.level == FAILURE and str(tmp_path) not in hidden.line()
    assert main(["videos", "--out", str(tmp_path / "none"), "--check"]) == 2
    assert "there is no index in" in capsys.readouterr().err


def test_a_search_names_a_damaged_block(tmp_path):
    records = some_records(count=60_000)
    store = FileStore(tmp_path / FEATURES)
    store.write(HEADER, records)
    damaged = bytearray(store.file.read_bytes())
    damaged[len(damaged) // 20] ^= 4
    store.file.write_bytes(damaged)
    index = store.open()
    assert len(index.features[59_000:]) >= 1000
    with pytest.raises(ValueError, match="'features' of .* is damaged"):
        query_index(index, np.ones(24, np.float32), 3)
