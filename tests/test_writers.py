"""Everything that writes a file replaces it as a whole: readers, full disks and kills see no half.

Each writer here is called twice with different content for the same path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.disk_faults import contents, file_size_limit
from matplotlib.figure import Figure

from sce_video.data_tools.prepare.lists import write_outputs
from sce_video.data_tools.verify import Problem, write_table
from sce_video.datasets import BadFileReport
from sce_video.datasets.ava import Action
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.evaluation import Rows, save_features, save_scores
from sce_video.evaluation.functional.frame_map import write_result_csv
from sce_video.find.store import FileRecord, FileStore, IndexHeader
from sce_video.options.data_commands import PrepareOptions
from sce_video.pages.frames import save_figure
from sce_video.pages.gallery import GalleryEntry, write_gallery
from sce_video.runs.report import TITLE, write_report
from sce_video.utils.files import WriteError, write_json, write_text

REPO = Path(__file__).resolve().parents[1]
HEADER = IndexHeader("/videos", "c.pth", "0" * 64, model={}, num_clips=1, num_crops=1)


def rows(number: int) -> Rows:
    values = torch.rand(6, 4, generator=torch.Generator().manual_seed(number))
    paths = [f"video{i}.mp4" for i in range(6)]
    return Rows(values=values, labels=torch.arange(6) % 3, indices=torch.arange(6), paths=paths)


def records(number: int) -> dict[str, FileRecord]:
    return {f"{i}.mp4": FileRecord(i, number, np.full(4, number, np.float32)) for i in range(4)}


def figure(number: int) -> Figure:
    drawn = Figure()
    drawn.add_subplot().plot([0, number])
    return drawn


def detections(number: int) -> dict:
    box = np.array([[0.1, 0.1, 0.5, 0.5]], np.float32)
    return {(f"v{i}", 902): (box, np.full((1, 2), number / 10, np.float32)) for i in range(4)}


def bad_files(path: Path, number: int) -> None:
    path.unlink(missing_ok=True) if number == 1 else None
    report = BadFileReport(path, num_files=9, max_bad_share=1.0)
    report.add([("a.mp4", "cannot be decoded " * 5)])


WRITERS = {
    "x.txt": lambda p, n: write_text(p, f"{n}" * 99),
    "x.json": lambda p, n: write_json(p, {"n": [n] * 99}),
    "epoch_1.pth": lambda p, n: save_checkpoint_file({"w": torch.full((999,), n)}, p),
    "features.npz": lambda p, n: save_features(p, rows(n), {}),
    "scores.npz": lambda p, n: save_scores(p, rows(n), {}),
    "records.npz": lambda p, n: FileStore(p).write(HEADER, records(n)),
    "index.json": lambda p, n: FileStore(p).describe(HEADER, records(n)),
    "report.md": lambda p, n: write_report(p, f"{TITLE}\n{n}" * 9),
    "query.html": lambda p, n: write_gallery(p, [GalleryEntry(f"q{n}", "q")], []),
    "figure.png": lambda p, n: save_figure(figure(n), p),
    "figure.svg": lambda p, n: save_figure(figure(n), p),
    "bad_files.jsonl": bad_files,
    "list.txt": lambda p, n: write_outputs(
        {p.name: f"{n} a" * 99}, PrepareOptions(name="ucf101", root=p.parent, force=True)
    ),
    "problems.tsv": lambda p, n: write_table(p, [Problem("missing", f"{n}.mp4", 1, "no " * 40)]),
    "ava.csv": lambda p, n: write_result_csv(
        p, detections(n), [Action(1, "sit", True), Action(2, "run", True)]
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_not_rewritten(name, tmp_path):
    """A second name of the old file keeps its content: nothing was written into it."""
    path = tmp_path / name
    WRITERS[name](path, 1)
    old = path.read_bytes()
    os.link(path, tmp_path / "link")
    WRITERS[name](path, 2)
    assert path.read_bytes() != old and (tmp_path / "link").read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == sorted(["link", name])


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_be_written_leaves_the_old_one(name, tmp_path, capfd):
    path = tmp_path / name
    WRITERS[name](path, 1)
    old = contents(tmp_path)
    capfd.readouterr()
    with file_size_limit(64), pytest.raises(WriteError) as error:
        WRITERS[name](path, 2)
    assert str(error.value) == f"cannot write {path}: File too large"
    assert contents(tmp_path) == old
    assert capfd.readouterr() == ("", "")


#: What writes into a file in place, or renames.
_IN_PLACE = re.compile(
    r"""\.savefig\(|imwrite\(|np\.save|torch\.save\(|\.write_(text|bytes)\(|os\.(replace|rename)\(|"""
    r"""\.rename\(|shutil\.(copy|move)|json\.dump\(|tofile\(|open\([^)]*["'][wax]b?\+?["']"""
)
#: Files that may, and how often.
_ALLOWED = {
    "sce_video/utils/files.py": 3,  # the mechanism: temporary files, their rename; appending
    "sce_video/engine/checkpoint.py": 2,  # to the temporary file of atomic_file
    "sce_video/evaluation/functional/frame_map.py": 1,  # as before
    "sce_video/inference/npz_files.py": 1,  # as before
    "sce_video/evaluation/online_evaluation_hook.py": 1,  # moves an older run's file away
    "sce_video/pages/frames.py": 1,  # to memory
    "sce_video/data_tools/generated.py": 1,  # to memory
    "sce_video/jobs/job_runner.py": 1,  # renames outputs, see tests/jobs/test_job_runner.py
    "sce_video/pages/gallery.py": 1,  # to memory
    "sce_video/interop/export/exported_videos.py": 2,  # an unfinished folder and its rename
    "sce_video/find/table_store.py": 1,  # the rename of a new table, complete beside its place
    "sce_video/interop/export/networks.py": 1,  # to the temporary file of atomic_file
    "sce_video/interop/export/viewers.py": 1,  # in an unfinished folder
    "sce_video/runs/sweep.py": 1,  # a log, the output of other processes
    "sce_video/find/predict.py": 1,  # to the temporary file of atomic_file
    "sce_video/curation/comparison.py": 1,  # an unfinished file, which is removed at the end
    "sce_video/pages/segments_page.py": 1,  # to the temporary file of atomic_file
    "tools/dev/golden.py": 1,  # a copy inside a scratch folder
    "tools/dev/visited_files.py": 1,  # a config in a temporary folder
}


def test_no_file_is_written_in_another_way():
    found = {}
    for folder in ("sce_video", "tools"):
        for path in sorted((REPO / folder).rglob("*.py")):
            count = len(_IN_PLACE.findall(path.read_text()))
            if count:
                found[path.relative_to(REPO).as_posix()] = count
    assert found == _ALLOWED
