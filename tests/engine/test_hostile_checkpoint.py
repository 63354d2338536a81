"""Small checkpoint files that stand for a lot of memory or time."""

from __future__ import annotations

import resource
import struct
import zipfile

import pytest
import torch

from sce_video.engine.checkpoint import describe_checkpoint_file, is_plain, load_checkpoint_file


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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"a\.pth "):
        load_checkpoint_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


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
