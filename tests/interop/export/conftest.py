"""An index of the small videos, one of them broken since, and the same features as a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.small_index import OPTIONS

from sce_video.evaluation import Rows, save_features
from sce_video.find.index import build_index, read_index


@pytest.fixture
def index(model, root, tmp_path):
    """The index; c/d.mp4 is damaged after it was embedded."""
    build_index(model, root, tmp_path / "index", OPTIONS)
    (root / "c" / "d.mp4").write_bytes(b"no video any more")
    return read_index(tmp_path / "index")


@pytest.fixture
def feature_file(index, tmp_path):
    """A file as of ``sce-video embed``: absolute paths, labels, names of the classes."""
    rows = Rows(
        values=torch.from_numpy(np.array(index.features)),
        labels=torch.tensor([0, 1, 1, -1, 2]),
        indices=torch.arange(5),
        paths=[index.file(path) for path in index.paths],
    )
    provenance = {
        "test": {"data_root": index.root, "classes": ["run", "walk"]},
        "checkpoint": {"path": "net.pth"},
    }
    save_features(tmp_path / "features.npz", rows, provenance)
    return tmp_path / "features.npz"
