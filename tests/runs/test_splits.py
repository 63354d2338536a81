"""Running all splits: lists per split, resuming, the mean."""

import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.recognition import FINETUNE, small_options
from mmengine.config import Config

from sce_video.runs import configs, launch, splits


def config(**changes):
    lists = {"train": "data/train_split1.txt", "test": "data/split1/test_split1.txt"}
    cfg = {f"{k}_dataloader": {"dataset": {"ann_file": v}} for k, v in lists.items()}
    cfg["test_cfg"] = {"others": [{"ann_file": "split11_split1.txt"}]}
    return Config({"split": 1, **cfg, **changes})


def test_lists_of_another_split():
    original = config()
    other = splits.for_split(original, 3)
    assert other.train_dataloader.dataset.ann_file == "data/train_split3.txt"
    assert other.test_dataloader.dataset.ann_file == "data/split3/test_split3.txt"
    assert other.test_cfg.others[0].ann_file == "split11_split3.txt", "split11 is not split1"
    assert other.split == 3
    assert original.train_dataloader.dataset.ann_file == "data/train_split1.txt", "untouched"
    assert splits.for_split(original, 1).train_dataloader == original.train_dataloader
    with pytest.raises(ValueError, match="does not describe splits"):
        splits.for_split(config(split=None), 2)
    with pytest.raises(ValueError, match=r"no ann_file in .* has 'split2'"):
        splits.for_split(config(split=2), 3)


def result(top1, videos):
    metrics = {"top1": top1, "top5": 1.0, "mean_class_accuracy": top1 / 2, "one_view_top1": 0.25}
    protocol = {"videos": videos, "failures": 1, "checkpoint": {"path": "a"}, "split": 9}
    return {"metrics": metrics, "protocol": protocol}


def test_summary_against_numpy():
    summary = splits.summarise({"1": result(0.5, 4), "3": result(0.8, 5)})
    assert summary["kind"] == "splits" and list(summary["splits"]) == ["1", "3"]
    assert summary["mean"]["top1"] == pytest.approx(np.mean([0.5, 0.8]))
    assert summary["std"]["top1"] == pytest.approx(np.std([0.5, 0.8]))
    assert summary["protocol"]["videos"] == [4, 5] and summary["protocol"]["failures"] == 2
    summary["protocol"]["num_classes"] = 5
    summary["best"] = splits.summarise({"1": result(0.75, 4), "3": result(0.85, 5)}, "best.json")
    table = splits.format_splits(summary)
    assert "top-5" not in table, "all five classes are among the first five"
    last, best = table.split("the epoch that is best on the validation list")
    assert "split 1" in last and "65.00" in last and "80.00" in best.splitlines()[-1]
    assert summary["best"]["splits"]["3"]["results"] == "split3/best.json"


def prepare(videos, folder, **changes):
    options = small_options(videos, **changes)
    training = configs.training_config(
        FINETUNE, work_dir=folder, pretrained="random", amp="float32", cfg_options=options
    )

    def testing(checkpoint, work_dir):
        return configs.testing_config(FINETUNE, checkpoint, work_dir=work_dir, cfg_options=options)

    return training, testing


def test_an_interrupted_run_resumes_and_finished_splits_are_kept(
    split_videos, tmp_path, monkeypatch
):
    training, testing = prepare(split_videos, tmp_path)
    trained, tested, train, test = [], [], launch.run_training, launch.run_test

    def count(cfg):
        trained.append(cfg.split)
        return train(cfg)

    def interrupt(cfg):
        tested.append((cfg.split, cfg.test_cfg.out))
        if len(tested) == 4:
            raise KeyboardInterrupt
        return test(cfg)

    monkeypatch.setattr(launch, "run_training", count)
    monkeypatch.setattr(launch, "run_test", interrupt)
    with pytest.raises(KeyboardInterrupt):
        splits.run_splits(training, testing, [1, 2])
    assert not (tmp_path / "split2/results.json").exists()
    before = (tmp_path / "split1/results.json").read_bytes()
    weights = (tmp_path / "split2/epoch_2.pth").stat().st_mtime_ns
    summary = splits.run_splits(training, testing, [1, 2])
    assert trained == [1, 2, 2], "split 1 was not run again"
    both = ["best.json", "results.json"]
    assert tested == [(split, out) for split in (1, 2, 2) for out in both]
    assert (tmp_path / "split2/epoch_2.pth").stat().st_mtime_ns == weights, "nor trained again"
    assert (tmp_path / "split1/results.json").read_bytes() == before
    assert json.loads((tmp_path / "splits.json").read_text()) == summary
    best = json.loads((tmp_path / "split2/best.json").read_text())
    assert summary["best"]["splits"]["2"]["metrics"] == best["metrics"]
    tests = [json.loads((tmp_path / f"split{n}/results.json").read_text()) for n in (1, 2)]
    lists = [result["protocol"]["test"]["ann_file"].rpartition("/")[2] for result in tests]
    assert lists == ["test_split1.txt", "test_split2.txt"]
    with pytest.raises(ValueError, match=r"split1 contains a run with other settings"):
        splits.run_splits(*prepare(split_videos, tmp_path, train_cfg__max_epochs=3), [1, 2])


def test_bad_splits_are_refused_before_anything_is_trained(split_videos, tmp_path):
    training, testing = prepare(split_videos, tmp_path)
    with pytest.raises(ValueError, match=r"the list train_split4\.txt of split 4 does not exist"):
        splits.run_splits(training, testing, [1, 4])
    assert not list(tmp_path.rglob("*.pth"))


def test_a_signal_stops_all_splits(split_videos, tmp_path, monkeypatch):
    """Not only the current one, whose unfinished training must not be tested."""
    trained = []

    def stopped(cfg):
        trained.append(cfg.split)
        return SimpleNamespace(train_loop=SimpleNamespace(stopped_by=signal.SIGTERM))

    monkeypatch.setattr(launch, "run_training", stopped)
    training, _ = prepare(split_videos, tmp_path)
    with pytest.raises(splits.StoppedError, match="stopped by SIGTERM") as raised:
        splits.run_splits(training, lambda *_: pytest.fail("tested"), [1, 2])
    assert raised.value.by == signal.SIGTERM and len(trained) == 1


def test_checkpoints_that_count_iterations_complete_a_split(split_videos, tmp_path):
    options = dict(
        default_hooks__checkpoint__by_epoch=False, default_hooks__checkpoint__save_best=None
    )
    training, testing = prepare(split_videos, tmp_path, **options)
    summary = splits.run_splits(training, testing, [1])
    stored = json.loads((tmp_path / "split1/results.json").read_text())
    assert stored["protocol"]["checkpoint"]["path"].endswith("iter_2.pth")
    assert stored["protocol"]["epochs"] == stored["protocol"]["checkpoint"]["epoch"] == 2
    assert summary["splits"]["1"]["metrics"] == stored["metrics"]
