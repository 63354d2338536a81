"""Two gloo processes test and embed like one: every video once, same results."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import ava_small
from helpers.recognition import FINETUNE, small_options
from helpers.run_tool import load, run_tool_ranks

from sce_video.evaluation import load_features
from sce_video.evaluation.scores import load_scores

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def videos(split_videos):
    return split_videos  # test lists of 5 videos, an odd number for two processes


def run(processes, tool, *arguments):
    """Run a tool: in this process, or in several as torchrun starts them."""
    arguments = [str(argument) for argument in arguments]
    if processes == 1:
        assert load(tool.removesuffix(".py")).main(arguments) == 0
        return
    for done in run_tool_ranks(tool, *arguments, "--launcher", "pytorch", count=processes):
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def checkpoint(videos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    options = ("--cfg-options", *small_options(videos))
    run(1, "train.py", FINETUNE, "--work-dir", folder, "--pretrained", "random",
        "--amp", "float32", *options)  # fmt: skip
    return folder / "epoch_2.pth"


def test_a_classifier_is_tested_alike(videos, checkpoint, tmp_path):
    # Batches of 2: the processes have 3 and 2 videos, the last batch of each is uneven.
    options = small_options(videos, test_dataloader__batch_size=2)
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        arguments = (FINETUNE, checkpoint, "--work-dir", folder, "--dump", folder / "scores.npz")
        run(processes, "test.py", *arguments, "--cfg-options", *options)
    one, two = (json.loads((tmp_path / n / "results.json").read_text()) for n in "12")
    assert one["metrics"] == two["metrics"]
    assert one["protocol"]["videos"] == two["protocol"]["videos"] == 5
    a, b = (load_scores(tmp_path / n / "scores.npz")[0] for n in "12")
    assert a.paths == b.paths and a.indices.tolist() == b.indices.tolist() == [0, 1, 2, 3, 4]
    # On some processors the kernels for other partners in a batch round differently.
    torch.testing.assert_close(b.scores, a.scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(b.central, a.central, rtol=1e-4, atol=1e-5)


def test_features_are_extracted_alike(videos, checkpoint, tmp_path):
    options = [o for o in small_options(videos) if "max_epochs" not in o]
    for processes in (1, 2):
        run(processes, "embed", "--config", FINETUNE, "--checkpoint", checkpoint,
            "--out", tmp_path / f"{processes}.npz", "--cfg-options", *options)  # fmt: skip
    a, b = (load_features(tmp_path / f"{n}.npz")[0] for n in (1, 2))
    assert a.paths == b.paths and len(a) == 5
    torch.testing.assert_close(b.features, a.features, rtol=1e-4, atol=1e-5)
    assert not list(tmp_path.glob("*.parts"))


def test_actions_are_scored_alike(ava_root, tmp_path):
    """Four key frames, one of them without a person."""
    options = ava_small.options(ava_root)
    for processes in (1, 2):
        arguments = (ava_small.RECIPE, "random", "--work-dir", tmp_path / str(processes))
        run(processes, "test.py", *arguments, "--cfg-options", *options)
    one, two = (json.loads((tmp_path / n / "results.json").read_text()) for n in "12")
    assert one["metrics"] == two["metrics"] and one["per_class"] == two["per_class"]
    assert one["protocol"]["key_frames"] == two["protocol"]["key_frames"] == 4
    texts = [(tmp_path / n / "ava_results.csv").read_text() for n in "12"]
    assert texts[0] == texts[1] and len(texts[0].splitlines()) == 3 * 2 * 2
