from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import cv2
import pytest
from helpers.videos import numbered_frames, write_video

RECIPE = """
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[dict(name="strong-alpha", strength=1.0), dict(name="strong-beta", strength=1.0)],
)
train_dataloader = dict(
    batch_size=2,
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(
        type="VideoDataset",
        data_root={root!r},
        timeout=None,
        pipeline=[
            dict(type="OpenVideo"),
            dict(type="RandomClips", clip_duration=0.5, num_frames=3, num_views=2),
            dict(type="DecodeClips"),
            dict(type="RandomResizedCropClips", size=32, area=(0.2, 0.766)),
            dict(type="PackClips"),
        ],
    ),
)
"""


@pytest.fixture(scope="module")
def tool(repo: Path) -> ModuleType:
    path = repo / "tools/analysis/show_views.py"
    spec = importlib.util.spec_from_file_location("show_views", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    root = tmp_path / "videos"
    for name in ("jump/a", "jump/b", "run/c"):
        write_video(root / f"{name}.mp4", numbered_frames(20))
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(root=str(root)))
    return path


def test_it_writes_a_sheet_of_videos_at_equal_steps(
    tool: ModuleType, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "images" / "views.png"
    tool.main([str(config), "--out", str(out), "--num", "2"])
    assert cv2.imread(str(out)).std() > 10
    cfg = tool.load_config(str(config), [])
    rows = tool.load_rows(cfg, num=2, seed=0)
    assert [row.heading for row in rows] == ["jump/a.mp4   jump", "", "run/c.mp4   run", ""]
    assert all(row.frames.shape == (3, 32, 32, 3) for row in rows)
    other = tool.load_rows(cfg, num=99, seed=1)
    assert len(other) == 6 and other[0].title != rows[0].title
