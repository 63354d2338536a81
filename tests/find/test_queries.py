"""Queries of several examples, images and labels, against Rocchio's sum written as loops."""

import json

import cv2
import numpy as np
import pytest
from helpers.small_index import HEADER, OPTIONS
from helpers.tiny_encoder import moving_frames

from sce_video.commands.main import main
from sce_video.datasets import VideoDecodeError
from sce_video.find.index import build_index, read_index
from sce_video.find.query import QueryFeatures, Weights, query_index
from sce_video.find.search import search
from sce_video.find.store import FileRecord, FileStore
from sce_video.inference.embed import embed_videos
from sce_video.options.search import SearchOptions

WEIGHTS = Weights(text=0.5, like=2.0, unlike=0.4)


@pytest.fixture
def index(model, root, tmp_path):
    build_index(model, root, tmp_path / "index", OPTIONS)
    return read_index(tmp_path / "index")


def found(index, *video, **how):
    """The results of a search without a gallery."""
    how = {"video": video, "index": index.folder, "device": "cpu", "no_html": True, **how}
    return search(SearchOptions(**how)).matches


def unit(vector):
    return vector / np.linalg.norm(vector)


def rocchio(like, unlike, weights, text=None):
    """alpha t + beta / |P| sum of p - gamma / |N| sum of n, of features at unit length."""
    total = np.zeros(len(like[0]))
    for feature in like:
        total += weights.like / len(like) * unit(feature)
    for feature in unlike:
        total -= weights.unlike / len(unlike) * unit(feature)
    if text is not None:
        total += weights.text * unit(text)
    return total


def assert_ranked(matches, features, query):
    """The matches are the rows by their cosine with the query."""
    cosines = [unit(f) @ unit(query) for f in features]
    np.testing.assert_allclose(
        [m.similarity for m in matches], [cosines[m.row] for m in matches], atol=2e-6
    )
    left = sorted((c for i, c in enumerate(cosines) if i not in {m.row for m in matches}))
    shown = [m.similarity for m in matches]
    assert shown == sorted(shown, reverse=True) and (not left or left[-1] <= shown[-1] + 2e-6)


@pytest.mark.parametrize("space", ["plain", "centred", "whitened"])
def test_the_sum_is_made_where_features_are_compared(tmp_path, space):
    rng = np.random.default_rng(3)
    features = (rng.normal(0, 1, (300, 8)) * np.arange(1, 9) + 20).astype(np.float32)
    rows = {f"{i:03}.mp4": FileRecord(i, i, row) for i, row in enumerate(features)}
    FileStore(tmp_path / "features.npz").write(HEADER, rows)
    index = read_index(tmp_path)
    own = np.stack([features[4] * 3, features[90], features[7]])  # lengths do not count
    query = QueryFeatures(own, np.array([1.0, 1.0, -0.4]))
    mapped = {
        "plain": lambda f: f.astype(np.float64),
        "centred": lambda f: f.astype(np.float64) - features.astype(np.float64).mean(axis=0),
        "whitened": index.whitening,
    }[space]
    expected = rocchio(mapped(own[:2]), mapped(own[2:]), Weights(like=2, unlike=0.4))
    options = {space: True} if space != "plain" else {}
    out = [4, 7, 90]
    matches = query_index(index, query, 20, leave_out=out, **options)
    kept = mapped(features)
    kept[out] = -1e3 * expected  # cannot be among the first
    assert not {m.row for m in matches} & set(out)
    assert_ranked(matches, kept, expected)
    # One example, whatever its weight, is the query as it is.
    single = QueryFeatures(own[1:2], np.array([0.3]))
    assert query_index(index, single, 5, **options) == query_index(index, own[1], 5, **options)


def test_examples_and_counter_examples_of_files(model, index, root, originals):
    examples = root / "b.mp4", originals / "more.mp4"
    how = {"unlike": root / "f.mp4", "weights": (2.0, 0.4, 0.5)}
    matches = found(index, *examples, **how)
    features = np.array(index.features, dtype=np.float64)
    own = [index.paths.index(name) for name in ("b.mp4", "f.mp4")]
    like = [features[own[0]], embed_videos(model, originals / "more.mp4", OPTIONS)[0]]
    expected = rocchio(like, [features[own[1]]], WEIGHTS)
    cosines = features @ expected / np.linalg.norm(features, axis=1)
    order = [row for row in np.argsort(-cosines) if row not in own]
    assert [m.path for m in matches] == [index.paths[row] for row in order]
    everything = found(index, *examples, **how, include_self=True)
    assert_ranked(everything, features, expected)
    assert len(everything) == 5


def test_an_image_is_a_clip_of_one_repeated_frame(model, index, tmp_path):
    frame = moving_frames(1, seed=5)[0]
    cv2.imwrite(str(tmp_path / "a.png"), frame[..., ::-1])
    still = embed_videos(model, np.repeat(frame[None], 9, axis=0))[0]
    best = found(index, tmp_path / "a.png")
    assert_ranked(best, np.array(index.features), still)
    assert [m.path for m in best] == [m.path for m in query_index(index, still)]
    with pytest.raises(ValueError, match="is an image, which has no moments"):
        found(index, f"{tmp_path}/a.png@0-1")


def test_an_image_that_is_none_or_too_large(index, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(VideoDecodeError, match=r"a\.jpg.*is not an image that can be decoded"):
        found(index, tmp_path / "a.jpg")
    header = b"P5 200000 200000 255\n"  # the pixels that it states are not there
    (tmp_path / "b.png").write_bytes(header + b"x" * 100)
    with pytest.raises(VideoDecodeError, match=r"b\.png.*(too large|more than the)"):
        found(index, tmp_path / "b.png")


def test_more_like_a_label(index, tmp_path):
    paths = index.paths
    (tmp_path / "l.txt").write_text(f"{paths[0]} 0\n{paths[1]} 1\n{paths[2]} 0\n", encoding="utf-8")
    (tmp_path / "l_classes.txt").write_text("good\nbad\nnever\n")
    how = {"weights": (2.0, 0.4, 0.5), "labels": tmp_path / "l.txt"}
    matches = found(index, more_like="good", **how)  # needs no network
    features = np.array(index.features, dtype=np.float64)
    expected = rocchio(features[[0, 2]], features[[1]], WEIGHTS)
    assert {m.path for m in matches} == {*paths[3:]}
    for match in matches:
        cosine = unit(features[match.row]) @ unit(expected)
        assert match.similarity == pytest.approx(cosine, abs=2e-6)
    for name, message in (
        ("god", "Its labels are: good, bad, never"),
        ("never", "no video of the"),
    ):
        with pytest.raises(ValueError, match=message):
            found(index, more_like=name, labels=tmp_path / "l.txt")


def test_queries_without_direction_are_refused(index, root):
    one = str(root / "b.mp4")
    with pytest.raises(ValueError, match="only unlike to search for. Add a video, an image, tex"):
        found(index, unlike=one)
    with pytest.raises(ValueError, match="weights must be at least 0, got -1"):
        found(index, one, weights=(-1, 0, 0))
    with pytest.raises(ValueError, match="cancel each other"):
        found(index, one, unlike=one, weights=(1, 1, 0))
    for unlike in ((), root / "f.mp4"):
        with pytest.raises(ValueError, match="no example, text or label has a weight above 0"):
            found(index, one, unlike=unlike, weights=(0, 0.15, 1))


def test_the_command(index, root, tmp_path, capsys):
    """Examples, weights and condition in one line, in the table, the JSON and the gallery."""
    words = [str(root / "b.mp4"), str(root / "a.mp4"), "--not", str(root / "f.mp4")]
    words += ["--weights", "1", "0.5", "0", "--where", "path LIKE 'c/%'"]
    out = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "g.html")]
    assert main(["search", *words, "--index", str(index.folder), *out]) == 0
    printed = capsys.readouterr().out
    assert "b.mp4, " in printed and "(1); not " in printed and "f.mp4 (0.5)" in printed
    how = {"unlike": root / "f.mp4", "weights": (1, 0.5, 0), "where": "path LIKE 'c/%'"}
    expected = found(index, root / "b.mp4", root / "a.mp4", **how)
    assert [m.path for m in expected] == sorted(["c/d.mp4", "c/e e.mp4"], key=printed.index)
    written = json.loads((tmp_path / "r.json").read_text())
    assert [r["similarity"] for r in written["results"]] == [m.similarity for m in expected]
    assert written["weights"] == {"text": 0, "like": 1, "unlike": 0.5}
    assert [q["video"] for q in written["not"]] == [str(root / "f.mp4")]
    page = (tmp_path / "g.html").read_text()
    assert "<h2>Not like</h2>" in page and "and 1 more" in page and "where path LIKE" in page
