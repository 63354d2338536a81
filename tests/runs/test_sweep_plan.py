"""The steps of sweeps: what is shared, what makes a step another one, and their commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sce_video.engine.config.changes import parse_options
from sce_video.runs.sweep_plan import (
    Column,
    Point,
    Pretraining,
    Sweep,
    chains,
    option_texts,
    plan,
)

CONFIG = """
model = dict(type="SCE", lambda_=0.5, tau=0.1)
train_cfg = dict(max_epochs=3)
randomness = dict(seed=0)
"""
EVALUATION = CONFIG.replace("max_epochs=3", "max_epochs=7")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with two small configs, which is not the current one."""
    (tmp_path / "repo/configs").mkdir(parents=True)
    (tmp_path / "repo/configs/pre.py").write_text(CONFIG)
    (tmp_path / "repo/configs/eval.py").write_text(EVALUATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "repo"


KNN = Column("kNN", "knn_top1")
LINEAR = Column("linear", "top1", "configs/eval.py", {}, "one")


def sweep(*points, name="s", columns=(KNN,), seeds=(0,), options=None):
    options = options or {}
    return Sweep(points, columns, name, name, "", Pretraining("configs/pre.py", options), seeds)


def folders(*sweeps, root, out="out", options=((), ())):
    """Folder of the pretraining and of the evaluation of every cell."""
    cells = plan(sweeps, out, *options, root=root)
    return [(cell.step.before and cell.step.before.folder, cell.step.folder) for cell in cells]


def test_commands_of_every_kind_of_evaluation(root):
    columns = (KNN, LINEAR, replace(LINEAR, name="splits", training="splits"))
    one = sweep(Point("a", options={"model.tau": 0.2}), columns=columns, seeds=(5,))
    options = ("model.lambda_=1.0",), ("randomness.seed=9", "model.type=SCE")
    knn, linear, splits = (cell.step for cell in plan([one], "out", *options, root))
    pre = knn.before
    assert pre is linear.before is splits.before and pre.before is None
    assert pre.result == "epoch_3.pth" and pre.folder.startswith("pretrain/pre-")
    config, test_config = f"{root}/configs/pre.py", f"{root}/configs/eval.py"
    trained = ["model.tau=0.2", "model.lambda_=1.0", "randomness.seed=5"]
    ((*start, _, one, two, three),) = pre.commands
    assert start == ["tools/train.py", config, "--work-dir", f"out/{pre.folder}", "--resume"]
    assert [one, two, three] == trained
    checkpoint, folder = f"out/{pre.folder}/epoch_3.pth", f"out/{knn.folder}"
    own = ["randomness.seed=9", "model.type=SCE", "randomness.seed=5"]  # the last one counts
    (test,) = knn.commands
    assert test == (
        *("tools/test.py", config, checkpoint, "--work-dir", folder),
        *("--out", f"{folder}/results.json", "--cfg-options", *trained, *own),
    )
    folder = f"out/{linear.folder}"
    train, test = linear.commands
    assert train == (
        *("tools/train.py", test_config, "--pretrained", checkpoint, "--work-dir", folder),
        *("--resume", "--cfg-options", *own),
    )
    assert test[:5] == ("tools/test.py", test_config, f"{folder}/epoch_7.pth", "--work-dir", folder)
    (run,) = splits.commands
    assert run == (
        *("-m", "sce_video", "finetune-splits", test_config, "--pretrained", checkpoint),
        *("--work-dir", f"out/{splits.folder}", "--cfg-options", *own),
    )
    assert linear.result == knn.result == "results.json" and splits.result == "splits.json"


def test_checkpoints_that_count_iterations_are_found_by_their_folder(root):
    """How many iterations a training has is known when its videos are read."""
    for name in ("pre", "eval"):
        file = root / f"configs/{name}.py"
        hooks = 'default_hooks = dict(checkpoint=dict(type="CheckpointHook", by_epoch=False))'
        file.write_text(f"{file.read_text()}\n{hooks}\n")
    knn, linear = (
        cell.step for cell in plan([sweep(Point("a"), columns=(KNN, LINEAR))], "out", root=root)
    )
    assert knn.before.result == "last_checkpoint"
    assert knn.commands[0][2] == f"out/{knn.before.folder}"
    train, test = linear.commands
    assert train[3] == f"out/{knn.before.folder}" and test[2] == f"out/{linear.folder}"


def test_equal_points_of_two_sweeps_are_one_step(root):
    first = sweep(Point("base"), Point("b", options={"model.lambda_": 1.0}), columns=(KNN, LINEAR))
    second = sweep(Point("another name"), name="t", columns=(LINEAR,))
    cells = plan([first, second], "out", root=root)
    assert cells[1].step is cells[4].step and cells[0].step.before is cells[4].step.before
    work = chains(cells)
    kinds = [[step.folder.split("/")[0] for step in chain] for chain in work]
    assert kinds == [["pretrain", "evaluate", "evaluate"]] * 2
    assert all(step.before is chain[0] for chain in work for step in chain[1:])


def test_what_makes_a_step_another_one(root):
    """Settings, seed, options of the command line; not its name, nor the output folder."""
    (base,) = folders(sweep(Point("a")), root=root)
    assert folders(sweep(Point("b", note="x")), root=root, out="elsewhere") == [base]
    others = [
        folders(sweep(Point("a", options={"model.tau": 0.2})), root=root),
        folders(sweep(Point("a"), options={"model.tau": 0.3}), root=root),
        folders(sweep(Point("a"), seeds=(1,)), root=root),
        folders(sweep(Point("a")), root=root, options=(("model.tau=0.4",), ())),
        # An option that repeats the config's value wins over what a rule would set.
        folders(sweep(Point("a", options={"model.tau": 0.1})), root=root),
    ]
    both = [pair for (pair,) in [[base], *others]]
    assert len({pre for pre, _ in both}) == len({evaluated for _, evaluated in both}) == 6
    ((pre, evaluated),) = folders(sweep(Point("a")), root=root, options=((), ("model.tau=0.4",)))
    assert pre == base[0] and evaluated != base[1]
    # A function's text has its address; two loads of the file make two functions.
    text = CONFIG + "train_dataloader = dict(collate_fn=lambda batch: batch)\n"
    (root / "configs/pre.py").write_text(text)
    (changed,) = folders(sweep(Point("a")), root=root)
    assert changed not in both and folders(sweep(Point("a")), root=root) == [changed]


def test_a_checkpoint_is_not_trained(root):
    points = Point("r", checkpoint="random"), Point("f", checkpoint="a.pth")
    found = folders(sweep(*points, seeds=(0, 1)), root=root)
    assert [pre for pre, _ in found] == [None] * 4 and len({step for _, step in found}) == 4
    cells = plan([sweep(*points)], "out", root=root)
    assert [cell.step.commands[0][2] for cell in cells] == ["random", "a.pth"]
    assert [len(chain) for chain in chains(cells)] == [1, 1]


def test_wrong_configs(root):
    with pytest.raises(ValueError, match=r"model\.lambda_"):
        plan([sweep(Point("a", options={"model.lamda_": 1.0}))], "out", root=root)
    (root / "configs/pre.py").write_text("model = dict(type='SCE')")
    with pytest.raises(ValueError, match="has no train_cfg, so it cannot be trained"):
        plan([sweep(Point("a"))], "out", root=root)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -3, 1e-06, 1.0, True, None, "sce_a_0.125", "/a b/c", (1, 0.5, 0), [1, "a"]),
        *([(1, 2), (3, 4)], (7,), "a,b", "1", "None", "(a)", "it's", '"'),
    ],
)
def test_option_texts_are_read_back(value):
    (text,) = option_texts({"model.x": value})
    read = parse_options([text])
    assert read == {"model.x": value} and type(read["model.x"]) is type(value)


@pytest.mark.parametrize("value", [[{"a": 1}], object])
def test_a_value_that_a_command_line_cannot_express(value):
    with pytest.raises(ValueError, match=r"model\.x: .* cannot be written as an option"):
        option_texts({"model.x": value})
