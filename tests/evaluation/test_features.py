"""Extraction of features: every video once, in order, for any batches; feature files."""

import json

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import ColourVideos, TinyEncoder, collate, loader

from sce_video.evaluation import Rows, extract_features, load_features, save_features


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


@pytest.mark.parametrize("batch_size", [1, 5])  # with 1, whole batches are skipped
def test_an_unreadable_file_raises_or_is_counted(model, batch_size):
    with pytest.raises(RuntimeError, match=r"class2.mp4: cannot be decoded"):
        extract_features(model, loader(ColourVideos(6, broken={2})))
    dataset = ColourVideos(6, broken={2, 5}, on_error="skip")
    features = extract_features(model, loader(dataset, batch_size))
    assert features.indices.tolist() == [0, 1, 3, 4]
    assert [path for path, _ in features.failures] == [dataset.paths[2], dataset.paths[5]]
    readable = extract_features(model, loader(ColourVideos(6)))
    torch.testing.assert_close(features.features, readable.features[features.indices])


def test_videos_left_out_by_the_loader_are_an_error(model):
    with pytest.raises(RuntimeError, match="10 of 12 videos were evaluated"):
        extract_features(model, loader(ColourVideos(12), 5, drop_last=True))
    with pytest.raises(ValueError, match="empty"):
        extract_features(model, loader(ColourVideos(0)))


def test_saved_and_loaded_without_pickle(tmp_path):
    features = Rows(
        torch.randn(3, 4),
        torch.tensor([0, -1, 2]),
        torch.tensor([0, 1, 5]),
        ["a b.mp4", "ü/日本.avi", "c"],
        [("bad.mp4", "no stream")],
        30,
    )
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
    assert [p.name for p in path.parent.iterdir()] == ["f.npz"]
