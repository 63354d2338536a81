"""The fused augmentation compared with single operations, compiled and not compiled."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import augmentation_oracle as oracle

from sce_video.models import fused_augmentation
from sce_video.models.augmentation import ViewParameters, augment, draw_parameters, named_view
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.models.fused_augmentation import augment_fused, can_compile

MEAN, STD = torch.full((1, 1, 1, 1, 1), 0.45), torch.full((1, 1, 1, 1, 1), 0.225)
FUNCTIONS = ("before_contrast", "contrast_and_after", "solarise_and_normalise")
VIEWS = [dict(name="strong-gamma", strength=1.0)]


@pytest.fixture(autouse=True)
def _no_shapes_so_far(monkeypatch):
    monkeypatch.setattr(fused_augmentation, "_shapes", set())


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(fused_augmentation, "compiled", lambda function: function)


@pytest.fixture
def compiled_by(monkeypatch):
    """Compile with another backend instead of inductor."""

    def use(backend):
        torch.compiler.reset()
        monkeypatch.setattr(
            fused_augmentation,
            "compiled",
            lambda function: torch.compile(
                function, dynamic=False, fullgraph=True, backend=backend
            ),
        )

    yield use
    torch.compiler.reset()


def parameters(n: int, first_seed: int = 0) -> ViewParameters:
    return draw_parameters(named_view("strong-gamma", 1.0), range(first_seed, first_seed + n), 0)


def batch(n: int, first_seed: int = 0) -> dict:
    clips = torch.from_numpy(uint8_clips(n))
    return dict(inputs=[clips], seed=torch.arange(first_seed, first_seed + n))


def uint8_clips(n: int) -> np.ndarray:
    clips = oracle.clips(n).permute(0, 2, 3, 4, 1)
    return (clips * 255).round().to(torch.uint8).numpy()


def one_by_one(clips: torch.Tensor, drawn: ViewParameters) -> torch.Tensor:
    x = clips.permute(0, 4, 1, 2, 3).contiguous().float() / 255.0
    return (augment(x, drawn) - MEAN) / STD


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-5 / 0.225, rtol=0)  # 1e-5 on the 0..1 scale


def test_drawn_views_equal_the_oracle(uncompiled):
    clips, drawn = uint8_clips(24), parameters(24)
    got = augment_fused(torch.from_numpy(clips), drawn, MEAN, STD)
    want = np.stack([oracle.view(clip, drawn, i) for i, clip in enumerate(clips)])
    assert_equal(got, torch.from_numpy(want).float())


@pytest.mark.parametrize("neutral", [(), (0,), (1,), (2,), (3,), (0, 2), (1, 3)])
def test_every_order_of_the_jitter(uncompiled, neutral):
    """Test all 24 orders, with some operations that change nothing."""
    drawn = parameters(24)
    factors = drawn.factors.copy()
    factors[:, neutral] = np.float32([1, 1, 1, 0])[list(neutral)]
    orders = np.array(list(itertools.permutations(range(4))))
    nothing = np.zeros(24, dtype=bool)
    drawn = ViewParameters(
        jitter=~nothing, grey=nothing, blur=nothing, solarise=nothing, flip=nothing,
        factors=factors, order=orders, sigma=drawn.sigma,
    )  # fmt: skip
    clips = torch.from_numpy(uint8_clips(24))
    assert_equal(augment_fused(clips, drawn, MEAN, STD), one_by_one(clips, drawn))


def test_a_view_without_augmentation_is_only_normalised(uncompiled):
    drawn, clips = parameters(4), torch.from_numpy(uint8_clips(4))
    names = "jitter", "grey", "blur", "solarise", "flip"
    drawn = replace(drawn, **dict.fromkeys(names, np.zeros(4, dtype=bool)))
    got = augment_fused(clips, drawn, MEAN, STD)
    assert torch.equal(got, (clips.permute(0, 4, 1, 2, 3).float() / 255.0 - MEAN) / STD)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_preprocessor_returns_its_memory_format(uncompiled, channels_last):
    data = batch(5)
    one_by_one, fused = (
        VideoDataPreprocessor(VIEWS, fused=fused, channels_last=channels_last)
        for fused in (False, True)
    )
    (want,), (got,) = (p(data, training=True)["inputs"] for p in (one_by_one, fused))
    assert got.stride() == want.stride() and got.dtype == torch.float32
    assert_equal(got, want)


def test_other_draws_compile_nothing_new(compiled_by):
    """Shapes and code do not depend on the random parameters."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled_by(backend)
    preprocessor = VideoDataPreprocessor(VIEWS, fused=True)
    for first_seed in (0, 100, 200):
        preprocessor(batch(6, first_seed), training=True)
    assert len(graphs) == len(FUNCTIONS)


def test_kernels_are_made_for_few_shapes(compiled_by, monkeypatch):
    monkeypatch.setattr(fused_augmentation, "_MOST_SHAPES", 2)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled_by(backend)
    one_by_one, fused = (VideoDataPreprocessor(VIEWS, fused=on) for on in (False, True))
    for n in (3, 4, 5, 6, 3):
        (want,), (got,) = (p(batch(n), training=True)["inputs"] for p in (one_by_one, fused))
        assert_equal(got, want)
    assert len(graphs) == 2 * len(FUNCTIONS)


@pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++")),
    reason="needs a C++ compiler",
)
def test_compiled_kernels_give_the_same_values(compiled_by):
    compiled_by("inductor")
    clips, drawn = torch.from_numpy(uint8_clips(6)), parameters(6)
    got = augment_fused(clips, drawn, MEAN, STD, torch.channels_last_3d)
    assert_equal(got, one_by_one(clips, drawn))


def test_a_compiler_that_fails_leaves_the_operations_one_by_one(compiled_by, capsys):
    def broken(graph, _):
        raise RuntimeError("no C compiler")

    compiled_by(broken)
    data, preprocessor = batch(4), VideoDataPreprocessor(VIEWS, fused=True)
    want = VideoDataPreprocessor(VIEWS, fused=False)(data, training=True)["inputs"][0]
    for _ in range(2):
        assert torch.equal(preprocessor(data, training=True)["inputs"][0], want)
    assert preprocessor.fused is False


def test_a_cpu_computes_the_operations_one_by_one():
    assert not can_compile(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu_give_the_same_values():
    clips, drawn = torch.from_numpy(uint8_clips(6)), parameters(6)
    got = augment_fused(clips.cuda(), drawn, MEAN.cuda(), STD.cuda(), torch.channels_last_3d)
    assert_equal(got.cpu(), one_by_one(clips, drawn))
