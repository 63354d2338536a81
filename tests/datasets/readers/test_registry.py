"""Readers by contract: a new reader is one registered class."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sce_video.datasets import VideoDataset, VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers import VideoReader, check_backend
from sce_video.datasets.readers.base import check_regular_file
from sce_video.datasets.transforms import OpenVideo
from sce_video.engine.config.load import load_config, set_backend
from sce_video.registry import READERS

FRAMES = np.random.default_rng(0).integers(0, 256, (30, 24, 32, 3), dtype=np.uint8)


class ArrayFileReader(VideoReader):
    """Reads .npy arrays (T, H, W, 3) at 10 frames per second."""

    def __init__(self, path, *, num_threads=1, correction=None, deadline=None, limits=None):
        check_regular_file(path)
        self.path = path
        try:
            self._frames = np.load(path)
        except ValueError as error:
            raise VideoDecodeError(path, "is no array of frames") from error
        self.timestamps = np.arange(len(self._frames)) / 10
        self.duration = len(self._frames) / 10

    def read(self, indices):
        return self._frames[self._check_indices(indices)]

    def close(self):
        self.closed = True


@pytest.fixture
def registered():
    """The toy reader under the name "arrays", for one test."""
    READERS.register_module("arrays", module=ArrayFileReader)
    yield ArrayFileReader
    READERS.module_dict.pop("arrays")


@pytest.fixture
def array_file(tmp_path):
    np.save(tmp_path / "v.npy", FRAMES)
    return str(tmp_path / "v.npy")


def test_a_reader_of_ones_own_is_opened_by_name(registered, array_file):
    with open_reader(array_file, "arrays") as reader:
        assert type(reader) is ArrayFileReader and backend_importable("arrays")
        assert (reader.read(np.array([3, 9])) == FRAMES[[3, 9]]).all()
        assert (reader.decode(np.array([5]))[0] == FRAMES[5]).all()
        assert (reader.height, reader.width) == (24, 32)
    assert reader.closed


def test_it_is_listed_in_the_error_for_an_unknown_backend(registered):
    with pytest.raises(ValueError, match=r"'magic': choose av, .*arrays"):
        check_backend("magic")
    with pytest.raises(ValueError, match="arrays"):
        OpenVideo(backend="magic")


def test_it_decodes_the_samples_of_a_data_set(registered, array_file):
    pipeline = [
        {"type": "OpenVideo", "backend": "arrays"},
        {"type": "UniformClips", "clip_duration": 100.0, "num_frames": 30, "num_clips": 1},
        {"type": "DecodeClips"},
        {"type": "PackClips"},
    ]
    folder = array_file.rpartition("/")[0]
    dataset = VideoDataset(folder, pipeline=pipeline, on_error="raise", extensions=(".npy",))
    assert (dataset[0]["inputs"][0].numpy() == FRAMES).all()
    with open(f"{folder}/w.npy", "w") as file:
        file.write("no array")
    dataset = VideoDataset(folder, pipeline=pipeline, extensions=(".npy",))
    assert dataset[1]["failures"] == [(f"{folder}/w.npy", "is no array of frames")]


def test_a_reader_whose_library_is_missing(monkeypatch, array_file):
    class Absent(ArrayFileReader):
        library = "sce_video_no_such_library"
        import_hint = "get it from the shelf"

    monkeypatch.setitem(READERS.module_dict, "absent", Absent)
    assert not Absent.importable() and not backend_importable("absent")
    for use in (lambda: check_backend("absent"), lambda: open_reader(array_file, "absent")):
        with pytest.raises(ImportError, match="'absent' cannot be imported here.*from the shelf"):
            use()


def test_custom_imports_register_a_reader_before_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_reader.py").write_text(
        "from sce_video.datasets.readers import AvReader\n"
        "from sce_video.registry import READERS\n"
        "@READERS.register_module('mine')\n"
        "class Mine(AvReader):\n"
        "    pass\n"
    )
    (tmp_path / "config.py").write_text(
        "custom_imports = dict(imports=['my_reader'])\n"
        "pipeline = [dict(type='OpenVideo')]\n"
        "model = dict(type='SCE')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        cfg = load_config(tmp_path / "config.py")
        set_backend(cfg, "mine")
        assert cfg.pipeline[0].backend == "mine" and OpenVideo(**{"backend": "mine"})
    finally:
        READERS.module_dict.pop("mine", None)
        sys.modules.pop("my_reader", None)
