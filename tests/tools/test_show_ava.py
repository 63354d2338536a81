"""tools/analysis/show_ava.py on any video, and its errors; key frames: tests/e2e/test_ava.py."""

from __future__ import annotations

import av
import pytest
from helpers.ava_small import RECIPE, options
from helpers.run_tool import load


@pytest.fixture(scope="module")
def tool():
    return load("analysis/show_ava")


@pytest.fixture(scope="module")
def trained(ava_checkpoint):
    """A checkpoint of 60 epochs; the training takes seconds, so the tests that use it are slow."""
    return str(ava_checkpoint)


@pytest.mark.slow
def test_any_other_video(tool, ava_root, trained, tmp_path, capsys):
    out = tmp_path / "clip.mp4"
    arguments = [str(RECIPE), trained, "--video", str(ava_root / "videos/aa.mp4"), "--at", "2.0"]
    arguments += ["--boxes", "0.05,0.2,0.45,0.9", "0.55,0.2,0.95,0.9", "--out", str(out)]
    assert tool.main([*arguments, "--top", "1", "--cfg-options", *options(ava_root)]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert "stand 0." in first and "watch 0." in second
    with av.open(str(out)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 20, "one second before and after, at the film's 10 a second"
    assert min(frames[0].shape[:2]) >= 480


@pytest.mark.slow
def test_errors_name_the_cause(tool, ava_root, trained, capsys):
    film = str(ava_root / "videos/aa.mp4")
    for words, message in (
        ("--key aa,1700 --out x.png", "'aa,1700' is not a key frame of"),
        ("--key aa --out x.png", "is not a key frame of"),
        ("--video FILM --out x.png", "needs --at SECOND and --boxes"),
        ("--video FILM --at 1 --boxes 0,0,1 --out x.png", "four numbers"),
        ("--video FILM --at 1 --boxes 0.5,0,0.1,1 --out x.png", "must have 0 <= x1 < x2"),
        ("--video FILM --at 99 --boxes 0,0,1,1 --out x.png", "no frame at second 99"),
        ("--key bb,902 --out x.gif", "must end in"),
    ):
        given = [film if word == "FILM" else word for word in words.split()]
        assert tool.main([str(RECIPE), trained, *given, "--cfg-options", *options(ava_root)]) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
