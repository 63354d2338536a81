"""What is refused in a config file: misspelled keys, unknown types, wrong values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sce_video.engine.config.load import check_config, load_config
from sce_video.registry import _MMACTION_FIRST

RECIPE = Path(__file__).parents[3] / "configs/sce/sce_r3d18_folder.py"


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Checks a child of the folder recipe with this text; returns the warnings."""
    warnings: list[str] = []
    monkeypatch.setattr(
        "sce_video.engine.config.check.print_log", lambda message, **_: warnings.append(message)
    )

    def check(text: str, base: str = str(RECIPE)) -> str:
        path = tmp_path / "mine.py"
        path.write_text(f"_base_ = [{base!r}]\n{text}\n")
        check_config(load_config(path))
        return "".join(warnings)

    return check


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("optim_wraper = dict(type='OptimWrapper')", "optim_wraper", "optim_wrapper"),
        ("lr = 0.1", "lr", "optim_wrapper.optimizer.lr"),
        ("model = dict(backbone=dict(dept=1))", "model.backbone.dept", "model.backbone.depth"),
        (
            "train_dataloader = dict(dataset=dict(pipeline=dict(RandomClips=dict(num_frame=1))))",
            "train_dataloader.dataset.pipeline.RandomClips.num_frame",
            "RandomClips.num_frames",
        ),
    ],
)
def test_a_misspelled_or_misplaced_key_is_refused(checked, text, key, near):
    with pytest.raises(ValueError, match="unknown keys in the config") as error:
        checked(text)
    _, message = str(error.value).splitlines()
    assert message.strip().startswith(f"{key}: ") and near in message.split("did you mean")[1]


def test_all_faults_of_a_file_are_listed_at_once(checked):
    with pytest.raises(ValueError) as error:
        checked("model = dict(lamda_=1)\noptim_wrapper = dict(optimizer=dict(xyz=2))")
    _, *faults = str(error.value).splitlines()
    assert faults[0].strip().startswith("model.lamda_: SCE has no 'lamda_'; did you")
    # No key is near, and the key itself is not suggested.
    assert (
        faults[1].strip().startswith("optim_wrapper.optimizer.xyz: AdamW has no 'xyz'; there are")
    )


def test_a_helper_of_a_base_may_be_used_by_the_child_only(checked, tmp_path):
    base = tmp_path / "base.py"
    base.write_text(f"_base_ = [{str(RECIPE)!r}]\ntrain_loader = dict(batch_size=3)\n")
    assert checked("train_dataloader = _base_.train_loader", str(base)) == ""
    with pytest.raises(ValueError, match="did you mean train_dataloader"):
        checked("", str(base))


def test_a_variable_without_effect_is_warned_of(checked):
    assert "'title' has no effect" in checked("title = 'first try'")
    # The base has made its data loader from its own train_pipeline.
    assert "'train_pipeline' has no effect" in checked("train_pipeline = []")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.type=SCEE", "model.type: nothing is registered as 'SCEE'; did you mean SCE"),
        ("optim_wrapper.optimizer.type=SDG", "optimizer.type: .* did you mean SGD"),
        ("train_dataloader.dataset.pipeline.RandomClips.type=RandmClips", "did you mean RandomC"),
        ("model.projector.type=MLPP", "model.projector.type: .* did you mean MLP"),
        ("train_cfg.type=Qqqq", "train_cfg.type: .* name its module with --import"),
        ("model.queue_size=1.5", "model.queue_size: give a whole number, got 1.5"),
        ("model.symmetric=3", "model.symmetric: give True or False, got 3"),
        ("model.target_views=[0,x]", "model.target_views: give a list of values .* or None"),
        ("train_dataloader.dataset.data_root=5", "dataset.data_root: give text, got 5"),
        (
            "train_dataloader.dataset.pipeline.RandomResizedCropClips.area=0.5",
            r"area: give 2 values \(a number, a number\), got 0.5",
        ),
    ],
)
def test_an_unknown_type_or_a_value_of_a_wrong_type_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        check_config(load_config(RECIPE, [option]))


NAMES = """
import sys
import sce_video.registry as registry
from sce_video.engine.config.check import _REGISTRIES, check_config
from sce_video.engine.config.load import load_config

check_config(load_config(sys.argv[1]))
print(*({"mmaction.datasets", "mmaction.visualization", "wandb"} & set(sys.modules)))
names = {}
for part in _REGISTRIES:
    for found in getattr(registry, part).chain():
        names[part, found.scope] = set(found.module_dict)
for part, scope in names:
    if scope == "mmaction" and names[part, scope] & names[part, "mmengine"]:
        print(part)
own = {part: found for (part, scope), found in names.items() if scope == "sce_video"}
for part, found in own.items():
    print(*(found & set().union(*(names[p, s] for p, s in names if p != part))))
"""


def test_mmaction2_is_asked_last_where_the_order_changes_nothing():
    run = [sys.executable, "-c", NAMES, str(RECIPE)]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split("\n")
    assert found.pop(0) == ""  # a recipe without parts of mmaction2 imports none
    assert set(found) - {""} <= set(_MMACTION_FIRST)  # no name of ours has two kinds either
