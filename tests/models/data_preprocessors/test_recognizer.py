"""The batch in the format of mmaction2's recognisers."""

import ast
from pathlib import Path

import pytest
import torch

from sce_video.models import RecognizerDataPreprocessor, VideoDataPreprocessor


def test_no_module_of_models_imports_mmaction2_when_it_is_imported(repo: Path):
    """mmaction2 is needed by those only who build its models: it is imported inside functions."""
    for path in (repo / "sce_video/models").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("mmaction", "mmcv") for name in names), path


def batch():
    generator = torch.Generator().manual_seed(2)
    views = [torch.randint(0, 256, (3, 2, 8, 8, 3), generator=generator).to(torch.uint8)]
    return {
        "inputs": views * 2,
        "label": torch.tensor([4, 0, 9]),
        "index": torch.arange(3),
        "seed": torch.tensor([11, 12, 13]),
    }


@pytest.mark.parametrize("training", [False, True])
def test_views_are_stacked_and_labels_become_data_samples(training):
    views = [{"name": "strong", "blur_prob": 0.0}, {"name": "weak"}]
    ours = VideoDataPreprocessor(views)(batch(), training)
    theirs = RecognizerDataPreprocessor(views)(batch(), training)
    assert theirs["inputs"].shape == (3, 2, 3, 2, 8, 8)
    for v, view in enumerate(ours["inputs"]):
        assert torch.equal(theirs["inputs"][:, v], view)
    assert [s.gt_labels.item.tolist() for s in theirs["data_samples"]] == [[4], [0], [9]]


def test_normalise_is_the_forward_without_augmentation():
    preprocessor = VideoDataPreprocessor([{"name": "strong"}])
    view = batch()["inputs"][0]
    expected = (view.permute(0, 4, 1, 2, 3).double() / 255 - 0.45) / 0.225
    torch.testing.assert_close(preprocessor.normalise(view).double(), expected, atol=1e-5, rtol=0)
