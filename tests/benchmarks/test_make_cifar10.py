"""benchmarks/make_cifar10.py writes what the reader of CIFAR10 accepts."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from sce_video.datasets.array_sets import read_cifar10


def test_the_official_reader_reads_it(repo, tmp_path, monkeypatch):
    path = repo / "benchmarks" / "make_cifar10.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.IMAGES_OF_A_BATCH * 5 == 50_000  # of CIFAR10
    monkeypatch.setattr(module, "IMAGES_OF_A_BATCH", 20)
    module.main([str(tmp_path)])
    train = read_cifar10(str(tmp_path), "train", check_counts=False)
    assert np.bincount(train.labels).tolist() == [10] * 10
    assert train.image(99).shape == (32, 32, 3) and train.image(99).dtype == np.uint8
    assert len(read_cifar10(str(tmp_path), "test", check_counts=False).labels) == 20
    with pytest.raises(ValueError, match="50,000"):
        read_cifar10(str(tmp_path))
