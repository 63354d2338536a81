from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from sce_video.models.augmentation import draw_parameters, named_view
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.pages.views import (
    ViewRow,
    denormalise,
    describe_parameters,
    draw_view_sheet,
    view_rows,
)


def make_batch(n: int = 3, t: int = 4) -> dict:
    rng = np.random.default_rng(0)
    views = [rng.integers(0, 256, (n, t, 12, 16, 3), dtype=np.uint8) for _ in range(2)]
    return dict(inputs=[torch.from_numpy(view) for view in views], seed=torch.arange(n))


def test_denormalise_undoes_the_preprocessor() -> None:
    batch = make_batch()
    preprocessor = VideoDataPreprocessor(mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
    view = preprocessor(batch)["inputs"][1][2]
    frames = denormalise(view, preprocessor.mean, preprocessor.std)
    np.testing.assert_allclose(frames, batch["inputs"][1][2].numpy() / 255, atol=1e-6)


def test_the_description_lists_the_transforms_in_order() -> None:
    parameters = draw_parameters(named_view("strong-gamma", 1.0), range(200), view=0)
    names = ("brightness", "contrast", "saturation", "hue")
    for i in range(200):
        parts = describe_parameters(parameters, i).split(", ")
        words = [part.split()[0] for part in parts if part]
        want = [names[part] for part in parameters.order[i]] if parameters.jitter[i] else []
        want += [n for n in ("grey", "blur", "solarise", "flip") if getattr(parameters, n)[i]]
        assert words == want


def test_the_description_has_the_values() -> None:
    parameters = draw_parameters(named_view("strong-alpha", 1.0), range(50), view=0)
    i = int(np.flatnonzero(parameters.jitter)[0])
    text = describe_parameters(parameters, i)
    assert f"brightness x{parameters.factors[i, 0]:.2f}" in text
    assert f"hue {parameters.factors[i, 3]:+.2f}" in text
    assert f"blur {parameters.sigma[i]:.2f} px" in text


def test_rows_are_videos_by_views_and_show_the_network_input() -> None:
    batch = make_batch()
    preprocessor = VideoDataPreprocessor(views=[dict(name="strong", strength=1.0)] * 2)
    rows = view_rows(preprocessor, batch, ["a", "b", "c"])
    assert [row.heading for row in rows] == ["a", "", "b", "", "c", ""]
    assert [row.title.split(":")[0] for row in rows] == ["view 0", "view 1"] * 3
    for v in range(2):
        parameters = draw_parameters(preprocessor.views[v], batch["seed"].tolist(), v)
        assert rows[4 + v].title == f"view {v}: {describe_parameters(parameters, 2)}"
    views = preprocessor(batch, training=True)["inputs"]
    want = (views[1][2] * 0.225 + 0.45).clamp(0, 1).permute(1, 2, 3, 0).numpy()
    np.testing.assert_allclose(rows[5].frames, want, atol=1e-6)


def test_without_augmentation_the_title_says_so() -> None:
    rows = view_rows(VideoDataPreprocessor(), make_batch(1))
    assert [row.title for row in rows] == ["view 0: nothing", "view 1: nothing"]


def test_bad_batches_are_refused() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="1 names for 3 samples"):
        view_rows(VideoDataPreprocessor(), batch, ["a"])
    del batch["seed"]
    with pytest.raises(ValueError, match="no `seed`"):
        view_rows(VideoDataPreprocessor(), batch)


def colour_row(colours: list[tuple[float, float, float]]) -> ViewRow:
    frames = np.ones((len(colours), 10, 10, 3), np.float32) * np.array(colours)[:, None, None]
    return ViewRow(frames.astype(np.float32), "view 0: nothing", "video")


@pytest.mark.parametrize("shown", [3, 2])
def test_the_sheet_shows_the_frames_from_left_to_right(tmp_path: Path, shown: int) -> None:
    colours = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
    path = tmp_path / "sheet.png"
    draw_view_sheet([colour_row(colours)] * 2, max_frames=shown).savefig(path)
    image = cv2.imread(str(path))[:, :, ::-1]
    centres = []
    for colour in colours:
        ys, xs = np.nonzero((image == np.array(colour) * 255).all(axis=-1))
        centres.append((len(xs), xs.mean() if len(xs) else None))
        # Two rows, so the same frame twice, one below the other.
        assert len(xs) == 0 or ys.max() - ys.min() > image.shape[0] / 3
    if shown == 3:
        assert centres[0][1] < centres[1][1] < centres[2][1]
    else:  # first and last
        assert centres[1][0] == 0 and centres[0][1] < centres[2][1]


def test_long_titles_are_wrapped_inside_the_sheet() -> None:
    row = colour_row([(0.5, 0.5, 0.5)])._replace(title="brightness x0.50, " * 20)
    figure = draw_view_sheet([row])
    figure.canvas.draw()
    width = figure.bbox.width
    assert all(text.get_window_extent().x1 < width for text in figure.texts)
    short = draw_view_sheet([colour_row([(0.5, 0.5, 0.5)])])
    assert figure.get_figheight() > short.get_figheight()


def test_bad_sheets_are_refused() -> None:
    with pytest.raises(ValueError, match="no view to draw"):
        draw_view_sheet([])
    with pytest.raises(ValueError, match="max_frames must be at least 1"):
        draw_view_sheet([colour_row([(0, 0, 0)])], max_frames=0)
