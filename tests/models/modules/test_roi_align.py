"""RoIAlign compared with its definition in scalar loops, and the choice of a backend."""

from __future__ import annotations

import importlib
import math
import sys

import numpy as np
import pytest
import torch

from sce_video.models.modules import roi_align

# The package's attribute with this name is the function.
module = importlib.import_module("sce_video.models.modules.roi_align")

COMBINATIONS = [(0, True), (0, False), (2, True), (2, False)]

# (batch index, x1, y1, x2, y2) for two frames of 12 x 10 pixels, maps of 6 x 5 cells.
BOXES = {
    "inside": [[0, 2, 2, 8, 6], [1, 1, 3, 9, 9]],
    "fractional": [[1, 1.37, 0.81, 7.93, 6.49], [0, 3.3, 2.2, 3.9, 9.7]],
    "whole frame": [[0, 0, 0, 12, 10], [1, 0, 0, 12, 10]],
    "over the border": [[0, -3, -4, 5, 6], [1, 7, 6, 15.5, 14], [0, -5, -5, 20, 20]],
    "outside": [[0, -30, 2, -20, 6], [1, 2, 40, 6, 50], [0, 13, 11, 14, 12], [1, -2, -2, 0, 0]],
    "no size": [[0, 4, 4, 4, 4], [1, 5.3, 2, 5.3, 8], [0, 1, 7, 9, 7], [1, 12, 10, 12, 10]],
    "inverted": [[0, 8, 6, 2, 2], [1, 8, 2, 2, 6], [0, 2, 6, 8, 2.5], [1, 14, 12, 9, 9]],
    "thin": [[0, 3, 1, 3.01, 9], [1, 1, 3, 11, 3.02]],
    "far larger": [[0, -80, 2, 60, 5], [1, 3, -70, 9, 91], [0, 2, 2, 8, 6], [0, -400, 3, 20, 4]],
    "one frame of two": [[1, 2, 2, 8, 6], [1, 0, 1, 5, 5.5], [1, 3, 3, 9, 9]],
    "frames in any order": [[1, 2, 2, 8, 6], [0, 0, 1, 5, 5.5], [1, 3, 3, 9, 9], [0, 1, 1, 4, 4]],
}
SCALE = 0.5


def read_point(frame, y, x):
    """Interpolate the map (C, H, W) at a point between cell centres, which are at integers."""
    _, height, width = frame.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(frame))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    value = np.zeros(len(frame))
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            share = (1 - abs(y - row)) * (1 - abs(x - column))
            if share > 0:
                value += share * frame[:, row, column]
    return value


def span(low, high, bins, scale, ratio, aligned):
    """Return start, bin size and points per bin along one axis of a box."""
    low, high = low * scale, high * scale
    size = high - low
    if aligned:
        low -= 0.5  # pixel centres are at half integers, cell centres at integers
    else:
        size = max(size, 1)
    points = ratio if ratio else max(math.ceil(size / bins), 0)
    return low, size / bins, points


def oracle(features, rois, size, scale, ratio, aligned):
    """Compute RoIAlign for one box, bin and point at a time."""
    out = np.zeros((len(rois), features.shape[1], *size))
    for r, (frame, x1, y1, x2, y2) in enumerate(rois):
        top, bin_height, down = span(y1, y2, size[0], scale, ratio, aligned)
        left, bin_width, across = span(x1, x2, size[1], scale, ratio, aligned)
        for i in range(size[0]):
            for j in range(size[1]):
                values = [
                    read_point(
                        features[int(frame)],
                        top + (i + (a + 0.5) / down) * bin_height,
                        left + (j + (b + 0.5) / across) * bin_width,
                    )
                    for a in range(down)
                    for b in range(across)
                ]
                if values:
                    out[r, :, i, j] = np.mean(values, axis=0)
    return out


def random_features(shape=(2, 2, 5, 6), seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(("ratio", "aligned"), COMBINATIONS)
@pytest.mark.parametrize("family", BOXES)
def test_values_and_gradient_equal_the_definition(family, ratio, aligned):
    features = random_features().requires_grad_()
    boxes, size = BOXES[family], (3, 2)
    pooled = roi_align(features, torch.tensor(boxes), size, SCALE, ratio, aligned, backend="torch")
    args = (size, SCALE, ratio, aligned)
    expected = oracle(features.detach().numpy(), boxes, *args)
    # The boxes are float32, so they differ from the written numbers by up to 1e-7.
    np.testing.assert_allclose(pooled.detach().numpy(), expected, atol=1e-5)
    # Pooling A is linear in the features: <g, A x> = <gradient, x> for any x and g.
    x, g = random_features(seed=1), random_features(pooled.shape, seed=2)
    pooled.backward(g)
    product = (g.numpy() * oracle(x.numpy(), boxes, *args)).sum()
    assert (features.grad * x).sum().item() == pytest.approx(product, abs=1e-4)


# --- other properties -------------------------------------------------------------------------


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("frames", [2, 0])
def test_no_boxes(frames, requires_grad):
    features = torch.randn(frames, 3, 4, 5, dtype=torch.float16, requires_grad=requires_grad)
    pooled = roi_align(features, torch.zeros(0, 5), (7, 6), 1 / 16)
    assert pooled.shape == (0, 3, 7, 6) and pooled.dtype == torch.float16
    assert pooled.requires_grad == requires_grad
    if requires_grad:
        pooled.float().sum().backward()
        assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    features = random_features().to(dtype).requires_grad_()
    rois = torch.tensor(sum(BOXES.values(), []))
    pooled = roi_align(features, rois, 3, SCALE, backend="torch")
    exact = roi_align(features.detach().float(), rois, 3, SCALE, backend="torch")
    assert pooled.dtype == dtype and torch.equal(pooled, exact.to(dtype))
    pooled.sum().backward()
    assert features.grad.dtype == dtype


def test_memory_layout_chunks_and_integer_boxes_change_nothing(monkeypatch):
    features = random_features((2, 3, 5, 6))
    rois = torch.tensor(BOXES["frames in any order"] + BOXES["inside"])
    expected = roi_align(features, rois, (3, 2), SCALE, backend="torch")
    assert expected.is_contiguous()
    layouts = [
        features.to(memory_format=torch.channels_last),
        features.transpose(2, 3).contiguous().transpose(2, 3),
    ]
    for layout in layouts:
        pooled = roi_align(layout, rois, [3, 2], SCALE, backend="torch")
        torch.testing.assert_close(pooled, expected)
    whole = torch.tensor(BOXES["inside"], dtype=torch.int64)
    torch.testing.assert_close(
        roi_align(features, whole, (3, 2), SCALE, backend="torch"), expected[-2:]
    )
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1)
    chunked = roi_align(features, rois, (3, 2), SCALE, backend="torch")
    torch.testing.assert_close(chunked, expected)


GOOD = {
    "features": torch.zeros(2, 3, 4, 4),
    "rois": torch.zeros(1, 5),
    "output_size": 7,
    "spatial_scale": 1.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rois": torch.tensor([[0.0, 0, 0, 1, 1], [2, 0, 0, 1, 1]])}, r"rois\[1\].*index 2.*2 fr"),
        ({"rois": torch.tensor([[-1.0, 0, 0, 1, 1]])}, "index -1"),
        ({"rois": torch.tensor([[0.5, 0, 0, 1, 1]])}, "index 0.5"),
        ({"rois": torch.tensor([[0.0, 0, math.nan, 1, 1]])}, r"rois\[0\] is not finite"),
        ({"rois": torch.zeros(3, 4)}, r"rois must be \(R, 5\).*\(3, 4\)"),
        ({"features": torch.zeros(2, 3, 8, 4, 4)}, r"features .*\(2, 3, 8, 4, 4\)"),
        ({"features": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}, "uint8"),
        ({"features": torch.zeros(0, 3, 4, 4)}, "the features have only 0 frames"),
        ({"output_size": 0}, "output_size"),
        ({"output_size": (7, 7, 7)}, "output_size"),
        ({"spatial_scale": 0}, "spatial_scale"),
        ({"sampling_ratio": -1}, "sampling_ratio"),
        ({"backend": "detectron2"}, "auto, torch, torchvision.*'detectron2'"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        roi_align(**{**GOOD, **change})


# --- choice of a backend ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'raise RuntimeError("operator torchvision::nms does not exist")',
        "",
        "def roi_align(): pass",  # without the operator in torch
    ],
)
def test_a_broken_installation_counts_as_none(tmp_path, monkeypatch, text):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").touch()
    (tmp_path / "torchvision/ops.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module._import_torchvision.cache_clear()
    try:
        found, why = module._import_torchvision()
        assert found is None and why
        with pytest.raises(
            ValueError, match=r"needs torchvision\.ops.*cannot be imported.*\"torch\""
        ):
            roi_align(**GOOD, backend="torchvision")
        assert module._choose_backend("auto", torch.device("cpu")) == "torch"
    finally:
        module._import_torchvision.cache_clear()
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("ratio", "aligned"), COMBINATIONS)
@pytest.mark.parametrize("boxes_on", ["cpu", "cuda"])
def test_on_a_gpu(ratio, aligned, boxes_on):
    rois = torch.tensor(sum(BOXES.values(), []))
    results = []
    for device in ("cpu", "cuda"):
        features = random_features(dtype=torch.float32).to(device).requires_grad_()
        boxes = rois.to(boxes_on if device == "cuda" else "cpu")
        pooled = roi_align(features, boxes, 7, SCALE, ratio, aligned, backend="torch")
        pooled.square().sum().backward()
        results.append((pooled.detach().cpu(), features.grad.cpu()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
