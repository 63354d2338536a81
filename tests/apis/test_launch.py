"""What a user is told of an error of their making."""

from __future__ import annotations

import pytest

from sce_video.apis.launch import explain
from sce_video.datasets import VideoDecodeError
from sce_video.engine.checkpoint import load_checkpoint_file


@pytest.mark.parametrize(
    "error",
    [
        ValueError("tau must be positive"),
        FileExistsError(17, "File exists", "run.mp4"),
        PermissionError(13, "Permission denied", "/readonly"),
        NotADirectoryError(20, "Not a directory", "a/b"),
    ],
)
def test_wrong_values_and_paths_are_one_line(error):
    told = explain(error)
    assert told == str(error) and "\n" not in told


def test_what_happens_inside_a_step_keeps_its_traceback():
    def run_iter():
        raise ValueError("from within")

    with pytest.raises(ValueError) as raised:
        run_iter()
    assert explain(raised.value) is None and explain(KeyError("a")) is None


def test_a_bad_file_met_by_a_worker_is_its_last_line():
    text = f"Caught in worker 0\nTraceback ...\n{VideoDecodeError.__name__}: a.mp4: is empty"
    assert explain(RuntimeError(text)) == "a.mp4: is empty"


def test_a_file_that_torch_never_wrote_is_no_checkpoint(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"\0\0\0\x20ftypisom" * 100)
    with pytest.raises(ValueError, match=r"clip\.mp4 is not a readable checkpoint: it is no file"):
        load_checkpoint_file(path)
