"""Small recipes of all methods differ from SCE's in the objective only: a fair comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from sce_video.engine.config.load import load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
METHODS = ("byol", "lejepa", "moco", "moco_v3", "ressl", "simclr", "swav")
PAIRS = [  # the recipe of a method, and SCE's
    (CONFIGS / other.format(method), CONFIGS / sce)
    for method in METHODS
    for other, sce in (
        ("quickstart/{}_toy_actions.py", "quickstart/sce_toy_actions.py"),
        ("{0}/{0}_r3d18_folder_small.py", "sce/sce_r3d18_folder_small.py"),
    )
]
IMAGE_PAIRS = [
    (CONFIGS / f"{method}/{method}_{name}.py", CONFIGS / f"sce/sce_{name}.py")
    for method in ("moco", "ressl")
    for name in ("r18_digits_small", "r18_frames_small")
]


@pytest.mark.parametrize(("path", "sce"), PAIRS, ids=lambda path: path.stem)
def test_only_the_objective_differs(path: Path, sce: Path):
    cfg, reference = load_config(path).to_dict(), load_config(sce).to_dict()
    model, sce_model = cfg.pop("model"), reference.pop("model")
    assert model["backbone"] == sce_model["backbone"]
    assert model["projector"]["hidden_channels"] == sce_model["projector"]["hidden_channels"]
    assert model["projector"]["out_channels"] == sce_model["projector"]["out_channels"]
    if model["type"] in ("MoCo", "ReSSL"):
        assert model["queue_size"] == sce_model["queue_size"]

    momentum = cfg["custom_hooks"][0].pop("model")
    scheduled = reference["custom_hooks"][0].pop("model")
    assert momentum == (None if model["type"] in ("SimCLR", "SwAV", "LeJEPA") else scheduled)
    if model["type"] == "ReSSL":
        views = cfg["data_preprocessor"].pop("views")
        strong, _ = reference["data_preprocessor"].pop("views")
        assert views == [{**strong, "name": "strong"}, dict(name="weak")]
    cfg.pop("fit_queue", None), reference.pop("fit_queue", None)
    assert cfg == reference


@pytest.mark.parametrize(("path", "sce"), IMAGE_PAIRS, ids=lambda path: path.stem)
def test_only_the_objective_differs_on_images(path: Path, sce: Path):
    """Strong online and weak target view for SCE and ReSSL (paper, section 4.1), both strong for
    MoCo v2 (arXiv 2003.04297); no predictor, one pass of each branch."""
    cfg, reference = load_config(path).to_dict(), load_config(sce).to_dict()
    model, sce_model = cfg.pop("model"), reference.pop("model")
    for name in ("backbone", "projector", "queue_size"):
        assert model[name] == sce_model[name]
    assert sce_model["predictor"] is None and sce_model["symmetric"] is False
    assert "symmetric" not in model  # False by default
    views, sce_views = (c["data_preprocessor"].pop("views") for c in (cfg, reference))
    assert [view["name"] for view in sce_views] == ["strong", "weak"]
    strong = sce_views[0]
    assert views == ([strong, strong] if model["type"] == "MoCo" else sce_views)
    if "digits" in path.stem:  # a mirrored digit is none
        assert all(view["flip_prob"] == 0 for view in (*views, *sce_views))
    assert cfg == reference


def test_views_pass_jointly_where_the_source_passes_them_so():
    """facebookresearch/swav, lightly's SimCLR, LeJEPA's MINIMAL.md; SlowFast: one by one."""
    found = {}
    for method in ("simclr", "swav", "lejepa"):
        for path in CONFIGS.glob(f"*/{method}_*.py"):
            found[path.stem] = load_config(path).model.get("joint_views", False)
    assert len(found) == 16 and found == {name: "_rho" not in name for name in found}


def test_the_network_of_frames_differs_in_its_backbone_only():
    names = ("sce_frames_toy_actions", "sce_toy_actions")
    cfg, reference = (load_config(CONFIGS / f"quickstart/{n}.py").to_dict() for n in names)
    backbone = cfg["model"].pop("backbone")
    other = reference["model"].pop("backbone")
    assert backbone["type"] == "ResNet2d"
    assert backbone["base_channels"] == other["base_channels"] and backbone["depth"] == 18
    assert cfg == reference
