"""The rows that a table gives, against a loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sce_video.datasets.tables import rows as row_list
from sce_video.datasets.tables.rows import FORMAT, FORMAT_KEY
from sce_video.datasets.video_list import VideoList

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def table(monkeypatch):
    """A function that makes columns the content of the table."""

    def make(rows):
        columns = dict(
            zip(("path", "label", "class_name", "failure"), zip(*rows, strict=True), strict=True)
        )
        kinds = (pa.string(), pa.int64(), pa.string(), pa.string())
        content = pa.table(
            [pa.chunked_array([pa.array(column[:3], kind), pa.array(column[3:], kind)])
             for column, kind in zip(columns.values(), kinds, strict=True)],
            names=list(columns),
        )  # fmt: skip
        metadata = {FORMAT_KEY: FORMAT.encode()}
        opened = SimpleNamespace(metadata=metadata, version=7, call=lambda name, columns: content)
        monkeypatch.setattr(row_list, "read_table", lambda table, options: opened)

    return make


def by_a_loop(rows):
    newest = {}
    for number, (path, *_) in enumerate(rows):
        newest[path] = number
    kept = [newest[path] for path in sorted(newest) if not rows[newest[path]][3]]
    classes = sorted({rows[row][2] for row in kept if rows[row][2] is not None})
    labels = [classes.index(rows[r][2]) if rows[r][2] else -1 for r in kept]
    if not classes:
        labels = [rows[row][1] for row in kept]
    paths = [rows[row][0] for row in kept]
    return paths, labels, tuple(classes), kept, len(newest) - len(kept)


@pytest.mark.parametrize("with_classes", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_a_loop(table, with_classes, seed):
    rng = np.random.default_rng(seed)
    names = [f"{stem}{i}.mp4" for i in range(12) for stem in ("b", "é", "a b", "日")]
    rows = []
    for _ in range(90):
        kind = ("x", "é", "b", None)[rng.integers(4)] if with_classes else None
        failure = "broken" if rng.random() < 0.2 else ""
        rows.append((str(rng.choice(names)), int(rng.integers(-1, 9)), kind, failure))
    table(rows)
    found = row_list.list_rows("t.lance")
    videos = found.videos
    paths = [videos.path(index) for index in range(len(videos))]
    shown = paths, videos.labels.tolist(), videos.classes, found.rows.tolist(), found.failed
    assert shown == by_a_loop(rows) and found.version == 7
    newest = {row[0]: number for number, row in enumerate(rows)}
    chosen = rng.permutation(list(newest)).tolist()
    listed = VideoList.from_paths(chosen, range(len(chosen)))
    of_list = row_list.list_rows("t.lance", None, listed)
    assert of_list.rows.tolist() == [newest[path] for path in chosen]
    assert of_list.videos is listed
    with pytest.raises(ValueError, match="2 of the 3 videos .* not in the table .* 'no'"):
        row_list.list_rows("t.lance", None, VideoList.from_paths(["no", chosen[0], "q"], [0] * 3))


def test_a_table_of_failures_holds_no_video(table):
    table([("a", 0, None, "broken"), ("b", 0, None, "broken"), ("a", 0, None, "again")])
    with pytest.raises(ValueError, match="holds no video that can be read"):
        row_list.list_rows("t.lance")
