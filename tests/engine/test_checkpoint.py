"""Checkpoints are atomic, plain, and never run code."""

from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

from sce_video.engine.checkpoint import (
    load_checkpoint_file,
    pack_message_hub,
    save_checkpoint_file,
    unpack_message_hub,
)


class Evil:
    """Would touch a file when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": Evil(tmp_path / "ran")}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth.*could run code"):
        load_checkpoint_file(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_mmengines_own_checkpoint_is_read(tmp_path):
    """mmengine 0.10.7 writes a HistoryBuffer, which torch >= 2.6 alone refuses."""
    buffer = HistoryBuffer([1.0, 2.0], [1, 1])
    buffer.update(np.float64(3.5))
    file = tmp_path / "mmengine.pth"
    torch.save({"message_hub": {"log_scalars": {"train/loss": buffer}}}, file)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    read = load_checkpoint_file(file)["message_hub"]["log_scalars"]["train/loss"]
    assert read.data[0].tolist() == [1.0, 2.0, 3.5]
    assert read.mean() == pytest.approx(6.5 / 3)


class Escape:
    """Tries to reach a module's globals through the getattr that a HistoryBuffer needs."""

    def __reduce__(self):
        return getattr, (HistoryBuffer, "__init__")


def test_getattr_works_for_history_buffers_only(tmp_path):
    torch.save({"state_dict": Escape()}, tmp_path / "escape.pth")
    with pytest.raises(ValueError, match="__init__"):
        load_checkpoint_file(tmp_path / "escape.pth")


class FakeObjects:
    """An object array over bytes that the file chooses: each word points to a "Python object".

    With the real ``numpy.ndarray`` allow-listed this crashes the process or runs code.
    """

    def __reduce__(self):
        return np.ndarray, ((1,), ObjectDtype(), struct.pack("<Q", 0x4141414141414141))


class ObjectDtype:
    def __reduce__(self):
        return np.dtype, ("O8", False, True)


class OverHistory:
    """The same inside the arrays of a HistoryBuffer."""

    def __reduce__(self):
        return HistoryBuffer, (FakeObjects(), FakeObjects())


class ByReconstruct:
    """The same through ``_reconstruct`` and ``__setstate__`` of an array."""

    def __reduce__(self):
        state = (1, (1,), ObjectDtype(), False, struct.pack("<Q", 0x4141414141414141))
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state


ATTACKS = [
    (attack, key)
    for key in ("state_dict", "message_hub")
    for attack in (FakeObjects, OverHistory, ByReconstruct)
]


def test_no_array_of_objects_is_built_over_the_bytes_of_a_file(tmp_path):
    """In a forked process, which a successful attack would end."""
    paths = [tmp_path / f"{attack.__name__}-{key}.pth" for attack, key in ATTACKS]
    for path, (attack, key) in zip(paths, ATTACKS, strict=True):
        torch.save({key: {"log_scalars": {"train/loss": attack()}}}, path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for path in paths:
            try:
                answer = f"read: {load_checkpoint_file(path)!r}"
            except ValueError as error:
                answer = f"refused: {error}"
            os.write(writer, answer.replace("\n", " ").encode() + b"\n")
        os._exit(0)
    os.close(writer)
    with open(reader) as answers:
        lines = answers.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, lines
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith("refused:") and path.name in line


@pytest.mark.parametrize("value", [np.ndarray, np.dtype, HistoryBuffer, getattr, (np.ndarray,)])
def test_no_stand_in_is_left_in_the_data(tmp_path, value):
    torch.save({"state_dict": {"x": value}}, tmp_path / "names.pth")
    with pytest.raises(ValueError, match=r"names\.pth"):
        load_checkpoint_file(tmp_path / "names.pth")


def test_numpy_numbers_and_arrays_of_mmengine_files_are_read(tmp_path):
    meta = {"lr": np.float64(0.5), "steps": (np.arange(3), np.int64(7)), "seen": {1, 2}}
    torch.save({"meta": meta, "state_dict": OrderedDict(w=torch.ones(2))}, tmp_path / "a.pth")
    read = load_checkpoint_file(tmp_path / "a.pth")
    assert read["meta"]["lr"] == 0.5 and read["meta"]["steps"][1] == 7
    assert read["meta"]["steps"][0].tolist() == [0, 1, 2] and read["meta"]["seen"] == {1, 2}
    assert torch.equal(read["state_dict"]["w"], torch.ones(2))


def test_our_message_hub_is_plain_and_is_restored(tmp_path):
    hub = MessageHub.get_instance("test_checkpoint_hub")
    for value in (1.0, 2.0, 4.0):
        hub.update_scalar("train/loss", value)
    hub.update_info("epoch", 3)
    hub.update_info("odd", object(), resumed=True)
    packed = pack_message_hub(hub.state_dict())
    save_checkpoint_file({"message_hub": packed}, tmp_path / "a.pth")
    read = torch.load(tmp_path / "a.pth", weights_only=True)["message_hub"]
    other = MessageHub.get_instance("test_checkpoint_hub_2")
    other.load_state_dict(unpack_message_hub(read, "work"))
    assert other.get_scalar("train/loss").data[0].tolist() == [1.0, 2.0, 4.0]
    assert other.get_scalar("train/loss").mean() == pytest.approx(7 / 3)
    assert other.get_info("epoch") == 3
    assert other.get_info("odd") is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "epoch_1.pth"
    save_checkpoint_file({"x": torch.ones(3)}, file)
    with pytest.raises(Exception, match="pickle|lambda|local"):
        save_checkpoint_file({"x": torch.zeros(3), "bad": lambda: None}, file)
    assert torch.equal(load_checkpoint_file(file)["x"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["epoch_1.pth"]


def test_truncated_and_missing_files_are_named(tmp_path):
    file = tmp_path / "epoch_1.pth"
    save_checkpoint_file({"x": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[:1500])
    with pytest.raises(ValueError, match=r"epoch_1\.pth is not a readable checkpoint"):
        load_checkpoint_file(file)
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        load_checkpoint_file(tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="list"):
        load_checkpoint_file(tmp_path / "list.pth")


def test_a_checkpoint_names_no_files_outside_of_its_work_dir():
    """Hooks remove what it names: the best one before, the oldest, that of a stopped training."""
    info = {
        "best_ckpt": "/home/someone",
        "best_ckpt_knn": "/elsewhere/best_knn_epoch_3.pth",
        "best_ckpt_top1": 7,
        "last_ckpt": "../other/epoch_4.pth",
        "keep_ckpt_ids": [2, "../../x", 3],
        "stop_checkpoint": "../../a_film.mp4",
        "best_score": 0.5,
    }
    state = {"log_scalars": {}, "runtime_info": info, "resumed_keys": {}}
    assert unpack_message_hub(state, "/work")["runtime_info"] == {
        "best_ckpt_knn": "/work/best_knn_epoch_3.pth",
        "last_ckpt": "/work/epoch_4.pth",
        "keep_ckpt_ids": [2, 3],
        "best_score": 0.5,
    }
    info["stop_checkpoint"] = "/home/iter_5.pth"
    assert unpack_message_hub(state, "/work")["runtime_info"]["stop_checkpoint"] == "iter_5.pth"
