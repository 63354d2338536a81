"""Every file in configs/ loads, every recipe builds, and its settings match its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sce_video.datasets.transforms import LoadImage, RandomClips
from sce_video.engine.config import check_config, load_config
from sce_video.registry import HOOKS, LOOPS, MODELS, OPTIMIZERS, TRANSFORMS

REPO = Path(__file__).resolve().parents[2]
ALL = sorted((REPO / "configs").rglob("*.py"))
ALL_RECIPES = [p for p in ALL if "_base_" not in p.parts]
RECIPES = [p for p in ALL_RECIPES if "downstream" not in p.parts]  # pretraining
PAPER = [p for p in RECIPES if re.search(r"_k[24]00", p.name)]
