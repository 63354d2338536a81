"""Queries against an index: the nearest videos, excluded rows, and the network of an index."""

import mmap
import os
import shutil

import numpy as np
import pytest
from helpers.small_index import HEADER, OPTIONS
from helpers.tiny_encoder import CONFIG, save_tiny, tiny_backbone

from sce_video.find import query as search
from sce_video.find.examples import query_feature, rows_of_file
from sce_video.find.index import build_index, read_index
from sce_video.find.index_network import IndexNetwork, model_of_index
from sce_video.find.query import query_index
from sce_video.find.store import FileRecord, FileStore
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.model import load_model


@pytest.fixture
def index(model, root, tmp_path):
    build_index(model, root, tmp_path / "index", OPTIONS)
    return read_index(tmp_path / "index")


def by_hand(features, query, centred):
    """(cosine, row) of all rows in double precision, the most similar first."""
    features, query = features.astype(np.float64), query.astype(np.float64)
    if centred:
        mean = features.mean(axis=0)
        features, query = features - mean, query - mean
    cosines = [f @ query / (np.linalg.norm(f) * np.linalg.norm(query)) for f in features]
    return sorted(((c, i) for i, c in enumerate(cosines)), key=lambda pair: -pair[0])


@pytest.mark.parametrize("centred", [False, True])
def test_the_nearest_by_brute_force(model, index, originals, centred):
    query = embed_videos(model, originals / "more.mp4", ViewOptions(num_clips=2))[0]
    expected = by_hand(index.features, query, centred)
    for k in (1, 3, 5, 50):
        matches = query_index(index, query, k, centred=centred)
        assert [m.rank for m in matches] == list(range(1, min(k, 5) + 1))
        assert [m.path for m in matches] == [index.paths[i] for _, i in expected[:k]]
        np.testing.assert_allclose(
            [m.similarity for m in matches], [c for c, _ in expected[:k]], atol=1e-5
        )
        for m in matches:
            assert m.distance == 1 - m.similarity
            assert m.file == os.path.join(index.root, m.path)
    others = query_index(index, query, 10, leave_out=[expected[0][1]], centred=centred)
    assert [(m.rank, m.path) for m in others] == [(m.rank - 1, m.path) for m in matches[1:]]
    assert query_index(index, query, 10, leave_out=list(range(5))) == []
    plain, other = (by_hand(index.features, query, c)[-1][0] for c in (False, True))
    assert plain > other + 0.1


def test_the_same_file_by_any_path(index, root, tmp_path, originals, monkeypatch):
    row = index.paths.index("c/d.mp4")
    (tmp_path / "link.mp4").symlink_to(root / "c" / "d.mp4")
    os.link(root / "c" / "d.mp4", tmp_path / "hard.mp4")
    (tmp_path / "linked").symlink_to(root / "c")
    monkeypatch.chdir(root)
    for path in (
        root / "c/d.mp4",
        "c/d.mp4",
        "../videos/c/../c/d.mp4",
        tmp_path / "link.mp4",
        tmp_path / "hard.mp4",
        tmp_path / "linked/d.mp4",
    ):
        assert rows_of_file(index, path) == [row], path
    shutil.copy(root / "c/d.mp4", tmp_path / "copy.mp4")  # same size, but another file
    for path in (tmp_path / "copy.mp4", originals / "c/d.mp4", tmp_path / "none.mp4"):
        assert rows_of_file(index, path) == []
    (root / "c" / "d.mp4").write_bytes(b"another content")
    assert rows_of_file(index, "c/d.mp4") == [row]


def test_an_indexed_file_is_not_embedded_again(model, index, root, originals):
    def never():
        raise AssertionError("the network is not needed")

    row = index.paths.index("b.mp4")
    feature = query_feature(index, root / "b.mp4", never)
    np.testing.assert_array_equal(feature, index.features[row])
    shutil.copy(originals / "more.mp4", root / "b.mp4")  # changed since: embedded again
    expected = embed_videos(model, originals / "more.mp4", ViewOptions(num_clips=2))[0]
    np.testing.assert_array_equal(query_feature(index, root / "b.mp4", lambda: model), expected)
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        query_feature(index, root / "none.mp4", lambda: model)


def test_the_network_of_an_index(model, checkpoint, root, tmp_path, originals):
    moved = shutil.copy(checkpoint, tmp_path / "moved.pth")
    build_index(load_model(moved), root, tmp_path / "index", OPTIONS)
    index = read_index(tmp_path / "index")
    again = model_of_index(index, IndexNetwork(device="cpu"))
    assert again.settings == model.settings
    np.testing.assert_array_equal(
        embed_videos(again, originals / "more.mp4"), embed_videos(model, originals / "more.mp4")
    )
    os.remove(moved)
    with pytest.raises(FileNotFoundError, match=r"moved\.pth.*--checkpoint"):
        model_of_index(index)
    found = model_of_index(index, IndexNetwork(str(checkpoint)))
    assert found.checkpoint_sha256 == model.checkpoint_sha256
    save_tiny(tmp_path / "moved.pth", tiny_backbone(seed=1))
    for given in (None, str(tmp_path / "moved.pth")):
        with pytest.raises(ValueError, match=r"moved\.pth .* is not the checkpoint.*--checkpoint"):
            model_of_index(index, IndexNetwork(given))


def test_an_index_made_with_a_config_needs_none_for_a_query(root, tmp_path):
    bare = save_tiny(tmp_path / "bare.pth", text=None, prefix="")
    (tmp_path / "own.py").write_text(CONFIG)
    model = load_model(bare, tmp_path / "own.py")
    build_index(model, root, tmp_path / "index", OPTIONS)
    index = read_index(tmp_path / "index")
    for config in (None, str(tmp_path / "own.py")):
        assert model_of_index(index, IndexNetwork(config=config)).settings == model.settings
    (tmp_path / "own.py").write_text(CONFIG.replace("size=40", "size=44"))
    with pytest.raises(ValueError, match=r"own\.py .*model\.short_side|short_side is 40"):
        model_of_index(index, IndexNetwork(config=str(tmp_path / "own.py")))


def test_an_untrusted_index_cannot_name_code(index):
    index.header.model["backbone"]["type"] = "os.path.join"
    with pytest.raises(ValueError, match="registered"):
        model_of_index(index)


@pytest.fixture
def large(tmp_path):
    """Writes an index of 4,000 videos with the given features; returns what is read back."""

    def write(features):
        records = {f"{i:04}.mp4": FileRecord(i, i, row) for i, row in enumerate(features)}
        (tmp_path / "large").mkdir(exist_ok=True)
        FileStore(tmp_path / "large" / "features.npz").write(HEADER, records)
        return read_index(tmp_path / "large")

    return write


def random_features():
    return np.random.default_rng(0).normal(1, 1, size=(4000, 80)).astype(np.float32)


def test_a_large_index_is_searched_in_blocks(large, monkeypatch):
    """More rows than one block, ties between blocks."""
    monkeypatch.setattr(search, "READ_ROWS", 1000)
    features = random_features()
    features[3999] = features[5] = features[2000]
    index = large(features)
    for centred in (False, True):
        matches = query_index(index, features[5], 40, centred=centred)
        assert [m.path for m in matches[:3]] == ["0005.mp4", "2000.mp4", "3999.mp4"]
        expected = by_hand(features, features[5], centred)[3:40]
        assert [m.path for m in matches[3:]] == [f"{i:04}.mp4" for _, i in expected]
    assert len(query_index(index, features[5], 5000, leave_out=[0, 3999])) == 3998


def test_a_large_index_is_not_read_before_it_is_searched(large, tmp_path):
    features = random_features()
    index = large(features)
    mapping = index.features.base
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    assert isinstance(mapping, mmap.mmap) and index.features._due.all()
    assert (index.row("0007.mp4"), index.path(7)) == (7, "0007.mp4")
    assert [index.row(name) for name in ("7.mp4", "a", "", "x" * 300)] == [None] * 4
    # An update replaces the file; an index that was read before still gives its own results.
    large(features[::-1].copy())
    assert query_index(index, features[7], 1)[0].path == "0007.mp4"
    assert query_index(read_index(tmp_path / "large"), features[7], 1)[0].path == "3992.mp4"
