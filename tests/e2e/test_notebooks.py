"""The notebooks of ``examples/notebooks`` run from the first cell to the last, on a few videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples/notebooks"
#: In place of the cell of parameters.
SMALL = {
    "own_videos": (
        "TRAIN = TEST = None; NUMBERS = dict(train=24, test=24)\n"
        "PRETRAINING = dict(epochs=2, width=4, frames=2, size=32, seed=0)\n"
        "FINETUNING = dict(few=2, epochs=1, seed=0)"
    ),
    "reproduce": (
        "METHODS = ['sce', 'moco']; NUMBERS = dict(train=24, test=24)\n"
        "SMALLER = ['train_cfg.max_epochs=1', 'train_dataloader.batch_size=8',"
        " 'model.backbone.base_channels=4']"
    ),
}

pytestmark = pytest.mark.slow
nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")


def texts(notebook: Any) -> str:
    """What the cells have printed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert all(output.output_type != "error" for output in outputs)
    return "".join(output.get("text", "") for output in outputs)


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs(name, tmp_path):
    """The stored outputs are of these cells: as many pictures, tables with the same first words."""
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    run = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (cell,) = (c for c in run.cells if "parameters" in c.metadata.get("tags", ()))
    cell.source = SMALL[name]
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(run, timeout=600, resources=resources).execute()
    assert pictures(run) == pictures(stored) == {"own_videos": 3, "reproduce": 0}[name]
    words = {"own_videos": ("knn_top1", "linear_top1"), "reproduce": ("by hand", "sce learned")}
    for word in words[name]:
        assert word in texts(run) and word in texts(stored)


def test_every_notebook_is_run():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SMALL)
