"""AVA from key frames to mAP with the small recipe: against a loop, and invalid input."""

import json

import numpy as np
import pytest
import torch
from helpers.ava_small import ACTIONS, BOXES, RECIPE, options

from sce_video.datasets.ava import Action
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.runner import VideoRunner
from sce_video.evaluation.functional.frame_map import evaluate_ava
from sce_video.inference.multi_view import box_scores
from sce_video.registry import DATASETS
from sce_video.runs import configs, launch


@pytest.fixture(scope="module")
def root(ava_root):
    return ava_root


@pytest.fixture(scope="module")
def trained(ava_checkpoint):
    return ava_checkpoint


def run_test(root, checkpoint, folder, **changes):
    cfg = configs.testing_config(
        RECIPE, str(checkpoint), work_dir=folder, cfg_options=options(root, **changes)
    )
    metrics = launch.run_test(cfg)
    return metrics, json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def tested(root, trained, tmp_path_factory):
    """Folder, metrics and results of a test."""
    folder = tmp_path_factory.mktemp("tested")
    return folder, *run_test(root, trained, folder)


def test_cudnn_is_not_tuned_for_each_size_of_a_key_frame(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = []

    class Detector:
        def data_preprocessor(self, batch, training):
            return {"inputs": batch["inputs"]}

        def __call__(self, inputs, mode):
            seen.append(torch.backends.cudnn.benchmark)
            return torch.zeros(1, 60)

    batch = {"inputs": torch.zeros(1, 3, 2, 8, 8), "boxes": [torch.zeros(1, 4)]}
    assert box_scores()(Detector(), batch).counts == [1]
    assert seen == [False] and torch.backends.cudnn.benchmark


@pytest.mark.slow
def test_the_trained_detector_recognises_both_actions(tested):
    """Predicting both actions for every box would give APs of about 1/2."""
    _, metrics, results = tested
    assert metrics["mAP"] == results["metrics"]["mAP"] > 0.9
    assert {row["name"] for row in results["per_class"].values()} == {"stand", "watch"}
    protocol = results["protocol"]
    assert protocol["kind"] == "detection" and protocol["key_frames"] == 4
    assert (protocol["boxes"], protocol["failures"]) == (6, 0)
    assert results["intervals"] == {"mAP": None}  # of one video
    assert protocol["benchmark"]["dataset"] == "ava" and len(protocol["checkpoint"]["sha256"]) == 64


@pytest.mark.slow
def test_results_equal_a_loop_over_key_frames(root, trained, tested, tmp_path):
    folder, metrics, _ = tested
    cfg = configs.testing_config(RECIPE, str(trained), cfg_options=options(root))
    cfg.work_dir, cfg.experiment_name = str(tmp_path / "hand"), "by_hand"
    model = VideoRunner.from_cfg(cfg).model
    model.load_state_dict(load_checkpoint_file(trained)["state_dict"])
    model.eval()
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    found, truth = {}, {}
    for i in range(len(dataset)):
        sample, key = dataset[i], dataset.key(i)
        boxes = list(BOXES.values()) if i < 3 else []
        truth[key] = (np.array(boxes).reshape(-1, 4), [[a] for a in ACTIONS.values()][: len(boxes)])
        if len(sample["boxes"]) == 0:
            continue
        x = (sample["inputs"][0].permute(3, 0, 1, 2)[None].float() / 255 - 0.45) / 0.225
        with torch.no_grad():
            scores = model(x, {"boxes": [sample["boxes"]]}, mode="tensor")
        found[key] = (np.array(boxes), scores.numpy())
    actions = [Action(12, "stand", True), Action(80, "watch", True)]
    assert evaluate_ava(truth, found, actions).mAP == pytest.approx(metrics["mAP"])
    lines = [line.split(",") for line in (folder / "ava_results.csv").read_text().splitlines()]
    written = np.array([[float(cell) for cell in line[2:]] for line in lines])
    expected = [
        [*box, action, row[action - 1]]
        for key in sorted(found)
        for box, row in zip(*found[key], strict=True)
        for action in (12, 80)
    ]
    np.testing.assert_allclose(written, expected, atol=1e-5)


@pytest.mark.slow
def test_seconds_without_frames_raise_or_are_counted(root, trained, tmp_path):
    lines = (root / "ava_val.jsonl").read_text().splitlines(keepends=True)
    late = json.loads(lines[0]) | {"timestamp": 1500}
    (tmp_path / "late.jsonl").write_text("".join([*lines, json.dumps(late) + "\n"]))
    ann = {"test_dataloader__dataset__ann_file": tmp_path / "late.jsonl"}
    with pytest.raises(Exception, match=r"bb\.mp4: has no frame at second 1500"):
        run_test(root, trained, tmp_path, **ann)
    _, results = run_test(root, trained, tmp_path, test_dataloader__dataset__on_error="skip", **ann)
    assert (
        results["protocol"]["failures"] == 1
        and "no frame at second 1500" in results["failures"][0][1]
    )
