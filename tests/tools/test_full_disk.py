"""Tools on a full disk: one line, status 2, the old files intact, nothing half-written."""

from __future__ import annotations

import errno
import os
import stat

import pytest
from helpers import official_trees
from helpers.disk_faults import contents, damage
from helpers.recognition import FINETUNE, RETRIEVAL, small_options
from helpers.results_files import K400, results, write
from helpers.run_tool import load
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.models.backbones import ResNet3dSlowPath


@pytest.fixture(scope="module")
def data(tmp_path_factory, split_videos):
    """Inputs of all tools and an index; not to be changed."""
    folder = tmp_path_factory.mktemp("data")
    for i in range(3):
        write_lossless(folder / f"videos/{'ab'[i % 2]}/{i}.mp4", moving_frames(20, seed=i))
    save_tiny(folder / "tiny.pth")
    write(folder / "runs/results.json", results({"top1": 0.6}, "linear", K400))
    backbone = ResNet3dSlowPath(depth=18, base_channels=4).state_dict()
    backbone = {f"backbone.{name}": value for name, value in backbone.items()}
    save_checkpoint_file({"state_dict": backbone, "meta": {}}, folder / "encoder.pth")
    official_trees.make_ucf101(folder / "ucf101")
    index = [folder / "videos", "--checkpoint", folder / "tiny.pth", "--workers", "0"]
    assert load("index").main([*map(str, index), "--out", str(folder / "index")]) == 0
    return folder


@pytest.fixture
def full_for(monkeypatch):
    """``full_for(name)``: the disk is full for files of this name."""

    def set_up(name):
        fsync, write = os.fsync, os.write

        def check(descriptor):
            file = os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2]
            named = file.startswith((name, f".{name}."))
            if named and stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", lambda number: check(number) or fsync(number))
        monkeypatch.setattr(os, "write", lambda number, *a: check(number) or write(number, *a))

    return set_up


def extraction(videos):
    changes = {
        "model.backbone.base_channels": 4,
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration": 0.4,
        "test_dataloader.dataset.pipeline.UniformClips.num_frames": 2,
        "test_dataloader.dataset.pipeline.UniformClips.num_clips": 1,
        "test_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
        "test_dataloader.dataset.pipeline.PackVideo.crop_size": 36,
        "test_dataloader.num_workers": 0,
    }
    source = [str(videos), "--ann-file", "test_split1.txt", "--cfg-options"]
    return [*source, *(f"{key}={value}" for key, value in changes.items())]


def extract(d, o, v):
    given = ["--config", RETRIEVAL, "--checkpoint", d / "encoder.pth", "--out", o / "f.npz"]
    return [*given, *extraction(v)]


#: Tool; its words, or a function of (data D, out O, videos with lists V); files that cannot be
#: written.
TOOLS = [
    ("report", "D/runs --out O", ["report.html"]),
    (
        "index",
        "D/videos --checkpoint D/tiny.pth --workers 0 --out O",
        ["features.npz", "index.json"],
    ),
    (
        "search",
        "D/videos/a/0.mp4 --index D/index --json O/q.json --html O/q.html",
        ["q.json", "q.html"],
    ),
    ("data/verify", "V/test_split1.txt --data-root V --out O/table.tsv --workers 1", ["table.tsv"]),
    ("prepare", "ucf101 D/ucf101 --out O --no-check", ["test_split2.txt"]),
    ("prepare", "digits O/digits", ["0001.png"]),
    ("embed", extract, ["f.npz"]),
]
CASES = [(tool, name, arguments) for tool, arguments, names in TOOLS for name in names]


@pytest.mark.parametrize(
    ("tool", "name", "arguments"), CASES, ids=[f"{tool}-{name}" for tool, name, _ in CASES]
)
def test_one_line_and_nothing_half_written(
    tool, name, arguments, data, split_videos, tmp_path, full_for, capsys
):
    if isinstance(arguments, str):
        folders = {"D": data, "O": tmp_path, "V": split_videos}
        parts = (word.partition("/") for word in arguments.split())
        words = [f"{folders.get(first, first)}{slash}{rest}" for first, slash, rest in parts]
    else:
        words = [str(word) for word in arguments(data, tmp_path, split_videos)]
    full_for(name)
    before = contents(data)
    assert load(tool).main(words) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"{tool.rpartition('/')[2]}.py: error: cannot write ")
    assert f"/{name}: No space left on device" in last
    left = [path.rpartition("/")[2] for path in contents(tmp_path)]
    assert name not in left and not [file for file in left if file.endswith(".part")]
    assert contents(data) == before


def test_a_damaged_checkpoint_is_named_with_its_record(data, split_videos, tmp_path, capsys):
    damaged = tmp_path / "tiny.pth"
    damaged.write_bytes((data / "tiny.pth").read_bytes())
    record = damage(damaged)
    recipe = ["--cfg-options", *small_options(split_videos)]
    work_dir = ["--work-dir", tmp_path / "w"]
    for tool, words in (
        ("index", [data / "videos", "--checkpoint", damaged, "--out", tmp_path / "i"]),
        ("test", [FINETUNE, damaged, *work_dir, *recipe]),
        ("train", [FINETUNE, "--pretrained", damaged, *work_dir, *recipe]),
        ("embed", ["--config", RETRIEVAL, "--checkpoint", damaged, "--out", tmp_path / "f.npz"]),
        ("convert/from_pytorchvideo", [damaged, tmp_path / "c.pth"]),
        ("convert/from_layout", [damaged, tmp_path / "c.pth", "--layout", "torchvision"]),
    ):
        if tool == "embed":
            words += extraction(split_videos)
        assert load(tool).main([str(word) for word in words]) == 2, tool
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"error: {damaged} is not a readable checkpoint: it is damaged: bits of" in last
        assert record in last
