"""A custom metric: one class in one file, named by a config through ``custom_imports``."""

import json

import pytest
import torch
from helpers import evaluation_fakes  # noqa: F401  registers the tiny network and data set
from helpers.evaluation_fakes import ColourVideos, TinyEncoder, loader

from sce_video.evaluation import extract_features
from sce_video.runs import launch

METRIC = '''
"""Fraction of queries whose nearest gallery video is closer than a threshold."""

from sce_video.evaluation import RowMetric, nearest_neighbours
from sce_video.registry import METRICS


@METRICS.register_module(force=True)
class CloseNeighbours(RowMetric):
    needs_gallery = True
    kinds = ("representation",)

    def __init__(self, above=0.5):
        super().__init__()
        self.above = above

    def compute(self, rows, gallery=None):
        similarities, _ = nearest_neighbours(rows.features, gallery.features, k=1)
        return {"close_neighbours": float((similarities[:, 0] > self.above).float().mean())}
'''

CONFIG = """
custom_imports = dict(imports=["my_close_neighbours", "helpers.evaluation_fakes"])
default_scope = "sce_video"
model = dict(type="TinyEncoder")
randomness = dict(seed=7)
_collate = dict(type="sce_video.collate_colours")


def data(count):
    dataset = dict(type="ColourVideos", count=count)
    return dict(batch_size=5, num_workers=0, dataset=dataset, collate_fn=_collate)


test_dataloader = data(12)
test_cfg = dict(type="MultiViewTestLoop", gallery_dataloader=data(21))
test_evaluator = [dict(type="KNN", k=3), dict(type="CloseNeighbours", above=0.9)]
log_level = "WARNING"
"""


def test_a_custom_metric(tmp_path, monkeypatch):
    (tmp_path / "my_close_neighbours.py").write_text(METRIC)
    (tmp_path / "own.py").write_text(CONFIG)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = TinyEncoder()
    torch.save({"state_dict": model.state_dict(), "meta": {}}, tmp_path / "tiny.pth")
    cfg = launch.testing_config(
        tmp_path / "own.py",
        str(tmp_path / "tiny.pth"),
        work_dir=tmp_path / "work",
        cfg_options=["test_evaluator.CloseNeighbours.above=0.99"],
    )
    numbers = launch.test(cfg)
    queries, gallery = (extract_features(model, loader(ColourVideos(n))) for n in (12, 21))
    unit = [torch.nn.functional.normalize(part.features, dim=1) for part in (queries, gallery)]
    closest = (unit[0] @ unit[1].T).amax(dim=1)
    expected = float((closest > 0.99).float().mean())
    assert numbers["close_neighbours"] == pytest.approx(expected)
    written = json.loads((tmp_path / "work" / "results.json").read_text())
    assert written["metrics"] == numbers and set(numbers) == {
        "knn_top1",
        "knn_top5",
        "close_neighbours",
    }
