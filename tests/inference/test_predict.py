"""Predictions of a classifier: those of tools/test.py, class names, views, other checkpoints."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.recognition import FINETUNE, folder_options
from helpers.tiny_encoder import save_tiny

from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.evaluation.scores import load_scores
from sce_video.inference.classifier import (
    class_probabilities,
    load_classifier,
    predict_files,
    top_classes,
)
from sce_video.runs import configs, launch


@pytest.fixture(scope="module")
def classifier(folder_classifier):
    return load_classifier(folder_classifier, device="cpu")


@pytest.fixture(scope="module")
def scores(split_videos, folder_classifier, tmp_path_factory):
    """What tools/test.py --dump writes for the same checkpoint and videos."""
    folder = tmp_path_factory.mktemp("tested")
    launch.run_test(
        configs.testing_config(
            FINETUNE,
            str(folder_classifier),
            work_dir=folder,
            dump=folder / "scores.npz",
            cfg_options=folder_options(split_videos),
        )
    )
    return load_scores(folder / "scores.npz")[0]


@pytest.fixture
def changed(folder_classifier, tmp_path):
    """Writes the checkpoint with other content, ``change(stored)``; returns its path."""

    def write(change):
        stored = load_checkpoint_file(folder_classifier)
        change(stored)
        save_checkpoint_file(stored, tmp_path / "changed.pth")
        return tmp_path / "changed.pth"

    return write


def test_probabilities_equal_those_of_the_test(classifier, scores, tmp_path):
    probabilities = class_probabilities(classifier, scores.paths)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, scores.scores.numpy(), rtol=0, atol=1e-6)
    assert len(np.unique(probabilities[:, 0])) == len(scores)  # the videos are told apart
    found = predict_files(classifier, [*scores.paths[:2], str(tmp_path)])
    np.testing.assert_array_equal(found.values, probabilities[:2])
    assert [path for path, _ in found.failures] == [str(tmp_path)]
    one = replace(classifier.options, num_clips=1, num_crops=1)
    central = class_probabilities(classifier, scores.paths[:2], one)
    assert np.abs(central - probabilities[:2]).max() > 1e-5


def test_names_may_be_missing_or_given(changed):
    bare = changed(lambda stored: stored["meta"].pop("classes"))
    numbers = load_classifier(bare)
    assert (numbers.classes, numbers.named) == (("0", "1"), False)
    given = load_classifier(bare, classes=["run", "walk"])
    assert (given.classes, given.named) == (("run", "walk"), True)
    with pytest.raises(ValueError, match=r"3 class names are given, .* has 2 classes"):
        load_classifier(bare, classes=["a", "b", "c"])


def test_checkpoints_without_a_classifier(changed, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"tiny\.pth has no classifier .*'SCE'\. Finetune it first: sce-video finetune",
    ):
        load_classifier(save_tiny(tmp_path / "tiny.pth"))

    def drop_head(stored):
        for key in [key for key in stored["state_dict"] if key.startswith("cls_head")]:
            del stored["state_dict"][key]

    with pytest.raises(ValueError, match="no classifier weights"):
        load_classifier(changed(drop_head))


def test_an_untrusted_config_builds_known_heads_only(changed):
    """Sizes are those of the stored weights, so the text cannot ask for gigabytes."""

    def other(text, replacement):
        def change(stored):
            assert text in stored["meta"]["config"]
            stored["meta"]["config"] = stored["meta"]["config"].replace(text, replacement)

        return change

    with pytest.raises(ValueError, match="cls_head is a 'SlowFastHead'"):
        load_classifier(changed(other("I3DHead", "SlowFastHead")))
    huge = load_classifier(changed(other('"num_classes": 2', '"num_classes": 2000000000')))
    assert huge.row_size == 2
    with pytest.raises(ValueError, match="num_clips"):
        load_classifier(changed(other('"num_clips": 10', '"num_clips": 2000000000')))


def test_the_most_probable_classes():
    probabilities = np.array([0.2, 0.4, 0.4], dtype=np.float32)
    assert [name for name, _ in top_classes(probabilities, "abc", 2)] == ["b", "c"]
    assert len(top_classes(probabilities, "abc", 9)) == 3
    with pytest.raises(ValueError, match="at least 1, got 0"):
        top_classes(probabilities, "abc", 0)
