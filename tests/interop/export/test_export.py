"""The exported files, read back as the viewers read them."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import zlib

import cv2
import numpy as np
import pytest
from helpers.disk_faults import file_size_limit

import sce_video
from sce_video.datasets import open_reader
from sce_video.inference.features import Features
from sce_video.interop.export.viewers import export_videos
from sce_video.options.connect import ExportOptions
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import WriteError

BROKEN = ("c/d.mp4", "cannot be opened: Invalid data found when processing input")


def export(source, to, out, on_video=None, **options):
    """Export in this process."""
    given = ExportOptions(source=source, to=to, out=out, workers=0, **options)
    return export_videos(given, on_video)


def picture(jpeg):
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def middle_frame(file, size):
    with open_reader(file) as reader:
        frame = reader.read(np.array([len(reader.timestamps) // 2]))[0]
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


# -- parquet -------------------------------------------------------------------------------


def test_parquet(index, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("sce_video.interop.export.viewers.ROW_GROUP", 2)
    seen = []
    out = tmp_path / "new" / "videos.parquet"
    report = export(
        *(index.folder, "parquet", out, lambda total, failed: seen.append((total, failed))),
        thumbnail=32,
        neighbours=2,
    )
    assert (report.videos, report.labelled, report.failures) == (5, 2, [BROKEN])
    assert seen == [(5, False), (5, False), (5, True), (5, False), (5, False)]
    file = parquet.ParquetFile(out)
    assert file.num_row_groups == 3
    rows = file.read().to_pylist()
    assert [row["path"] for row in rows] == index.paths
    assert [row["label"] for row in rows] == [None, None, "c", "c", None]
    assert [row["file"] for row in rows] == [index.file(path) for path in index.paths]
    np.testing.assert_array_equal([row["embedding"] for row in rows], index.features)
    assert rows[2]["thumbnail"] is None
    for i in (0, 3):
        thumbnail = rows[i]["thumbnail"]
        assert thumbnail["path"] == f"{rows[i]['path']}.jpg"
        found = picture(thumbnail["bytes"])
        assert found.shape == (24, 32, 3)
        expected = middle_frame(rows[i]["file"], (32, 24))
        assert np.abs(found.astype(float) - expected).mean() < 8
    unit = index.features / np.linalg.norm(index.features, axis=1, keepdims=True)
    for i, row in enumerate(rows):
        ids, distances = row["neighbors"]["ids"], row["neighbors"]["distances"]
        assert len(ids) == 2 and i not in ids
        np.testing.assert_allclose(distances, 1 - unit[ids] @ unit[i], atol=1e-5)
    about = json.loads(file.schema_arrow.metadata[b"sce_video"])
    assert about == {"checkpoint": index.header.checkpoint, "map": report.map_name}


def test_parquet_without_what_is_optional(feature_file, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "v.parquet"
    export(feature_file, "parquet", out, no_thumbnails=True, neighbours=0, no_embedding=True)
    table = parquet.read_table(out)
    assert table.schema.names == ["path", "file", "label", "x", "y"]
    assert table["label"].to_pylist() == ["run", "walk", "walk", None, "2"]


def test_without_pyarrow(index, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install sce-video\[export\]"):
        export(index.folder, "parquet", tmp_path / "v.parquet")


# -- TensorBoard ---------------------------------------------------------------------------


class NoRuns:
    """A data provider of TensorBoard without event files."""

    def list_runs(self, ctx, *, experiment_id):
        return []


def ask(folder, route, **query):
    """What TensorBoard's own projector plugin answers its page."""
    base_plugin = pytest.importorskip("tensorboard.plugins.base_plugin")
    from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
    from werkzeug.test import Client

    context = base_plugin.TBContext(logdir=str(folder), data_provider=NoRuns())
    app = ProjectorPlugin(context).get_plugin_apps()[route]
    response = Client(app).get("/", query_string=query)
    assert response.status_code == 200, response.text
    return response


def test_the_projector_of_tensorboard_reads_the_folder(index, tmp_path):
    folder = tmp_path / "projector"
    report = export(index.folder, "projector", folder, thumbnail=32)
    assert report.failures == [BROKEN]
    assert ask(folder, "/runs").json == ["."]
    (embedding,) = ask(folder, "/info", run=".").json["embeddings"]
    assert embedding["tensorShape"] == [5, 32]
    name = {"run": ".", "name": embedding["tensorName"]}
    tensor = np.frombuffer(ask(folder, "/tensor", **name).data, np.float32).reshape(5, 32)
    np.testing.assert_allclose(tensor, index.features, rtol=1e-6)
    lines = ask(folder, "/metadata", **name).text.split("\n")
    assert lines[:4] == ["path\tlabel", "a.mp4\tno label", "b.mp4\tno label", "c/d.mp4\tc"]
    assert embedding["sprite"]["singleImageDim"] == [32, 32]
    sprite = picture(ask(folder, "/sprite_image", **name).data)
    assert sprite.shape == (96, 96, 3)  # three by three tiles, the fifth in the middle
    tile = sprite[32:64, 32:64]
    expected = middle_frame(index.file("f.mp4"), (32, 24))
    assert np.abs(tile[4:28].astype(float) - expected).mean() < 12
    assert sprite[:32, 64:].max() < 10  # c/d.mp4 has no thumbnail


def test_names_with_tabs_stay_in_their_line(index, tmp_path, monkeypatch):
    names = ["a\tb\n.mp4", "\udcff.mp4"]
    values, labels = np.eye(2, dtype=np.float32), np.array([0, -1])
    videos = Features(values, names, labels=labels, provenance={"classes": ["x\ty"]}, source="s")
    monkeypatch.setattr("sce_video.interop.export.viewers.read_videos", lambda *_: videos)
    export("s", "projector", tmp_path / "p", thumbnail=0)
    lines = (tmp_path / "p" / "metadata.tsv").read_text().splitlines()
    assert lines == ["path\tlabel", "a\\tb\\n.mp4\tx\\ty", "\ufffd.mp4\tno label"]
    assert not (tmp_path / "p" / "sprite.jpg").exists()
    report = export("s", "fiftyone", tmp_path / "f")
    assert report.notes == ["left out: 1 files whose names are not UTF-8"]
    assert len(json.loads((tmp_path / "f" / "samples.json").read_text())["samples"]) == 1


# -- FiftyOne ------------------------------------------------------------------------------


def read_as_fiftyone(folder):
    """The samples by the rules of FiftyOne's importer, without FiftyOne.

    fiftyone/utils/data/importers.py (LegacyFiftyOneDatasetImporter) and
    fiftyone/core/utils.py (deserialize_numpy_array).
    """
    metadata = json.loads((folder / "metadata.json").read_text())
    assert "version" not in metadata  # with one, a dump of its database would be expected
    samples = json.loads((folder / "samples.json").read_text())["samples"]
    for sample in samples:
        sample["filepath"] = os.path.join(folder, sample["filepath"])
        frames = json.loads((folder / sample.pop("frames")).read_text())
        assert frames == {"frames": {}}
        binary = base64.b64decode(sample["embedding"]["$binary"]["base64"])
        sample["embedding"] = np.load(io.BytesIO(zlib.decompress(binary)), allow_pickle=False)
    return metadata, samples


def test_fiftyone(index, tmp_path):
    report = export(index.folder, "fiftyone", tmp_path / "fo")
    assert report.failures == []  # the media stay where they are: nothing is opened
    metadata, samples = read_as_fiftyone(tmp_path / "fo")
    assert metadata["media_type"] == "video"
    assert metadata["info"]["classes"] == {"label": ["c"]}
    assert [s["filepath"] for s in samples] == [index.file(path) for path in index.paths]
    assert [s["name"] for s in samples] == index.paths
    assert samples[3]["label"] == {"_cls": "Classification", "tags": [], "label": "c"}
    assert "label" not in samples[0]
    np.testing.assert_array_equal([s["embedding"] for s in samples], index.features)
    assert samples[0]["embedding"].dtype == np.float32
    assert len({(s["x"], s["y"]) for s in samples}) == 5


def test_images_for_fiftyone_are_not_mixed_with_videos(tmp_path, monkeypatch):
    def videos(*names):
        features = np.eye(len(names), dtype=np.float32)
        return Features(features, list(names), source="s")

    source = "sce_video.interop.export.viewers.read_videos"
    monkeypatch.setattr(source, lambda *_: videos("a.png", "b.jpg"))
    export("s", "fiftyone", tmp_path / "f")
    metadata = json.loads((tmp_path / "f" / "metadata.json").read_text())
    assert metadata["media_type"] == "image"
    monkeypatch.setattr(source, lambda *_: videos("a.png", "b.mp4"))
    with pytest.raises(ValueError, match="1 of the 2 files are images"):
        export("s", "fiftyone", tmp_path / "g")


# -- all -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["parquet", "projector", "fiftyone"])
def test_what_exists_stays_and_what_fails_leaves_nothing(index, tmp_path, to):
    out = tmp_path / "out.parquet"
    with file_size_limit(64), pytest.raises(WriteError, match=r"cannot write .*File too large"):
        export(index.folder, to, out)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    out.write_text("mine")
    with pytest.raises(
        FileExistsError, match="already exists. Remove it, or give a different --out"
    ):
        sce_video.export(index.folder, to=to, out=out)
    assert out.read_text() == "mine"
