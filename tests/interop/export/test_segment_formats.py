"""Segments as FiftyOne's TemporalDetections and as ActivityNet's JSON."""

import json

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.commands import export as tool
from sce_video.datasets import open_video
from sce_video.interop.export.segment_formats import ExportedSegments, export_segments

ROWS = "path,start,end,label\na.mp4,0,1,walk\na.mp4,0.5,1.5,run\nsub/b.mp4,0.2,9,run\n"


@pytest.fixture
def labels(tmp_path):
    """A file of three segments of two videos of 2 and 1 seconds."""
    (tmp_path / "sub").mkdir()
    write_lossless(tmp_path / "a.mp4", moving_frames(50, seed=1))
    write_lossless(tmp_path / "sub" / "b.mp4", moving_frames(25, seed=2))
    (tmp_path / "s.csv").write_text(ROWS.replace("0.2,9", "0.2,1"))
    return tmp_path / "s.csv"


def test_fiftyone(labels, tmp_path, capsys):
    """As FiftyOne reads TemporalDetection.support: frames from 1, the last one included."""
    assert tool.main([str(labels), "--to", "fiftyone", "--out", str(tmp_path / "fo")]) == 0
    assert "3 segments of 2 videos" in capsys.readouterr().out
    assert json.loads((tmp_path / "fo/metadata.json").read_text())["media_type"] == "video"
    samples = json.loads((tmp_path / "fo/samples.json").read_text())["samples"]
    assert [s["filepath"] for s in samples] == [str(tmp_path / n) for n in ("a.mp4", "sub/b.mp4")]
    found = samples[0]["segments"]
    assert found["_cls"] == "TemporalDetections"
    with open_video(str(tmp_path / "a.mp4")) as reader:
        times = reader.timestamps
    for detection, (start, end, label) in zip(
        found["detections"], [(0, 1, "walk"), (0.5, 1.5, "run")], strict=True
    ):
        own = 1 + np.flatnonzero((times >= start - 1e-6) & (times < end - 1e-6))
        assert detection["support"] == [own[0], own[-1]] and detection["label"] == label
        assert detection["_cls"] == "TemporalDetection" and "confidence" not in detection


def test_activitynet(labels, tmp_path):
    out = tmp_path / "an.json"
    assert export_segments(str(labels), "activitynet", out) == ExportedSegments(3, 2)
    content = json.loads(out.read_text())
    assert {n["nodeName"] for n in content["taxonomy"]} == {"Root", "run", "walk"}
    assert content["database"]["a"] == {
        "duration": 2.0,
        "subset": "training",
        "annotations": [
            {"segment": [0.0, 1.0], "label": "walk"},
            {"segment": [0.5, 1.5], "label": "run"},
        ],
    }
    # Predictions are results.
    labels.write_text("path,start,end,label,score\na.mp4,0,1,walk,0.5\n")
    export_segments(str(labels), "activitynet", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["results"] == {"a": [{"segment": [0.0, 1.0], "label": "walk", "score": 0.5}]}


def test_mistakes(labels, tmp_path, capsys):
    out = str(tmp_path / "out")
    for words, message in (
        (
            (labels, "--to", "parquet"),
            "segments can be exported only with --to fiftyone or activitynet",
        ),
        ((tmp_path / "none.csv", "--to", "fiftyone"), "no file of segments at"),
        ((tmp_path, "--to", "activitynet"), "--to activitynet needs a CSV file of segments"),
    ):
        assert tool.main([*map(str, words), "--out", out]) == 2
        assert message in capsys.readouterr().err
    labels.write_text(ROWS)
    assert tool.main([str(labels), "--to", "fiftyone", "--out", out]) == 2
    assert "s.csv, line 4: the segment ends at 9 s" in capsys.readouterr().err
    labels.write_text("path,start,end,label,score\na.mp4,0,1,walk,high\n")
    assert tool.main([str(labels), "--to", "fiftyone", "--out", out]) == 2
    assert "line 2: 'high' is not a score" in capsys.readouterr().err
