"""Small checkpoint files that stand for a lot of memory or time."""

from __future__ import annotations

import collections
import enum
import pickle
import struct
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sce_video.engine import weights
from sce_video.engine.checkpoint import (
    describe_checkpoint_file,
    is_plain,
    load_checkpoint_file,
    load_third_party_checkpoint,
)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**12),
        torch.sparse_coo_tensor(
            torch.zeros(1, 1), torch.zeros(1), (10**12,), check_invariants=True
        ),
        torch.empty(10**12, device="meta"),
    ],
    ids=["expanded", "sparse", "meta"],
)
def test_a_tensor_without_its_data(tmp_path, tensor):
    torch.save({"state_dict": {"a": tensor}}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth .*without its data"):
        load_checkpoint_file(tmp_path / "evil.pth")


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_that_share_memory_are_read(tmp_path, legacy):
    shared = torch.zeros(6)
    content = {"a": shared[:2], "b": shared[3:].reshape(3, 1), "c": shared, "d": torch.zeros(0)}
    torch.save(content, tmp_path / "good.pth", _use_new_zipfile_serialization=not legacy)
    assert load_checkpoint_file(tmp_path / "good.pth")["b"].shape == (3, 1)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_more_tensors_than_any_network_has(tmp_path, monkeypatch, kind):
    """They are counted before one of them is read."""
    monkeypatch.setattr(weights, "_MOST_TENSORS", 30)
    for count, file in ((20, tmp_path / f"few.{kind}"), (40, tmp_path / f"many.{kind}")):
        content = {f"x{i}": torch.zeros(1) for i in range(count)}
        save_file(content, file) if kind == "safetensors" else torch.save(content, file)
    few = load_checkpoint_file(tmp_path / f"few.{kind}")
    assert len(few.get("state_dict", few)) == 20
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr("safetensors.torch.load_file", None)
    with pytest.raises(ValueError, match=rf"many\.{kind} is not .*4\d tensors, and at most 30"):
        load_checkpoint_file(tmp_path / f"many.{kind}")


def rewrite(source, target, compression, change):
    """Copy an archive; ``change`` maps a name and its bytes to other bytes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))


def test_compressed_records(tmp_path):
    """22 KB that torch.load unpacks to 20 MB, and 1000 times as much of it to 20 GB."""
    torch.save({"state_dict": {"a": torch.zeros(5_000_000)}}, tmp_path / "a.pth")
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        rewrite(tmp_path / "a.pth", tmp_path / "b.pth", compression, lambda name, data: data)
        if compression == zipfile.ZIP_STORED:
            assert load_checkpoint_file(tmp_path / "b.pth")["state_dict"]["a"].shape == (5_000_000,)
        else:
            assert (tmp_path / "b.pth").stat().st_size < 30_000
            with pytest.raises(ValueError, match=r"b\.pth is not .*: its records are compressed"):
                load_checkpoint_file(tmp_path / "b.pth")


def test_a_legacy_file_that_claims_a_large_storage(tmp_path):
    path = tmp_path / "a.pth"
    torch.save({"a": torch.arange(77.0)}, path, _use_new_zipfile_serialization=False)
    claimed = struct.pack("<i", 2**30)
    data = path.read_bytes().replace(b"K\x4d", b"J" + claimed)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pth "):
        load_checkpoint_file(path)


def test_lists_that_are_shared_many_times(tmp_path):
    node = [1]
    for _ in range(60):
        node = [node, node]
    torch.save({"meta": {"benchmark": node, "epoch": 3}}, tmp_path / "evil.pth")
    described = describe_checkpoint_file(tmp_path / "evil.pth")
    assert described["epoch"] == 3 and "benchmark" not in described
    node.append(node)
    assert not is_plain(node) and not is_plain([[0] * 1000] * 1001)
    assert is_plain([[0] * 1000] * 900)


# Checkpoints of Lightning: objects of packages that are not here, and nothing of them is run.


@pytest.fixture
def package(monkeypatch):
    """A package with classes as in omegaconf and Lightning, importable while files are written."""
    module = types.ModuleType("strange_package")

    class DictConfig:
        def __init__(self):
            self.content = {"type": "resnet50"}

        def __getstate__(self):
            return {"_content": self.content, "_metadata": self.__class__}

    class AttributeDict(dict):
        pass

    class Mode(enum.Enum):
        MIN = "min"

    for kind in (DictConfig, AttributeDict, Mode):
        kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def lightning_file(package, path: Path) -> dict[str, torch.Tensor]:
    """A file with weights and with what Lightning and hydra put beside them."""
    weights = {"trunk.conv1.weight": torch.rand(2, 3), "queue_ptr": torch.zeros(1).long()}
    loops = collections.defaultdict(list, {"epoch": [1, 2]})
    content = {
        "epoch": 3,
        "state_dict": collections.OrderedDict(weights),
        "hyper_parameters": package.AttributeDict(trunk=package.DictConfig(), lr=0.3),
        "callbacks": {package.DictConfig: {"mode": package.Mode.MIN, "best": Path("a.ckpt")}},
        "mode": Runs(getattr, package.Mode, "MIN"),  # as Python 3.11.0 to 3.11.3 pickle an Enum
        "loops": loops,
        "hparams_name": "kwargs",
    }
    torch.save(content, path)
    return weights


def test_weights_are_read_and_objects_are_not_built(package, tmp_path, monkeypatch):
    weights = lightning_file(package, tmp_path / "a.ckpt")
    monkeypatch.delitem(sys.modules, package.__name__)
    with pytest.raises(ValueError, match="contains more than plain data"):
        load_checkpoint_file(tmp_path / "a.ckpt")
    content = load_third_party_checkpoint(tmp_path / "a.ckpt")
    assert content["state_dict"].keys() == weights.keys()
    assert all(torch.equal(content["state_dict"][k], v) for k, v in weights.items())
    assert content["epoch"] == 3 and content["loops"] == {"epoch": [1, 2]}
    assert content["hyper_parameters"]["lr"] == 0.3
    assert vars(content["hyper_parameters"]["trunk"]) == {}
    assert package.__name__ not in sys.modules


class Runs:
    """Unpickled, it calls a function with arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_nothing_that_the_file_names_is_called(tmp_path):
    marker = tmp_path / "marker"
    torch.save(
        {
            "state_dict": {"w": torch.ones(1)},
            "a": Runs(eval, f"open({str(marker)!r}, 'w')"),
            "b": Runs(open, str(marker), "w"),
            "c": Runs(pickle.loads, b"cos\nsystem\n."),
        },
        tmp_path / "hostile.ckpt",
    )
    content = load_third_party_checkpoint(tmp_path / "hostile.ckpt")
    assert torch.equal(content["state_dict"]["w"], torch.ones(1))
    assert not marker.exists()


def test_names_of_the_operating_system_are_refused(tmp_path):
    import os

    torch.save({"a": Runs(os.system, f"touch {tmp_path / 'marker'}")}, tmp_path / "hostile.ckpt")
    with pytest.raises(
        ValueError, match="that could run code: Trying to load unsupported GLOBAL posix"
    ):
        load_third_party_checkpoint(tmp_path / "hostile.ckpt")
    assert not (tmp_path / "marker").exists()


def test_stand_ins_end_with_the_reading(package, tmp_path):
    lightning_file(package, tmp_path / "a.ckpt")
    load_third_party_checkpoint(tmp_path / "a.ckpt")
    assert not [x for x in torch.serialization.get_safe_globals() if "strange" in str(x)]
    with pytest.raises(ValueError, match="contains more than plain data"):
        load_checkpoint_file(tmp_path / "a.ckpt")


def test_missing_and_damaged_files(package, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_third_party_checkpoint(tmp_path / "none.ckpt")
    lightning_file(package, tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a readable checkpoint: it is truncated"):
        load_third_party_checkpoint(tmp_path / "a.ckpt")
