"""Options that name user-defined classes."""

from __future__ import annotations

from functools import partial

import pytest
from helpers.own_parts import registries_restored

from sce_video.evaluation.metrics.base import RowMetric
from sce_video.options.declare import OptionError
from sce_video.options.features import EmbedOptions, IndexOptions
from sce_video.options.find import CurateOptions
from sce_video.options.measure import EvaluateOptions
from sce_video.options.protocols import ProbeOptions
from sce_video.registry import DATASETS, METRICS


class Mean(RowMetric):
    def compute(self, rows, gallery=None):
        return {"mean": float(rows.values.mean())}


class Compared(Mean):
    needs_gallery = True


@pytest.fixture(autouse=True)
def registered(tmp_path):
    with registries_restored(tmp_path):
        DATASETS.register_module(name="Mine", module=type("Mine", (), {}))
        METRICS.register_module(name="Mean", module=Mean)
        METRICS.register_module(name="Compared", module=Compared)
        yield


@pytest.mark.parametrize("kind", [EmbedOptions, IndexOptions])
def test_a_dataset_lists_all_videos(kind):
    given = {"videos": "V", "checkpoint": "R", "out": "O"}
    assert kind(**given, dataset="Mine").dataset == "Mine"
    with pytest.raises(OptionError, match="dataset must be the name .* registers .*Mine.*'Yours'"):
        kind(**given, dataset="Yours")
    with pytest.raises(OptionError, match="dataset lists the videos. Remove it or all_files"):
        kind(**given, dataset="Mine", all_files=True)


def test_a_dataset_of_a_curation_needs_a_network():
    with pytest.raises(OptionError, match="dataset lists videos to embed. Add checkpoint"):
        CurateOptions(source="V", out="O", dataset="Mine")
    assert CurateOptions(source="V", out="O", dataset="Mine", checkpoint="R").dataset == "Mine"


def test_a_metric_decides_whether_it_needs_a_gallery():
    assert EvaluateOptions(run="R", test="T", protocols=("Mean", "rankme")).gallery is None
    for names in (("Compared",), ("Mean", "knn")):
        with pytest.raises(OptionError, match="Add gallery, group_pattern or group_column"):
            EvaluateOptions(run="R", test="T", protocols=names)
    given = {"test": "T", "group_pattern": "(.)", "protocols": ("Median",)}
    for call in (partial(EvaluateOptions, run="R"), ProbeOptions):
        with pytest.raises(OptionError, match="protocols must be one of .*, Compared, .*'Median'"):
            call(**given)
