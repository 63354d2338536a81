"""The command look: both modes, and errors."""

from __future__ import annotations

import re

import pytest
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.commands import look


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Make a pretrained network, two videos and a broken one."""
    folder = tmp_path_factory.mktemp("look")
    save_tiny(folder / "run" / "epoch_1.pth")
    for i, name in enumerate("ab"):
        write_lossless(folder / f"{name}.mp4", moving_frames(20, seed=i))
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


def run(*words):
    return look.main([*map(str, words), "--device", "cpu"])


def test_a_classifier_explains_its_class(folder_classifier, files, tmp_path, capsys):
    out = tmp_path / "new" / "look.html"
    videos = (files / "a.mp4", files / "broken.mp4", files / "b.mp4")
    assert run(folder_classifier, *videos, "--class", "class1", "--out", out) == 1
    printed = capsys.readouterr().out
    assert "a.mp4: class class1, probability 0." in printed and "b.mp4: class class1" in printed
    assert f"left out: {files / 'broken.mp4'}: cannot be opened" in printed
    assert "clips of 2 frames with 36 x 36 pixels; 2 x 2 x 2 cells" in printed
    page = out.read_text()
    assert "Evidence for class1" in page and "added to the score" in page
    assert page.count("<section") == 2 and page.count("<img") == 8


def test_a_run_finds_the_marked_frame(files, tmp_path, capsys):
    out = tmp_path / "look.png"
    words = ("--query", files / "a.mp4", "--key", files / "b.mp4", "--cell", "1,0", "--frame", 2)
    assert run(files / "run", *words, "--size", 64, "--clips", 2, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "a.mp4: cell 1,0 of frame 2 at 0.44 s" in printed
    assert "b.mp4, clip 2 of 2: most similar: at 0." in printed
    assert out.stat().st_size > 10_000


def test_mistakes_are_one_line(files, folder_classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = {
        "RUN": files / "run",
        "A": files / "a.mp4",
        "BAD": files / "broken.mp4",
        "CLASSES": folder_classifier,
    }
    for words, message in (
        ("RUN A", "has no classifier .* --query FILE --key FILE"),
        ("RUN --query A", "are needed together"),
        ("RUN --query A --key A --class x", "--class and --classes explain"),
        ("RUN --query A --key A --frame 7", "frames are 0 to"),
        ("RUN --query A --key BAD", "broken.mp4: cannot be opened"),
        ("RUN --query A --key A --scale 2 1", "--scale must be two numbers, the lower"),
        ("RUN A --frame 1", "--frame and --cell select a part of a query"),
        ("RUN A --at 1 --clips 2", "Remove --clips"),
        ("CLASSES BAD", "none of the files can be decoded: .*broken"),
        ("CLASSES A --class clas0", "Did you mean 'class0'"),
    ):
        given = [named.get(word, word) for word in words.split()]
        assert run(*given, "--out", "x.png") == 2
        error = capsys.readouterr().err
        assert error.startswith("look.py: error: ") and len(error.splitlines()) == 1
        assert re.search(message, error), error
        assert not (tmp_path / "x.png").exists()
