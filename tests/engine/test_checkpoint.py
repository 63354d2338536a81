"""Checkpoints are atomic, plain, and never run code."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

from sce_video.engine.checkpoint import (
    find_checkpoints,
    is_plain,
    load_checkpoint_file,
    pack_message_hub,
    random_states,
    save_checkpoint_file,
    set_random_states,
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
    """What mmengine 0.10.7 writes: a HistoryBuffer, which torch >= 2.6 refuses by itself."""
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


def test_getattr_serves_history_buffers_only(tmp_path):
    torch.save({"state_dict": Escape()}, tmp_path / "escape.pth")
    with pytest.raises(ValueError, match="__init__"):
        load_checkpoint_file(tmp_path / "escape.pth")


def test_our_message_hub_is_plain_and_comes_back(tmp_path):
    hub = MessageHub.get_instance("test_checkpoint_hub")
    for value in (1.0, 2.0, 4.0):
        hub.update_scalar("train/loss", value)
    hub.update_info("epoch", 3)
    hub.update_info("odd", object(), resumed=True)
    packed = pack_message_hub(hub.state_dict())
    save_checkpoint_file({"message_hub": packed}, tmp_path / "a.pth")
    read = torch.load(tmp_path / "a.pth", weights_only=True)["message_hub"]
    other = MessageHub.get_instance("test_checkpoint_hub_2")
    other.load_state_dict(unpack_message_hub(read))
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


def test_newest_first_and_no_other_files(tmp_path):
    for age, name in enumerate(["epoch_2.pth", "iter_7.pth", "epoch_1.pth"]):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, ns=(1, 10**9 * (100 - age)))
    for name in ("epoch_3.pth.tmp17", "backbone.pth", "last_checkpoint"):
        (tmp_path / name).write_bytes(b"")
    assert [p.name for p in find_checkpoints(tmp_path)] == [
        "epoch_2.pth",
        "iter_7.pth",
        "epoch_1.pth",
    ]


def test_random_states_come_back(tmp_path):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    np.random.standard_normal()  # leaves a cached Gaussian behind
    save_checkpoint_file({"r": random_states()}, tmp_path / "r.pth")

    def draws():
        return random.random(), np.random.standard_normal(), torch.rand(2).tolist()

    expected = draws()
    draws()
    set_random_states(load_checkpoint_file(tmp_path / "r.pth")["r"])
    assert draws() == expected


def test_plain():
    assert is_plain({"a": [1, (2.0, "x"), None], 3: True})
    assert not is_plain({"a": np.float64(1)}) and not is_plain([object()])
