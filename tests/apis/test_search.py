"""An index of a folder: what is embedded when, what is kept, and what a query finds."""

import json
import multiprocessing
import os
import shutil

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import CONFIG, moving_frames, save_tiny, tiny_backbone, write_lossless

import sce_video.datasets.transforms.decoding as decoding
from sce_video.apis import EmbedOptions, embed, load_model
from sce_video.apis import search as search_module
from sce_video.apis.search import (
    build_index,
    model_of_index,
    query_feature,
    query_index,
    read_index,
    rows_of_file,
)
from sce_video.evaluation import load_features

NAMES = ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "f.mp4"]
OPTIONS = EmbedOptions(num_clips=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny.pth")


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    for i, name in enumerate([*NAMES, "more.mp4"]):
        write_lossless(folder / name, moving_frames(20, seed=i))
    return folder


@pytest.fixture
def root(tmp_path, originals):
    """Five videos, a broken one and a text."""
    for name in NAMES:
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / name, tmp_path / "videos" / name)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"nothing of a video")
    (tmp_path / "videos" / "notes.txt").write_text("no video")
    return tmp_path / "videos"


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that are opened from now on."""
    names = []
    real = decoding.open_reader

    def counting(path, *args, **kwargs):
        names.append(os.path.basename(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(decoding, "open_reader", counting)
    return names


def numbers(report):
    return report.videos, report.new, report.changed, report.kept, report.dropped


def feature_of(index, name):
    return index.features[index.paths.index(name)].numpy()


def test_a_new_index(model, root, tmp_path, checkpoint):
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert numbers(report) == (5, 6, 0, 0, 0)
    assert [path for path, _ in report.failures] == ["broken.mp4"]
    index = read_index(tmp_path / "index")
    assert index.paths == sorted(NAMES)
    expected = embed(model, [root / name for name in index.paths], num_clips=2)
    np.testing.assert_array_equal(index.features.numpy(), expected)
    assert index.failures == report.failures

    # The same as a feature file, and as JSON.
    features, protocol = load_features(tmp_path / "index" / "features.npz")
    np.testing.assert_array_equal(features.features.numpy(), expected)
    assert (features.paths, features.num_views) == (index.paths, 2)
    assert features.labels.tolist() == [-1] * 5
    assert (protocol["clips"], protocol["crops"]) == (2, 1)
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    assert described["checkpoint"]["path"] == str(checkpoint)
    assert described["checkpoint"]["sha256"] == model.checkpoint_sha256
    assert described["root"] == str(root)
    assert (described["settings"]["num_clips"], described["settings"]["num_crops"]) == (2, 1)
    status = (root / "a.mp4").stat()
    assert described["files"][0] == {
        "path": "a.mp4",
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    assert [f["path"] for f in described["failures"]] == ["broken.mp4"]
    assert {p.name for p in (tmp_path / "index").iterdir()} == {
        "features.npz",
        "index.json",
        "lock",
    }


def test_only_new_and_changed_files_are_opened(model, root, originals, tmp_path, opened):
    build_index(model, root, tmp_path / "index", OPTIONS)
    assert sorted(opened) == sorted([os.path.basename(n) for n in NAMES] + ["broken.mp4"])
    before = read_index(tmp_path / "index")
    kept = {name: feature_of(before, name).copy() for name in before.paths}
    opened.clear()
    assert numbers(build_index(model, root, tmp_path / "index", OPTIONS)) == (5, 0, 0, 6, 0)
    assert opened == []

    shutil.copy(originals / "more.mp4", root / "c" / "new.mp4")
    shutil.copy(originals / "more.mp4", root / "b.mp4")
    (root / "f.mp4").unlink()
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert sorted(opened) == ["b.mp4", "new.mp4"]
    assert numbers(report) == (5, 1, 1, 4, 1)
    index = read_index(tmp_path / "index")
    assert index.paths == ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "c/new.mp4"]
    for name in ("a.mp4", "c/d.mp4", "c/e e.mp4"):
        np.testing.assert_array_equal(feature_of(index, name), kept[name])
    more = embed(model, originals / "more.mp4", num_clips=2)[0]
    np.testing.assert_array_equal(feature_of(index, "b.mp4"), more)
    np.testing.assert_array_equal(feature_of(index, "c/new.mp4"), more)

    # As if it had been made at once.
    build_index(model, root, tmp_path / "anew", OPTIONS)
    for file in ("features.npz", "index.json"):
        old, new = (tmp_path / folder / file for folder in ("index", "anew"))
        assert old.read_bytes() == new.read_bytes()


def test_same_size_but_another_time_is_a_change(model, root, tmp_path, opened):
    build_index(model, root, tmp_path / "index", OPTIONS)
    opened.clear()
    os.utime(root / "a.mp4", ns=(1, 1))
    assert numbers(build_index(model, root, tmp_path / "index", OPTIONS)) == (5, 0, 1, 5, 0)
    assert opened == ["a.mp4"]


def test_a_repaired_file_is_tried_again(model, root, originals, tmp_path, opened):
    build_index(model, root, tmp_path / "index", OPTIONS)
    opened.clear()
    report = build_index(model, root, tmp_path / "index", OPTIONS, retry_failed=True)
    assert opened == ["broken.mp4"]
    assert numbers(report) == (5, 0, 1, 5, 0)
    shutil.copy(originals / "more.mp4", root / "broken.mp4")
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert numbers(report) == (6, 0, 1, 5, 0)
    assert report.failures == []


def test_a_run_that_breaks_off_goes_on(model, root, tmp_path, opened):
    def stop(done, total, reason):
        if done == 4:
            raise KeyboardInterrupt

    index = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(model, root, index, OPTIONS, save_every=3, on_video=stop)
    assert len(list((index / "parts").iterdir())) == 2
    assert not (index / "features.npz").exists()
    with pytest.raises(FileNotFoundError, match="run it again"):
        read_index(index)
    first = list(opened)
    opened.clear()
    report = build_index(model, root, index, OPTIONS, save_every=3)
    assert (report.kept, report.new) == (4, 2)
    assert len(opened) == 2
    assert not set(opened) & set(first)
    assert not (index / "parts").exists()
    build_index(model, root, tmp_path / "anew", OPTIONS)
    assert (index / "features.npz").read_bytes() == (tmp_path / "anew/features.npz").read_bytes()


def _die_after_four(checkpoint, root, index):
    def die(done, total, reason):
        if done == 4:
            os._exit(9)

    build_index(load_model(checkpoint), root, index, OPTIONS, save_every=1, on_video=die)


def test_a_killed_run_goes_on(model, checkpoint, root, tmp_path, opened):
    """No exception, no clean-up: the process is gone between two files."""
    process = multiprocessing.get_context("spawn").Process(
        target=_die_after_four, args=(checkpoint, root, tmp_path / "index")
    )
    process.start()
    process.join(120)
    assert process.exitcode == 9
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert (report.kept, report.new, len(opened)) == (4, 2, 2)


@pytest.mark.parametrize("added", [True, False])
def test_a_crash_between_the_two_files(
    model, root, originals, tmp_path, monkeypatch, opened, added
):
    """features.npz alone counts; the next run mends index.json without opening anything."""
    index = tmp_path / "index"
    build_index(model, root, index, OPTIONS)
    if added:
        shutil.copy(originals / "more.mp4", root / "more.mp4")
    else:
        (root / "a.mp4").unlink()
    count = 6 if added else 4

    def crash(*args):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(search_module, "_write_description", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            build_index(model, root, index, OPTIONS)
    assert len(read_index(index)) == count
    opened.clear()
    build_index(model, root, index, OPTIONS)
    assert opened == []
    assert json.loads((index / "index.json").read_text())["videos"] == count
    assert not (index / "parts").exists()


def test_another_checkpoint_or_other_settings_are_refused(model, root, tmp_path):
    index = tmp_path / "index"
    build_index(model, root, index, OPTIONS)
    before = (index / "features.npz").read_bytes()
    other = load_model(save_tiny(tmp_path / "other.pth", tiny_backbone(seed=1)))
    with pytest.raises(ValueError, match=r"tiny\.pth \(sha256 \w{12}\), not with .*other\.pth"):
        build_index(other, root, index, OPTIONS)
    with pytest.raises(ValueError, match=r"num_clips is 2 in the index, now 3.*--rebuild"):
        build_index(model, root, index, EmbedOptions(num_clips=3))
    with pytest.raises(ValueError, match="num_crops is 1 in the index, now 3"):
        build_index(model, root, index, EmbedOptions(num_clips=2, num_crops=3))
    text = CONFIG.replace("size=40", "size=44")
    larger = load_model(save_tiny(tmp_path / "larger.pth", text=text))
    with pytest.raises(ValueError, match=r"model\.short_side is 40 in the index, now 44"):
        build_index(larger, root, index, OPTIONS)
    with pytest.raises(ValueError, match=r"of the folder .*videos, not .*/c"):
        build_index(model, root / "c", index, OPTIONS)
    assert (index / "features.npz").read_bytes() == before

    report = build_index(other, root, index, OPTIONS, rebuild=True)
    assert numbers(report) == (5, 6, 0, 0, 0)
    assert read_index(index).checkpoint["sha256"] == other.checkpoint_sha256


def test_parts_of_another_checkpoint_are_refused(model, root, tmp_path):
    def stop(done, total, reason):
        raise KeyboardInterrupt

    index = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(model, root, index, OPTIONS, on_video=stop)
    with pytest.raises(ValueError, match="num_clips is 2 in the index, now 1"):
        build_index(model, root, index, EmbedOptions(num_clips=1))
    report = build_index(model, root, index, EmbedOptions(num_clips=1), rebuild=True)
    assert numbers(report) == (5, 6, 0, 0, 0)


def test_the_same_checkpoint_in_another_place(model, checkpoint, root, tmp_path):
    index = tmp_path / "index"
    build_index(model, root, index, OPTIONS)
    moved = load_model(shutil.copy(checkpoint, tmp_path / "moved.pth"))
    assert numbers(build_index(moved, root, index, OPTIONS))[1:3] == (0, 0)
    assert read_index(index).checkpoint["path"] == str(tmp_path / "moved.pth")


def test_files_that_are_no_index_are_left_alone(model, root, tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    np.savez(folder / "features.npz", features=np.ones((2, 3)), paths=["a", "b"])
    before = (folder / "features.npz").read_bytes()
    for rebuild in (False, True):
        with pytest.raises(ValueError, match=r"features\.npz is not the file of an index"):
            build_index(model, root, folder, OPTIONS, rebuild=rebuild)
    assert (folder / "features.npz").read_bytes() == before


def test_an_empty_folder_leaves_the_index_alone(model, root, tmp_path):
    """A disk that is not mounted must not empty the index."""
    build_index(model, root, tmp_path / "index", OPTIONS)
    shutil.rmtree(root)
    with pytest.raises(ValueError, match="no folder"):
        build_index(model, root, tmp_path / "index", OPTIONS)
    root.mkdir()
    with pytest.raises(ValueError, match="no video in"):
        build_index(model, root, tmp_path / "index", OPTIONS)
    assert len(read_index(tmp_path / "index")) == 5


def test_one_run_at_a_time(model, root, tmp_path):
    def nested(done, total, reason):
        with pytest.raises(ValueError, match="another run"):
            build_index(model, root, tmp_path / "index", OPTIONS)

    assert build_index(model, root, tmp_path / "index", OPTIONS, on_video=nested).videos == 5


def test_odd_names(model, originals, tmp_path):
    names = [
        "ünï ☃.mp4",
        "line\nbreak.mp4",
        "3",
        b"not\xffutf8.mp4".decode("utf-8", "surrogateescape"),
    ]
    names[2] = "ends with 3/a 7.mp4"
    for name in names:
        path = tmp_path / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / "a.mp4", path)
    report = build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS)
    assert numbers(report) == (4, 4, 0, 0, 0)
    index = read_index(tmp_path / "index")
    assert index.paths == sorted(names)
    assert all(os.path.exists(index.file(path)) for path in index.paths)
    assert numbers(build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS))[3] == 4


def test_nothing_but_broken_files(model, tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"x")
    (tmp_path / "videos" / "dangling.mp4").symlink_to(tmp_path / "nowhere")
    report = build_index(model, tmp_path / "videos", tmp_path / "index")
    assert [path for path, _ in report.failures] == ["broken.mp4", "dangling.mp4"]
    assert numbers(build_index(model, tmp_path / "videos", tmp_path / "index")) == (0, 0, 0, 2, 0)
    with pytest.raises(ValueError, match="holds no video"):
        query_index(read_index(tmp_path / "index"), np.ones(32))


# -- queries -------------------------------------------------------------------------------------


@pytest.fixture
def index(model, root, tmp_path):
    build_index(model, root, tmp_path / "index", OPTIONS)
    return read_index(tmp_path / "index")


def by_hand(features, query, centred):
    """All cosines, in order."""
    features, query = features.astype(np.float64), query.astype(np.float64)
    if centred:
        mean = features.mean(axis=0)
        features, query = features - mean, query - mean
    cosines = [f @ query / (np.linalg.norm(f) * np.linalg.norm(query)) for f in features]
    return sorted(((c, i) for i, c in enumerate(cosines)), key=lambda pair: -pair[0])


@pytest.mark.parametrize("centred", [False, True])
def test_the_nearest_by_brute_force(model, index, originals, centred):
    query = embed(model, originals / "more.mp4", num_clips=2)[0]
    expected = by_hand(index.features.numpy(), query, centred)
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
    plain, other = (by_hand(index.features.numpy(), query, c)[-1][0] for c in (False, True))
    assert plain > other + 0.1


def test_rows_that_are_left_out(index):
    query = index.features[2].numpy()
    everything = query_index(index, query, 10)
    assert everything[0].path == index.paths[2]
    assert everything[0].similarity == pytest.approx(1.0, abs=1e-6)
    assert -1.0 <= everything[0].similarity <= 1.0
    others = query_index(index, query, 10, leave_out=[2])
    assert [m.path for m in others] == [m.path for m in everything[1:]]
    assert [m.rank for m in others] == [1, 2, 3, 4]
    assert query_index(index, query, 10, leave_out=list(range(5))) == []


def test_wrong_queries(index):
    with pytest.raises(ValueError, match="k must be at least 1"):
        query_index(index, index.features[0].numpy(), 0)
    with pytest.raises(ValueError, match="dimensions"):
        query_index(index, np.ones(7), 3)


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
    shutil.copy(root / "c/d.mp4", tmp_path / "copy.mp4")  # as large, but another file
    for path in (tmp_path / "copy.mp4", originals / "c/d.mp4", tmp_path / "none.mp4"):
        assert rows_of_file(index, path) == []
    (root / "c" / "d.mp4").write_bytes(b"another content")
    assert rows_of_file(index, "c/d.mp4") == [row]


def test_an_indexed_file_is_not_embedded_again(model, index, root, originals):
    def never():
        raise AssertionError("the network is not needed")

    row = index.paths.index("b.mp4")
    feature = query_feature(index, root / "b.mp4", never)
    np.testing.assert_array_equal(feature, index.features[row].numpy())
    shutil.copy(originals / "more.mp4", root / "b.mp4")  # changed since: embedded as it is now
    expected = embed(model, originals / "more.mp4", num_clips=2)[0]
    np.testing.assert_array_equal(query_feature(index, root / "b.mp4", lambda: model), expected)
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        query_feature(index, root / "none.mp4", lambda: model)


def test_the_network_of_an_index(model, checkpoint, root, tmp_path, originals):
    moved = shutil.copy(checkpoint, tmp_path / "moved.pth")
    build_index(load_model(moved), root, tmp_path / "index", OPTIONS)
    index = read_index(tmp_path / "index")
    again = model_of_index(index, device="cpu")
    assert again.settings == model.settings
    np.testing.assert_array_equal(
        embed(again, originals / "more.mp4"), embed(model, originals / "more.mp4")
    )
    os.remove(moved)
    with pytest.raises(FileNotFoundError, match=r"moved\.pth.*--checkpoint"):
        model_of_index(index)
    assert model_of_index(index, checkpoint).checkpoint_sha256 == model.checkpoint_sha256
    save_tiny(tmp_path / "moved.pth", tiny_backbone(seed=1))
    for given in (None, tmp_path / "moved.pth"):
        with pytest.raises(ValueError, match=r"moved\.pth .* is not the checkpoint.*--checkpoint"):
            model_of_index(index, given)


def test_an_index_made_with_a_config_needs_none_for_a_query(root, tmp_path):
    bare = save_tiny(tmp_path / "bare.pth", text=None, prefix="")
    (tmp_path / "own.py").write_text(CONFIG)
    model = load_model(bare, tmp_path / "own.py")
    build_index(model, root, tmp_path / "index", OPTIONS)
    index = read_index(tmp_path / "index")
    for config in (None, tmp_path / "own.py"):
        assert model_of_index(index, config=config).settings == model.settings
    (tmp_path / "own.py").write_text(CONFIG.replace("size=40", "size=44"))
    with pytest.raises(ValueError, match=r"own\.py .*model\.short_side|short_side is 40"):
        model_of_index(index, config=tmp_path / "own.py")


def test_an_index_of_a_stranger_names_no_code(index):
    index.settings["model"]["backbone"]["type"] = "os.path.join"
    with pytest.raises(ValueError, match="registered"):
        model_of_index(index)


def test_a_large_index(tmp_path):
    """Blocks of the search and rows that tie."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40_000, 8)).astype(np.float32)
    features[39_999] = features[5] = features[20_000]
    index = search_module.VideoIndex(
        folder=tmp_path,
        root="/videos",
        checkpoint={},
        settings={},
        records={},
        paths=[f"{i}.mp4" for i in range(40_000)],
        features=torch.from_numpy(features),
    )
    found = [m.path for m in query_index(index, features[5], 4)]
    assert found[:3] == ["5.mp4", "20000.mp4", "39999.mp4"]
    best = by_hand(features, features[5], False)[3][1]
    assert found[3] == f"{best}.mp4"
