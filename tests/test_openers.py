"""Files are opened in one way, which does not wait for a FIFO or a device."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from sce_video.curation.selection import read_decisions
from sce_video.datasets.ava import read_key_frames
from sce_video.datasets.image_datasets import read_label_table
from sce_video.datasets.labelled import read_labelled
from sce_video.datasets.segments import read_segments
from sce_video.engine.checkpoint import file_sha256, load_checkpoint_file
from sce_video.engine.work_dir import LOCK, is_locked
from sce_video.evaluation import load_features
from sce_video.find.label_list import LabelList, SegmentList
from sce_video.jobs import RecordStore
from sce_video.runs.folder import read_run
from sce_video.runs.planned_config import planned_config
from sce_video.utils.errors import UserError
from sce_video.utils.plain_pickle import load_plain_pickle

REPO = Path(__file__).resolve().parents[1]

#: What reads a file of a user or of somebody else, by the name of the file.
READERS = {
    "features.npz": load_features,
    "labels.txt": lambda path: LabelList(path),
    "labels_segments.csv": lambda path: SegmentList(path),
    "decisions.csv": read_decisions,
    "train.csv": lambda path: read_labelled(str(path)),
    "train.txt": lambda path: read_labelled(str(path)),
    "segments.csv": lambda path: read_segments(str(path)),
    "table.tsv": read_label_table,
    "key_frames.jsonl": lambda path: list(read_key_frames(str(path))),
    "run.json": lambda path: planned_config(path.parent),
    "epoch_1.pth": load_checkpoint_file,
    "weights.safetensors": load_checkpoint_file,
    "epoch_2.pth": file_sha256,
    "official.pkl": load_plain_pickle,
    "features.npz.records": lambda path: RecordStore(path, "embed"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused(name, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises((OSError, ValueError, UserError)) as raised:
        READERS[name](path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [LOCK, "run.json", "history.jsonl", "online_evaluation.jsonl"])
def test_the_page_of_a_run_does_not_wait_for_a_pipe(name, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "iter": 1, "loss": 1.0}\n')
    os.mkfifo(tmp_path / name)
    assert not is_locked(tmp_path)
    record = read_run(tmp_path)
    assert not record.locked
    assert name != "run.json" or "is not a regular file" in " ".join(record.notes)


#: Files that open others of this package, not of a user.
_OWN_FILES = {"published/__init__.py", "find/search_page.py"}
_OWN_FILES |= {"pages/parts.py", "engine/config/check.py", "data_tools/prepare/official.py"}


def test_no_file_is_opened_in_another_way():
    """``open`` without the opener may only write the temporary file of an atomic one."""
    found = []
    for path in sorted((REPO / "sce_video").rglob("*.py")):
        name = path.relative_to(REPO / "sce_video").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            writes = any(isinstance(a, ast.Constant) and a.value in ("w", "wb") for a in node.args)
            opener = any(keyword.arg == "opener" for keyword in node.keywords)
            reads = called == "open" and not (writes or opener)
            if reads or called.endswith((".read_text", ".read_bytes")) or called == "os.open":
                found.append((name, called))
    others = [(name, called) for name, called in found if name not in _OWN_FILES]
    assert sorted(others) == [
        ("curation/comparison.py", "open"),  # a new file, which is removed at the end
        ("engine/run_json.py", "path.read_bytes"),  # sources of the package
        ("find/search_media.py", "Path(out).read_bytes"),  # that it has just made
        ("inference/clip_features.py", "status.read_text"),  # of the kernel: memory of the process
        ("utils/command.py", "os.open"),  # /dev/null
        ("utils/cores.py", "(group / 'cpu.max').read_text"),  # of the kernel, like the next ones
        ("utils/cores.py", "(group / f'cpu.cfs_{name}_us').read_text"),
        ("utils/cores.py", "Path('/proc/self/cgroup').read_text"),
        ("utils/cores.py", "Path('/proc/stat').read_text"),
        ("utils/files.py", "os.open"),  # the one way
    ]
