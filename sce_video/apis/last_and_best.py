"""The last epoch of a training, which is its result, and the best one, if that was kept.

``save_best`` of the checkpoint hook keeps the epoch with the best validation metric. Where the test
split is validated, as in the recipes, that epoch is chosen on the test data, and its numbers are no
result: they are written to a file of their own and marked in it.
"""

from __future__ import annotations

from pathlib import Path

from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.training_record import BEST

#: Results of a checkpoint, in its work dir.
RESULTS = "results.json"
#: Those of a checkpoint that a validation metric selected.
BEST_RESULTS = "best.json"


def checkpoints_to_test(path: str) -> list[str]:
    """A checkpoint itself, or those of a work folder: the newest, then the best if it was kept.

    Args:
        path: A file, the word "random" or a folder of a training.

    Raises:
        ValueError: a folder without checkpoints, or with several best ones.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    epochs, best = find_checkpoints(folder), sorted(folder.glob(f"{BEST}*.pth"))
    if not epochs:
        raise ValueError(f"{folder} has no checkpoint epoch_N.pth: give the folder of a training")
    if len(best) > 1:
        names = ", ".join(file.name for file in best)
        raise ValueError(f"{folder} has several best checkpoints ({names}): give one file")
    return [str(epochs[0]), *map(str, best)]
