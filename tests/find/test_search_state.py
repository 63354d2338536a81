"""The page of an index of windows: moments in the list and in results, played from their start."""

import shlex
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames
from helpers.videos import write_video

from sce_video.commands.index import main
from sce_video.datasets.clip_sampling import Windows
from sce_video.find.index import build_index, read_index
from sce_video.find.index_network import IndexNetwork
from sce_video.find.label_list import LabelList
from sce_video.find.refined_moments import refine_moments, windows_near
from sce_video.find.search import search
from sce_video.find.search_api import SearchRequest
from sce_video.find.search_media import CallError
from sce_video.find.search_state import SearchState
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.options.command_line import parse
from sce_video.options.search import SearchOptions
from sce_video.options.training import FinetuneOptions
from sce_video.runs import finetune
from sce_video.runs.finetune_subject import labelled_parts


@pytest.fixture(scope="module")
def searched(tmp_path_factory, model):
    """A server of an index with six windows of one video and one of another."""
    folder = tmp_path_factory.mktemp("windows")
    write_video(folder / "videos" / "a" / "long.mp4", moving_frames(160, seed=3))
    write_video(folder / "videos" / "short.mp4", moving_frames(30, seed=9))
    options = ViewOptions(num_clips=1)
    build_index(model, folder / "videos", folder / "index", options, windows=Windows(2.0, 1.0))
    labels = LabelList(folder / "none.txt")
    state = SearchState(read_index(folder / "index"), IndexNetwork(device="cpu"), labels)
    state.start()
    yield SimpleNamespace(folder=folder, state=state)
    state.close()


def test_a_window_searches_without_its_own_frames(state):
    found = state.search(SearchRequest(like=[{"row": 2}], k=10))
    assert all(not (m.path == "a/long.mp4" and m.start < 4 and m.end > 2) for m in found)
    assert state.describe().spans[2] == (2.0, 4.0)
    assert state.set_label([0, 1, 2], "waves").label == [0] * 6 + [-1]  # of the whole video


@pytest.mark.parametrize("centred", [False, True])
def test_refined_moments_are_those_of_the_command(state, searched, model, centred):
    search = SearchRequest(like=[{"row": 2}], k=10, refined=True, centred=centred)
    found = state.search(search)
    refined = state.refine(search, found)
    index = read_index(searched.folder / "index")
    without = {"a/long.mp4": [(2.0, 4.0)]}
    feature = np.asarray(index.features[2])
    near = partial(windows_near, model, index.options)
    expected = refine_moments(index, feature, found, near, without=without, centred=centred)
    assert refined == expected and not refined[1]
    assert max(m.end - m.start for m in found) > 2.0  # merged, but refined to single windows
    assert all(m.end - m.start <= 2.0 for m in refined[0])


def test_moments_that_cannot_be_refined_are_named(state, searched, monkeypatch):
    search = SearchRequest(like=[{"row": 2}], k=10, refined=True)
    found = state.search(search)
    hidden = searched.folder / "videos" / "a" / "hidden"
    video = hidden.with_name("long.mp4")
    video.rename(hidden)
    try:
        refined, failures = state.refine(search, found)
    finally:
        hidden.rename(video)
    moved = [m for m in found if m.path == "a/long.mp4"]
    assert moved and [path for path, _ in failures] == ["a/long.mp4"] * len(moved)
    assert all(replace(m, rank=1) in [replace(r, rank=1) for r in refined] for m in moved)
    monkeypatch.setattr(state, "_network", IndexNetwork("gone.pth", device="cpu"))
    with pytest.raises(CallError, match=r"no checkpoint at gone\.pth"):
        state.refine(search, found)


def test_labelled_segments_are_indexed(searched, model, tmp_path, capsys):
    """Rows of ``path,start,end,label``: features of the segments, labels, moments on the page."""
    spans = ((0.0, 2.0), (1.5, 3.0), (4.0, 6.0))
    rows = [f"a/long.mp4,{start},{end},{'ab'[i % 2]}" for i, (start, end) in enumerate(spans)]
    rows += ["short.mp4,0,1,b", "short.mp4,0,1,a"]
    file, out = tmp_path / "s.csv", tmp_path / "index"
    file.write_text("\n".join(["path,start,end,label", *rows]))
    root = str(searched.folder / "videos")
    words = [str(file), "--data-root", root, "--out", str(out), "--workers", "0"]
    main([*words, "--checkpoint", model.checkpoint, "--clips", "1", "--device", "cpu"])
    said = capsys.readouterr().out
    assert "1 rows of" in said and "1 of them with a different label" in said
    assert f"short.mp4@0-1: 'b' ({file}, line 5) and 'a' ({file}, line 6)" in said
    index = read_index(out)
    paths = [*(f"a/long.mp4@{a:g}-{b:g}" for a, b in spans), "short.mp4@0-1"]
    assert index.paths == paths
    expected = embed_videos(model, [f"{root}/{path}" for path in paths], ViewOptions(num_clips=1))
    np.testing.assert_allclose(index.features, expected, atol=1e-6)
    labels = LabelList(out / "labels.txt")
    assert [labels.classes[i] for i in labels.of_paths(paths)] == ["a", "b", "a", "b"]
    how = {"index": out, "no_html": True, "device": "cpu"}
    found = search(SearchOptions(more_like="a", **how)).matches
    assert {m.path for m in found} == {paths[1], paths[3]}
    found = search(SearchOptions(video=f"{root}/a/long.mp4@1-2", **how), index).matches
    assert {(m.path, m.file, m.start, m.end) for m in found} == {
        (paths[2], f"{root}/a/long.mp4", 4.0, 6.0),
        (paths[3], f"{root}/short.mp4", 0.0, 1.0),
    }
    state = SearchState(index, IndexNetwork(device="cpu"), labels)
    shown = state.describe()
    assert shown.names == ["a/long.mp4"] * 3 + ["short.mp4"]
    assert shown.spans == [*spans, (0.0, 1.0)]
    assert shown.labels.label == [0, 1, 0, 1] and state.file(1) == f"{root}/a/long.mp4"
    assert {m.row for m in state.search(SearchRequest(like=[{"row": 0}], k=9))} == {2, 3}
    assert {m.row for m in state.search(SearchRequest(more_like="b", k=9))} == {0, 2}
    split = state.write_split()  # no half of a recording in a test list
    words = shlex.split(split.commands[0])[2:]
    options = parse(FinetuneOptions, words)
    finetune._check_names(options)
    assert split.files == [words[2]] == [str(labels.file)] and "--test" not in words
    train, test, _ = labelled_parts(options)
    assert {path[0] for path in train.paths()} != {path[0] for path in test.paths()}
    state.set_label([0], "c")
    file.write_text("\n".join(["path,start,end,label", rows[0], rows[2], "short.mp4,0.5,1,b"]))
    main([*shlex.split(state.update_command())[2:], "--workers", "0", "--device", "cpu"])
    assert "1 new, 0 changed, 2 kept, 2 dropped" in capsys.readouterr().out
    labels = LabelList(out / "labels.txt")  # one that was given by hand is kept
    found = labels.of_paths([paths[0], paths[2], "short.mp4@0.5-1"])
    assert [labels.classes[i] for i in found] == ["c", "a", "b"]


def test_a_list_that_was_moved_is_found_out(searched, model, tmp_path, capsys):
    """By its rows, if it is gone or a copy; another list of the same folder is refused."""
    first, out = tmp_path / "s.csv", tmp_path / "index"
    rows = ["path,start,end,label", *(f"a/long.mp4,{i},{i + 1},{'ab'[i % 2]}" for i in range(4))]
    first.write_text("\n".join(rows))
    words = ["--data-root", str(searched.folder / "videos"), "--out", str(out), "--workers", "0"]
    words += ["--device", "cpu"]
    views = ["--checkpoint", model.checkpoint, "--clips", "1"]
    main([str(first), *words, *views])
    copy = tmp_path / "copy.csv"
    copy.write_text(first.read_text())
    main([str(copy), *words])
    assert "0 new, 0 changed, 4 kept, 0 dropped" in capsys.readouterr().out
    assert read_index(out).listed_in == str(copy)
    fewer, other = tmp_path / "fewer.csv", tmp_path / "other.csv"
    fewer.write_text("\n".join(rows[:3]))
    other.write_text("\n".join([rows[0], "short.mp4,0,1,a"]))
    for file, gone in ((fewer, False), (other, False), (other, True)):
        copy.unlink() if gone else None
        assert main([str(file), *words]) == 2
        assert f"list is {copy} in the index" in capsys.readouterr().err.replace("\n", " ")
    main([str(fewer), *words])
    assert "0 new, 0 changed, 2 kept, 2 dropped" in capsys.readouterr().out
    assert main([str(copy), *words]) == 2
    assert "If it was moved, give its new path" in capsys.readouterr().err


def test_listed_videos_outside_the_root_are_told(searched, model, tmp_path, capsys):
    file, root = tmp_path / "s.csv", searched.folder / "videos" / "a"
    lines = ["long.mp4,0,1,b", "../short.mp4,0,1,a", f"{root}/long.mp4,2,3,a"]
    file.write_text("\n".join(["path,start,end,label", *lines]))
    words = ["--data-root", str(root), "--out", str(tmp_path / "index"), "--workers", "0"]
    main([str(file), *words, "--checkpoint", model.checkpoint, "--clips", "1", "--device", "cpu"])
    told = capsys.readouterr().err.splitlines()[0]
    assert "will not show 1 of 2 videos in" in told and f"first is {root.parent}/short.mp4" in told
    assert f"--data-root {root.parent}," in told
