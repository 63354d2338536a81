"""Archive layout, pretraining, linear evaluation, test, results, report; kNN as well.

Recipes of MoCo v2 and ReSSL; SCE's on every set are run by test_images_page.py. And a recipe of
one's own: that of image folders, on CIFAR10.
"""

from __future__ import annotations

import html
import json
import os
from pathlib import Path

import pytest
from helpers.image_recipes import make_data, small
from helpers.run_tool import load, prepare
from helpers.training import REPO

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.runs import launch

pytestmark = pytest.mark.slow

#: Ending of a pretraining recipe's name: the linear recipe, images of the test split.
SETS = {
    "r18_1xb256-32-200e_cifar10": ("r18_1xb256-32-100e_cifar10", 10),
    "r18_1xb256-32-200e_cifar100": ("r18_1xb256-32-100e_cifar100", 100),
    "r18_1xb256-96-200e_stl10": ("r18_1xb256-96-100e_stl10", 10),
    "r18_1xb256-64-200e_tiny_imagenet": ("r18_1xb256-64-100e_tiny_imagenet", 6),
    "r50_8xb64-224-200e_imagenet100": ("r50_8xb64-224-100e_imagenet100", 100),
    "r50_8xb64-224-200e_imagenet": ("r50_8xb64-224-100e_imagenet", 102),
}
#: Each stem with both methods; test_image_recipes.py trains both on CIFAR10.
RECIPES = [
    ("moco", "r18_1xb256-32-200e_cifar100"),
    ("ressl", "r18_1xb256-96-200e_stl10"),
    ("moco", "r50_8xb64-224-200e_imagenet"),
    ("ressl", "r50_8xb64-224-200e_imagenet100"),
]
LINEAR = REPO / "configs/downstream/linear"
OWN = """
_base_ = "{recipe}"
data = dict(
    type="ImageArrayDataset", name="cifar10", data_root="data/cifar10", check_counts=False
)
whole = [dict(type="LoadImage", num_views=1), dict(type="PackClips")]
train_dataloader = dict(
    dataset=dict(
        _delete_=True, **data, split="train",
        pipeline=[
            dict(type="LoadImage", num_views=2),
            dict(type="RandomResizedCropClips", size=32, area=(0.2, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)
test_dataloader = dict(dataset=dict(_delete_=True, **data, split="test", pipeline=whole))
test_cfg = dict(
    gallery_dataloader=dict(dataset=dict(_delete_=True, **data, split="train", pipeline=whole))
)
del data, whole
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with ``data`` and the lists; it is the current one."""
    root = tmp_path_factory.mktemp("chain")
    make_data(root / "data")
    before = os.getcwd()
    os.chdir(root)
    lists = [("tiny_imagenet", "data/tiny_imagenet"), ("imagenet", "data/imagenet")]
    for words in (*lists, ("imagenet", "data/imagenet", "--imagenet100")):
        assert prepare(*words, "--no-check", "--workers", "1") == 0
    yield root
    os.chdir(before)


def train(config: Path, work_dir: str, pretrained: Path | None = None, *options: str) -> Path:
    """Train for an epoch; returns the checkpoint."""
    cfg = launch.training_config(
        config, work_dir=work_dir, pretrained=pretrained and str(pretrained), amp="float32",
        cfg_options=[*small(config, epochs=1), *options],
    )  # fmt: skip
    cfg.experiment_name = f"{Path(work_dir).name}_train"  # mmengine's own names count seconds
    launch.train(cfg)
    return Path(work_dir, "epoch_1.pth")


def evaluate(config: Path, checkpoint: Path, work_dir: str) -> dict:
    """Test; returns the content of results.json."""
    options = small(config, epochs=1)
    cfg = launch.testing_config(config, str(checkpoint), work_dir=work_dir, cfg_options=options)
    cfg.experiment_name = f"{Path(work_dir).name}_test"
    launch.test(cfg)
    return json.loads(Path(work_dir, "results.json").read_text())


def run_chain(name: str, recipe: Path, linear: Path) -> tuple[dict, dict]:
    """Results of the pretrained network (kNN) and of the linear classifier."""
    pretrained = train(recipe, f"work_dirs/{name}")
    neighbours = evaluate(recipe, pretrained, f"work_dirs/{name}")
    classifier = train(linear, f"work_dirs/{name}_linear", pretrained)
    frozen, before = (
        {
            key: value
            for key, value in load_checkpoint_file(path)["state_dict"].items()
            if key.startswith("backbone.")
        }
        for path in (classifier, pretrained)
    )
    assert frozen.keys() == before.keys()
    assert all((frozen[key] == value).all() for key, value in before.items())
    return neighbours, evaluate(linear, classifier, f"work_dirs/{name}_linear")


def in_report(file: str) -> bool:
    """Whether the page lists a file; Markdown's special characters are written as entities."""
    return file in html.unescape(Path("work_dirs/report.md").read_text())


@pytest.mark.parametrize(("method", "name"), RECIPES)
def test_a_recipe_of_the_paper(folder, method, name):
    linear, images = SETS[name]
    recipe = REPO / f"configs/{method}/{method}_{name}.py"
    neighbours, result = run_chain(f"{method}_{name}", recipe, LINEAR / f"{linear}.py")
    assert 0 <= neighbours["metrics"]["knn_top1"] <= 1
    protocol = result["protocol"]
    assert (protocol["videos"], protocol["failures"]) == (images, 0)
    assert protocol["pretrained"]["benchmark"]["pretraining"] == f"{method}_images"
    assert load("report").main(["work_dirs"]) == 0
    assert in_report(f"work_dirs/{method}_{name}_linear/results.json")


def test_a_recipe_of_ones_own(folder):
    """The recipe of image folders on CIFAR10: its stem, and so the classifier's, is ImageNet's."""
    recipe = folder / "own_cifar10.py"
    recipe.write_text(OWN.format(recipe=REPO / "configs/sce/sce_r18_image_folder.py"))
    linear = LINEAR / "r18_1xb256-32-100e_cifar10.py"
    neighbours, result = run_chain("own", recipe, linear)
    assert neighbours["protocol"]["bank_videos"] == 50
    assert result["protocol"]["network"]["stem"] == "imagenet"
    assert result["protocol"]["benchmark_problems"].keys() >= {"pretrained_on", "pretraining"}
    assert load("report").main(["work_dirs"]) == 0
    assert in_report("work_dirs/own_linear/results.json")
