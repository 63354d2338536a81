"""benchmarks/centring.py: precisions by hand, and a small run."""

import importlib.util
import json

import pytest
import torch
from helpers.tiny_encoder import save_tiny


@pytest.fixture(scope="module")
def benchmark(repo):
    spec = importlib.util.spec_from_file_location("centring", repo / "benchmarks" / "centring.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_precisions_by_hand(benchmark):
    """Two classes on both sides of a common mean; seen from the origin, length decides."""
    features = torch.tensor([[10.0, 1.0], [10.0, -1.0], [20.0, 1.5], [4.0, -1.0]])
    labels, groups = torch.tensor([0, 1, 0, 1]), torch.arange(4)
    index = torch.tensor([0, 1])
    found = benchmark.precisions(features, labels, groups, index)
    assert found["plain_p1"] == found["centred_p1"] == 1.0  # angles: 5.7, -5.7; 4.3 and -14 degrees
    assert found["plain_p5"] == found["centred_p5"] == 0.5  # two of two are listed, one is right
    everything = benchmark.precisions(features, labels, groups, torch.arange(4))
    assert everything["plain_p1"] == 1.0  # nobody finds itself
    same_person = benchmark.precisions(features, labels, labels, torch.arange(4))
    assert same_person["plain_p1"] == 0.0


def test_a_small_run(benchmark, split_videos, tmp_path, capsys):
    checkpoint = save_tiny(tmp_path / "tiny.pth")
    given = [str(checkpoint), "--videos", str(split_videos), "--clips", "1", "--workers", "0"]
    outputs = []
    for more in ([], ["--random"]):
        out = tmp_path / "out.json"
        benchmark.main([*given, "--sizes", "4", "--draws", "2", "--json", str(out), *more])
        outputs.append(capsys.readouterr().out)
        assert list(json.loads(out.read_text())[str(checkpoint)]) == ["4", "12"]
    assert [line.split("|")[1].strip() for line in outputs[0].splitlines()[2:]] == ["4", "12"]
    assert outputs[0] != outputs[1]
