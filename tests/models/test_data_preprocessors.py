"""Augmentation and normalisation of batches compared with a per-sample oracle; batch formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import augmentation_oracle as oracle
from torch import Tensor

from sce_video.models import RecognizerDataPreprocessor
from sce_video.models.augmentation import draw_parameters, named_view
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.registry import MODELS

ALPHA_BETA = [dict(name="strong-alpha", strength=1.0), dict(name="strong-beta", strength=1.0)]


def make_batch(n: int, num_views: int = 2, t: int = 2, h: int = 13, w: int = 14) -> dict:
    rng = np.random.default_rng(n)
    views = [rng.integers(0, 256, (n, t, h, w, 3), dtype=np.uint8) for _ in range(num_views)]
    return dict(
        inputs=[torch.from_numpy(view) for view in views],
        label=torch.arange(n),
        index=torch.arange(n) * 3,
        seed=torch.from_numpy(rng.integers(0, 2**63 - 1, n)),
        failures=[("broken.mp4", "no frames")],
    )


def select(batch: dict, rows: list[int]) -> dict:
    picked = {key: batch[key][rows] for key in ("label", "index", "seed")}
    return dict(picked, inputs=[view[rows] for view in batch["inputs"]], failures=[])


def build(**arguments) -> VideoDataPreprocessor:
    return MODELS.build(dict(type="VideoDataPreprocessor", **arguments))


def oracle_views(batch: dict, names: list[str], strength: float) -> list[Tensor]:
    out = []
    for v, name in enumerate(names):
        drawn = draw_parameters(named_view(name, strength), batch["seed"].tolist(), v)
        samples = [oracle.view(clip.numpy(), drawn, i) for i, clip in enumerate(batch["inputs"][v])]
        out.append(torch.from_numpy(np.stack(samples)).float())
    return out


@pytest.mark.parametrize(
    ("names", "strength"), [(["strong-alpha", "strong-beta"], 1.0), (["strong", "weak"], 0.5)]
)
def test_training_equals_the_slow_reference(names: list[str], strength: float) -> None:
    batch = make_batch(16)
    views = [dict(name=name, strength=strength) for name in names]
    got = build(views=views)(batch, training=True)["inputs"]
    for mine, want in zip(got, oracle_views(batch, names, strength), strict=True):
        assert mine.dtype == torch.float32
        # 1e-5 on the 0..1 scale.
        torch.testing.assert_close(mine, want, atol=1e-5 / 0.225, rtol=0)


def test_evaluation_only_normalises() -> None:
    batch = make_batch(5)
    got = build(views=ALPHA_BETA)(batch, training=False)
    for mine, clip in zip(got["inputs"], batch["inputs"], strict=True):
        want = (clip.double().permute(0, 4, 1, 2, 3) / 255 - 0.45) / 0.225
        torch.testing.assert_close(mine, want.float(), atol=1e-6, rtol=0)
    assert torch.equal(got["data_samples"]["label"], batch["label"])
    assert torch.equal(got["data_samples"]["index"], batch["index"])
    assert set(got) == {"inputs", "data_samples"} and "seed" not in got["data_samples"]
    seeds = build(views=ALPHA_BETA)(batch, training=True)["data_samples"]["seed"]
    assert seeds == batch["seed"].tolist()


def test_a_sample_does_not_depend_on_the_rest_of_the_batch() -> None:
    batch = make_batch(17)
    preprocessor = build(views=ALPHA_BETA)
    whole = preprocessor(batch, True)["inputs"]
    order = torch.randperm(17, generator=torch.Generator().manual_seed(1)).tolist()
    permuted = preprocessor(select(batch, order), True)["inputs"]
    for v in range(2):
        torch.testing.assert_close(permuted[v], whole[v][order], atol=1e-5, rtol=0)
        for i in (0, 7, 16):
            alone = preprocessor(select(batch, [i]), True)["inputs"][v]
            torch.testing.assert_close(alone[0], whole[v][i], atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk_size", [5, None])
@pytest.mark.parametrize("channels_last", [False, True])
def test_chunks_and_memory_format_change_no_value(
    chunk_size: int | None, channels_last: bool
) -> None:
    batch = make_batch(13)
    want = build(views=ALPHA_BETA, chunk_size=13)(batch, True)["inputs"]
    preprocessor = build(views=ALPHA_BETA, chunk_size=chunk_size, channels_last=channels_last)
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    for training in (True, False):
        got = preprocessor(batch, training)["inputs"]
        assert all(view.is_contiguous(memory_format=layout) for view in got)
        if training:
            for mine, reference in zip(got, want, strict=True):
                torch.testing.assert_close(mine, reference, atol=1e-5, rtol=0)


def test_wrong_views_are_refused() -> None:
    with pytest.raises(ValueError, match="batch has 3 views, but the data preprocessor has 2"):
        build(views=ALPHA_BETA)(make_batch(2, num_views=3), True)
    for view in (torch.zeros(2, 2, 8, 8, 3), torch.zeros(2, 3, 2, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="view 0 must be uint8"):
            build()(dict(inputs=[view]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(views=dict(name="strong")), "list with one entry per view"),
        (dict(views=["strong"]), "a view must be a dict"),
        (dict(views=[dict(name="stronk")]), "did you mean 'strong'"),
        (dict(chunk_size=0), "chunk_size must be 1 or more"),
        (dict(std=0.0), "std must be above 0"),
        (dict(mean=[0.1, 0.2]), "mean must be one number or three"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VideoDataPreprocessor(**arguments)


# The batch in the format of mmaction2's recognisers.


@pytest.mark.parametrize("training", [False, True])
def test_views_are_stacked_and_labels_become_data_samples(training):
    views = [{"name": "strong", "blur_prob": 0.0}, {"name": "weak"}]
    ours = VideoDataPreprocessor(views)(make_batch(3), training)
    theirs = RecognizerDataPreprocessor(views)(make_batch(3), training)
    assert theirs["inputs"].shape == (3, 2, 3, 2, 13, 14)
    for v, view in enumerate(ours["inputs"]):
        assert torch.equal(theirs["inputs"][:, v], view)
    assert [s.gt_labels.item.tolist() for s in theirs["data_samples"]] == [[0], [1], [2]]
