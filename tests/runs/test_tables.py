"""Commands that take a table give what they give for the folder that it was made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers.tables import PIPELINE, write_folder, write_table
from helpers.training import planned_pretraining, write_planned

import sce_video
from sce_video.commands import pretrain
from sce_video.datasets import LanceVideoDataset, open_video
from sce_video.datasets.labelled import read_labelled
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.registry import DATASETS
from sce_video.runs.folder_facts import examine_folder
from sce_video.runs.machine_checks import check_video_files, decode_rates
from sce_video.runs.planned_config import planned_config
from sce_video.runs.planned_training import _decode
from sce_video.utils.run_files import KEPT

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

SETTINGS = {"epochs": 1, "batch": 2, "epoch-samples": 4, "workers": 0, "width": 4, "hidden": 16,
            "embedding": 8, "queue": 4, "clip-duration": 0.6, "keep": "best"}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same videos as a folder and as a table, by kind; not to be changed."""
    root = tmp_path_factory.mktemp("sources")
    folder = write_folder(root / "files")
    return {"folder": str(folder), "table": write_table(folder, root / "videos.lance")}


@pytest.fixture(scope="module")
def runs(sources, tmp_path_factory):
    """A run on each; not to be changed."""
    root = tmp_path_factory.mktemp("runs")
    options = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sce-video"])
        patch.setattr("sce_video.runs.page.write_run_page", lambda folder, *_, **__: folder)
        patch.setattr("sce_video.runs.page.compare_at_end", lambda *_: None)
        for kind, videos in sources.items():
            assert pretrain.main([videos, "--out", str(root / kind), *options]) == 0
    return root


def test_a_pretraining_is_the_same(runs, sources):
    """Also which videos are held out, and the checkpoint that is best on these."""
    for name in ("epoch_1.pth", KEPT):
        one, two = (load_checkpoint_file(runs / kind / name) for kind in sources)
        first, second = one["state_dict"], two["state_dict"]
        assert first.keys() == second.keys() and one["kept"] == two["kept"]
        assert all(torch.equal(first[key], second[key]) for key in first)
    listed = []
    for kind, videos in sources.items():
        planned = planned_config(runs / kind)
        parts = [planned.custom_hooks[-1].gallery.dataset, planned.train_dataloader.dataset]
        parts = [DATASETS.build({**part, "pipeline": []}) for part in parts]
        paths = [[part.path(i) for i in range(len(part))] for part in parts]
        listed.append([[x.removeprefix(videos).strip("/") for x in part] for part in paths])
    assert listed[0] == listed[1] and [len(part) for part in listed[0]] == [2, 4]
    plans = [(runs / kind / "config.py").read_text() for kind in ("folder", "table")]
    assert "type='LanceVideoDataset'" in plans[1] and "LanceVideoDataset" not in plans[0]


def test_metrics_are_the_same(runs, sources, tmp_path):
    out = tmp_path / "r.json"
    given = {"gallery": sources["folder"], "protocols": ["knn"], "out": out}
    run = runs / "folder"
    metrics = [sce_video.evaluate(run, test=v, **given).metrics for v in sources.values()]
    assert metrics[0] == metrics[1]
    assert json.loads(out.read_text())["protocol"]["test"]["type"] == "LanceVideoDataset"


def test_segments_of_a_csv_file(runs, sources, tmp_path):
    """Of segments that hold all frames the metrics are those of the folder."""
    videos = read_labelled(sources["folder"])
    rows = ["path,start,end,label"]
    for i, path in enumerate(videos.paths()):
        with open_video(str(Path(sources["folder"], path))) as reader:
            name = videos.name(int(videos.videos.labels[i]))
            rows.append(f"{sources['folder']}/{path},0,{reader.duration:.6f},{name}")
    file = tmp_path / "segments.csv"
    file.write_text("\n".join(rows))
    given = {"protocols": ["knn"], "out": tmp_path / "r.json"}
    found = [
        sce_video.evaluate(runs / "folder", test=named, gallery=named, **given).metrics
        for named in (sources["folder"], file)
    ]
    assert found[0] and found[0] == found[1]
    listed = (runs / "folder" / "evaluation" / "test.txt").read_text().splitlines()
    assert len(listed) == len(rows) - 1 and all("@0-" in line for line in listed)


def test_facts_and_findings_are_those_of_the_folder(sources):
    found = {kind: examine_folder(videos) for kind, videos in sources.items()}
    expected = vars(found["folder"]) | {"folder": sources["table"]}
    assert vars(found["table"]) == expected
    assert decode_rates(sources["table"], 4, 0.5)["av"] > 0
    assert [finding.level for finding in check_video_files(found["table"])] == ["ok"]


def test_a_table_in_an_object_store(sources, bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for path in Path(sources["table"]).rglob("*"):
        if path.is_file():
            name = path.relative_to(Path(sources["table"]).parent)
            bucket.put(str(name), path.read_bytes())
    table = bucket.url("videos.lance")
    facts = examine_folder(table)
    assert facts.folder == table and (facts.num_videos, facts.key_distance) == (6, 1)
    sample, seconds = _decode(LanceVideoDataset(table, None, PIPELINE))
    assert sample["index"] == 5 and seconds > 0
    settings = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    planned = planned_pretraining(table, tmp_path, **settings)
    write_planned(planned)
    assert (
        planned_config(tmp_path, videos=table).custom_hooks[-1].gallery.dataset.data_root == table
    )
    with pytest.raises(ValueError, match="names 's3://.*again, and name object stores with videos"):
        planned_config(tmp_path)
