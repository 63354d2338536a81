"""Feature files of this package and of other programs: reading, mapping, conversion, errors."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import ColourVideos, TinyEncoder, collate, loader

from sce_video.evaluation import Rows, extract_features, load_features, save_features
from sce_video.evaluation.rows import check_labelled
from sce_video.inference import npz_files
from sce_video.inference.features import Features, write_features
from sce_video.inference.npz_files import RowStream, read_npz, write_npz


def external_file(path, save=np.savez, **changes):
    arrays = {
        "features": np.arange(12, dtype=np.float32).reshape(4, 3),
        "labels": np.array([0, 1, 0, 2]),
        "paths": np.array(["a/1.mp4", "a/2.mp4", "b/3.mp4", "ü 4.mp4"]),
    }
    arrays.update(changes)
    save(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.fixture
def large(tmp_path):
    """A feature file large enough to be memory-mapped, and its features."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5000, 70, generator=generator)
    paths = [f"v{i:05}.mp4" for i in range(5000)]
    path = tmp_path / "large.npz"
    save_features(path, Rows(features, torch.arange(5000), torch.arange(5000), paths))
    return path, features


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_of_three_arrays_are_read(tmp_path, save):
    features, provenance = load_features(external_file(tmp_path / "f.npz", save))
    assert features.features.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert features.labels.tolist() == [0, 1, 0, 2] and features.labels.dtype == torch.int64
    assert features.indices.tolist() == [0, 1, 2, 3]
    assert features.paths == ["a/1.mp4", "a/2.mp4", "b/3.mp4", "ü 4.mp4"]
    assert (features.failures, features.num_views, provenance) == ([], 1, {})
    assert features.subset(torch.tensor([2])).source == str(tmp_path / "f.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": None}, r"not a feature file.*no 'features' in it, only \['labels', 'paths'"),
        ({"paths": None}, "not a feature file.*no 'paths'"),
        ({"features": np.ones(4)}, r"'features' must be a matrix.*shape \(4,\)"),
        ({"features": np.array([["x"] * 3] * 4)}, "'features' must be a matrix of numbers.*<U1"),
        ({"labels": np.arange(4.0)}, "'labels' must contain integers, got float64"),
        ({"labels": np.array([0, -2, 1, -3])}, r"2 labels .* the first is -2 of a/2\.mp4"),
        ({"labels": np.array([0, 1, 2, 2**64 - 1], np.uint64)}, "contains 18446744073709551615"),
        ({"labels": np.array([0, 1, 2, 10**6])}, r"1 labels are out of range.*1000000 of ü 4\.mp4"),
        (
            {"paths": np.array([b"a", b"b", b"c", b"\xff"])},
            "'paths' must contain text, 'utf-8' codec",
        ),
        ({"features": np.full((4, 3), np.nan)}, r"4 of 4 rows .* the first is row 0, a/1\.mp4"),
        ({"paths": np.array(["a"])}, r"4 rows do not match 'paths' of shape \(1,\)"),
        ({"paths": np.arange(4)}, "'paths' must contain text, got int64"),
        ({"protocol": np.array("{")}, "not a feature file"),
        ({"protocol": np.array("[1]")}, "not a feature file.*'protocol' must be a JSON object"),
        ({"protocol": np.array('{"failures": ["x"]}')}, "'failures' in its protocol"),
        ({"protocol": np.array('{"num_views": "x"}')}, "'num_views' in its protocol.*'x'"),
        ({"features": np.array([[None]])}, "not a feature file.*Object arrays"),
    ],
)
def test_invalid_arrays_raise_with_the_file_name(tmp_path, changes, message):
    path = external_file(tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=rf"(?s)bad\.npz.*{message}|bad\.npz is {message}"):
        load_features(path)


def test_files_that_are_no_archive_raise(tmp_path, large):
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(large[0].read_bytes()[:-100])
    (tmp_path / "folder.npz").mkdir()
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    for name in ("one.npy", "empty.npz", "cut.npz", "folder.npz", "zip.npz"):
        with pytest.raises(ValueError, match=f"{name} is not a feature file"):
            load_features(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_features(tmp_path / "none.npz")


def test_large_features_are_mapped_copy_on_write(large):
    path, expected = large
    before = path.read_bytes()
    arrays, _ = read_npz(path, "a file")
    assert isinstance(arrays["features"], np.memmap)
    assert arrays["features"].offset % 64 == 0
    assert not isinstance(arrays["labels"], np.memmap)  # small ones are read
    features, _ = load_features(path)
    assert torch.equal(features.features, expected)
    features.features[0] = 7.0  # a private copy of the page
    assert features.features[0, 0] == 7.0
    assert path.read_bytes() == before
    assert torch.equal(load_features(path)[0].features, expected)


def test_files_of_other_programs_are_not_mapped(tmp_path, large):
    # numpy writes in place: mapped arrays would change, or the file be truncated, while in use.
    path, expected = large
    other = tmp_path / "other.npz"
    for save in (np.savez, np.savez_compressed):
        save(other, **dict(np.load(path)))
        arrays, _ = read_npz(other, "a file")
        assert not isinstance(arrays["features"], np.memmap)
        assert torch.equal(load_features(other)[0].features, expected)


def member(array, **header):
    """The .npy bytes of an array, with other entries in its header."""
    file = io.BytesIO()
    described = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **header}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (member(np.zeros((4, 3)), shape=(10**12, 3)), "24,000,000,000,000 bytes, but has 96"),
        (member(np.zeros((4, 3)), shape=(10**12, 10**12, 0)), "has the impossible|needs 0 bytes"),
        (member(np.zeros((4, 0))), r"'features' of shape \(4, 0\)"),
        (member(np.zeros((0,)), shape=(10**12, 0)), r"'features' of shape \(1000000000000, 0\)"),
        (member(np.zeros((4, 3)), shape=(-4, -3)), "impossible shape"),
        (member(np.zeros((4, 3)), descr="|O"), "Object arrays are never unpickled"),
        (member(np.zeros(4), descr="<U100000000"), "needs 1,600,000,000 bytes, but has 32"),
        (member(np.zeros((4, 3)))[:-1], "needs 96 bytes, but has 95"),
        (b"\x93NUMPY\x03\x00" + bytes(99), "in an unsupported format"),
        (b"no array", "'features' is not an array"),
    ],
)
def test_headers_that_do_not_fit_the_stored_bytes(tmp_path, data, message):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("features.npy", data)
    with pytest.raises(ValueError, match=rf"bad\.npz is not a feature file.*: .*({message})"):
        load_features(tmp_path / "bad.npz")


def test_a_compressed_file_that_expands_a_thousand_times(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", features=np.zeros((300_000, 100), np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 150_000
    with pytest.raises(ValueError, match=r"bomb\.npz .* members unpack to 120,000,\d+ bytes"):
        load_features(tmp_path / "bomb.npz")


def test_numpy_and_unzip_read_what_is_written(tmp_path):
    arrays = {
        "long_name_of_an_array": np.arange(7.0),
        "empty": np.empty((0, 4), np.float32),
        "text": np.array(["ü", "bc"]),
        "scalar": np.array(3),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    }
    path = tmp_path / "deep" / "a.npz"
    write_npz(path, arrays, {"a": [1, "ü"]})
    loaded, provenance = read_npz(path, "a file")
    assert provenance == {"a": [1, "ü"]}
    with np.load(path, allow_pickle=False) as stored, zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and set(stored.files) == {*arrays, "protocol"}
        for name, array in arrays.items():
            for found in (stored[name], loaded[name]):
                np.testing.assert_array_equal(found, array, strict=True)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, {"x": np.ones(3)}, {})
    with pytest.raises(ValueError, match="Object arrays"):
        write_npz(path, {"x": np.zeros(3), "y": np.array([None])}, {})
    assert read_npz(path, "a file")[0]["x"].tolist() == [1, 1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    with pytest.raises(ValueError, match=r"saved as \.npz, got .*a\.npy"):
        write_npz(tmp_path / "a.npy", {}, {})


def test_missing_labels_raise_when_they_are_needed(tmp_path):
    features, _ = load_features(external_file(tmp_path / "f.npz", labels=None))
    assert features.labels.tolist() == [-1] * 4
    with pytest.raises(ValueError, match=r"f\.npz has no 'labels' .*retrieval needs them"):
        check_labelled(features, "retrieval")
    some, _ = load_features(external_file(tmp_path / "g.npz", labels=np.array([0, 1, -1, -1])))
    with pytest.raises(ValueError, match=r"g\.npz.* 2 of 4 videos have none.*is b/3\.mp4"):
        check_labelled(some, "retrieval")
    with pytest.raises(ValueError, match=r"g\.npz contains no videos"):
        check_labelled(some.subset(torch.zeros(4, dtype=torch.bool)), "retrieval")
    check_labelled(some.subset(torch.tensor([0, 1])), "retrieval")


def test_features_are_written_without_all_of_them_in_memory(tmp_path, monkeypatch):
    """20 MB of features, at most 1 MB of them at a time."""
    monkeypatch.setattr(npz_files, "BLOCK_BYTES", 1 << 20)
    rows = np.arange(1250, dtype=np.float32)

    def feature(number):
        return np.full(4096, rows[number])

    paths = [f"{i}.mp4" for i in range(1250)]
    samples = Features(np.empty((1250, 0), np.float32), paths)

    def write_streamed(path, count=1250, size=4096):
        rows = RowStream((1250, size), np.dtype(np.float32), map(feature, range(count)))
        write_features(path, samples, stream=rows)

    tracemalloc.start()
    write_streamed(tmp_path / "f.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20
    arrays, _ = read_npz(tmp_path / "f.npz", "a feature file")
    assert arrays["features"].shape == (1250, 4096) and arrays["paths"].tolist() == paths
    np.testing.assert_array_equal(arrays["features"][:, ::4095], np.stack([rows, rows], 1))
    with pytest.raises(ValueError, match="1249 rows were given for an array of 1250"):
        write_streamed(tmp_path / "f.npz", count=1249)
    with pytest.raises(ValueError, match=r"\(1250, 4095\) array contains a row of shape \(4096,\)"):
        write_streamed(tmp_path / "f.npz", size=4095)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = TinyEncoder()
    model.backbone[1].running_mean.uniform_()
    return model.train()


def features_of_a_loop(model, dataset):
    """One video at a time, views averaged in numpy."""
    was = model.training
    model.eval()
    rows = []
    with torch.no_grad():
        for i in range(len(dataset)):
            batch = collate([dataset[i]])
            views = [v.permute(0, 4, 1, 2, 3).float() / 255 for v in batch["inputs"]]
            rows.append(np.mean([model(views)[j][0].numpy() for j in range(len(views))], axis=0))
    model.train(was)
    return np.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_mean_over_views_in_uneven_batches(model, batch_size):
    dataset = ColourVideos(12, views=3)
    features = extract_features(model, loader(dataset, batch_size))
    np.testing.assert_allclose(
        features.features.numpy(), features_of_a_loop(model, dataset), atol=1e-6
    )
    assert features.features.dtype == torch.float32
    assert features.labels.tolist() == [i % 3 for i in range(12)]
    assert features.indices.tolist() == list(range(12))
    assert features.paths == dataset.paths
    assert features.num_views == 3
    assert features.failures == []


def test_mode_of_every_module_and_bn_statistics_are_kept(model):
    model.backbone[1].eval()  # a frozen layer in a network in training
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    extract_features(model, loader(ColourVideos(6)))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="cannot be decoded"):
        extract_features(model, loader(ColourVideos(6, broken={2})))
    assert [module.training for module in model.modules()] == modes


def test_saved_and_loaded_without_pickle(tmp_path):
    labels, paths = torch.tensor([0, -1, 2]), ["a b.mp4", "ü/日本.avi", "c"]
    failures = [("bad.mp4", "no stream")]
    features = Rows(torch.randn(3, 4), labels, torch.tensor([0, 1, 5]), paths, failures, 30)
    path = tmp_path / "deep" / "f.npz"
    save_features(path, features, {"clips": 10})
    loaded, provenance = load_features(path)
    for name in ("features", "labels", "indices"):
        assert torch.equal(getattr(loaded, name), getattr(features, name)), name
    assert (loaded.paths, loaded.failures) == (features.paths, features.failures)
    assert loaded.num_views == 30 and provenance["clips"] == 10
    with np.load(path, allow_pickle=False) as stored:
        assert stored["features"].dtype == np.float32
        assert json.loads(str(stored["protocol"]))["num_views"] == 30


@pytest.fixture
def mapped(tmp_path):
    """A file with mapped arrays of several blocks, and small ones."""
    rng = np.random.default_rng(0)
    arrays = {
        "features": rng.normal(size=(9000, 40)).astype(np.float32),
        "paths": np.array([f"{n:040d}.mp4" for n in range(9000)]),
        "labels": np.arange(9000),
    }
    file = tmp_path / "large.npz"
    write_npz(file, arrays, {"clips": 1})
    return file, arrays


def test_flipped_bits_are_never_silent(mapped):
    file, arrays = mapped
    whole, rng = file.read_bytes(), np.random.default_rng(1)
    noticed = 0
    for at in rng.integers(0, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        for lazy in ((), ("features", "paths")):
            try:
                found, provenance = read_npz(file, "a feature file", tuple(arrays), lazy)
                same = {
                    name: np.array_equal(np.asarray(found[name]), arrays[name]) for name in arrays
                }
            except ValueError as error:
                assert "\n" not in str(error)
                noticed += 1
                continue
            assert all(same.values()) and provenance == {"clips": 1}, at
    assert noticed > 100


def test_a_block_is_checked_when_it_is_used(mapped):
    file, arrays = mapped
    damaged = bytearray(file.read_bytes())
    begin = damaged.index(arrays["features"][:8].tobytes())
    damaged[begin + 4000 * 160 + 7] ^= 1  # in row 4000
    file.write_bytes(damaged)
    found = read_npz(file, "a feature file", (), ("features",))[0]["features"]
    blocks = npz_files.DIGEST_BYTES // 160
    far = np.array([5, -1, 10])
    for rows in (0, slice(0, 100), slice(100, 0, -1), far, arrays["labels"] > 8990, slice(9, 9)):
        assert np.array_equal(found[rows], arrays["features"][rows])
    for rows in (4000, slice(0, 9000), slice(3900, 4100), far + 4000 - blocks // 9, None):
        with pytest.raises(ValueError, match=r"'features' of .*large.npz is damaged: .*Restore"):
            np.asarray(found) if rows is None else found[rows]


def test_files_of_earlier_versions_have_the_checksum_of_the_archive(mapped, monkeypatch):
    file, arrays = mapped
    monkeypatch.setattr(npz_files._Digests, "array", lambda self: None)
    write_npz(file, arrays, {})
    with np.load(file) as stored:
        assert set(stored.files) == {*arrays, "protocol"}
    found, _ = read_npz(file, "a feature file", (), ("features",))
    assert np.array_equal(found["features"], arrays["features"])
    damaged = bytearray(file.read_bytes())
    damaged[damaged.index(arrays["features"][:8].tobytes()) + 9] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        read_npz(file, "a feature file")
