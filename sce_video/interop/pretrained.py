"""Networks as folders of plain data: ``save_pretrained`` and ``from_pretrained``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sce_video.engine.checkpoint import describe_checkpoint_file
from sce_video.engine.weights import CONFIG, FORMAT, VERSION, write_weights
from sce_video.inference.classifier import NoClassifierError, VideoClassifier, load_classifier
from sce_video.inference.model import VideoModel, checkpoint_of, load_model
from sce_video.interop.export.videos import new_folder
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import write_json
from sce_video.utils.run_files import WEIGHTS, is_pretrained_folder
from sce_video.version import __version__

Network = VideoModel | VideoClassifier

_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def load_network(
    checkpoint: str | Path,
    config: str | Path | None = None,
    device: str | torch.device | None = None,
) -> Network:
    """The classifier of a checkpoint, or its encoder where it has no classes.

    Arguments and errors are those of :func:`~sce_video.inference.model.load_model`.
    """
    checkpoint = checkpoint_of(checkpoint)  # once: a model of transformers is imported
    try:
        return load_classifier(checkpoint, config, device)
    except NoClassifierError:
        return load_model(checkpoint, config, device)


def save_pretrained(network: Network, folder: str | os.PathLike) -> Path:
    """Write a network to a new folder: ``model.safetensors`` and ``config.json``.

    The network is from :func:`load_network`, ``load_model`` or ``load_classifier``. Returns the
    folder.

    Raises:
        FileExistsError: there is something at ``folder``.
        ValueError: a classifier with another head than mmaction2's ``I3DHead``.
        WriteError: it cannot be written; then there is no folder.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} exists: remove it, or give another folder")
    with new_folder(folder) as unfinished:
        _write_network(network, unfinished)
    return folder


def _write_network(network: Network, folder: Path) -> None:
    weights, config = network_weights(network), network_config(network)
    write_weights(weights, folder / WEIGHTS)
    write_json(folder / CONFIG, config)


def network_weights(network: Network) -> dict[str, Tensor]:
    """Weights of the backbone and, of a classifier, of its head, by name.

    Raises:
        ValueError: see :func:`save_pretrained`.
    """
    inner: Any = network.encoder if isinstance(network, VideoModel) else network.recognizer
    if isinstance(network, VideoClassifier) and type(inner.cls_head).__name__ != "I3DHead":
        raise ValueError(
            f"the classifier of {network.checkpoint} has a {type(inner.cls_head).__name__}; "
            "only mmaction2's I3DHead can be written"
        )
    parts = ("backbone.", "cls_head.")
    return {name: value for name, value in inner.state_dict().items() if name.startswith(parts)}


def network_config(network: Network) -> dict[str, Any]:
    """The content of ``config.json``: input, classes, provenance; as JSON data."""
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
    provenance = describe_checkpoint_file(network.checkpoint)
    path = provenance.pop("path")
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": network.settings.to_dict(),
        "classifier": classifier,
        "feature_size": feature_size,
        "provenance": {
            "checkpoint": path.rstrip("/").rpartition("/")[2],  # not where it lay
            **provenance,
            "software": {"sce_video": __version__, "torch": torch.__version__},
        },
    }


def from_pretrained(
    name: str | os.PathLike,
    revision: str | None = None,
    device: str | torch.device | None = None,
) -> Network:
    """The network of a local folder, or of a repository ``user/name`` of the Hugging Face hub.

    A local folder needs no huggingface_hub. Files are read as data; no code is executed.

    Args:
        name: Folder of :func:`save_pretrained`, or name in the hub; a folder that exists wins.
        revision: Branch, tag or commit in the hub.
        device: As in :func:`~sce_video.inference.model.load_model`.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: the hub cannot be reached or has no such repository; the files are damaged or
            of another program.
        MissingPackageError: a name in the hub, and huggingface_hub is not installed.
    """
    return load_network(_pretrained_folder(name, revision, {}), device=device)


def _pretrained_folder(
    name: str | os.PathLike, revision: str | None, download: Mapping[str, Any]
) -> Path:
    """The local folder; one of the hub is downloaded, with arguments of ``snapshot_download``."""
    folder = Path(name)
    if not folder.exists() and _HUB_NAME.fullmatch(os.fspath(name)):
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            raise MissingPackageError(
                f"no local folder {name}; to look for it in the hub: pip install sce-video[hf]"
            ) from None
        try:
            files = [WEIGHTS, CONFIG]
            found = snapshot_download(
                os.fspath(name), revision=revision, allow_patterns=files, **download
            )
        except Exception as error:  # of huggingface_hub or of its HTTP client
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"no local folder {name}, and it cannot be had from the hub: {reason[0][:300]}"
            ) from error
        folder = Path(found)
    elif not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} of a pretrained network")
    if not is_pretrained_folder(folder):
        raise FileNotFoundError(
            f"{name} lacks {WEIGHTS} or {CONFIG}: is it a network of this kind?"
        )
    return folder


try:
    from huggingface_hub import ModelCard, ModelHubMixin
except ImportError as error:
    raise MissingPackageError("the hub needs huggingface_hub: pip install sce-video[hf]") from error

_CARD = """---
{{ card_data }}
---

# A video network of sce_video

{{ facts }}

```python
from sce_video import embed
from sce_video.interop.pretrained import from_pretrained

network = from_pretrained("user/name")  # of this repository
features = embed(network, "video.mp4")
```
"""


class HubNetwork(
    ModelHubMixin,
    library_name="sce_video",
    tags=["video", "self-supervised"],
    model_card_template=_CARD,
):
    """A network that goes to the hub and comes from there.

    ``HubNetwork(network).push_to_hub("user/name")`` and ``HubNetwork.from_pretrained("user/name")``
    are the mixin's, with its arguments; errors as of
    ``from_pretrained``; ``save_pretrained`` writes a local folder as the function of that
    name, and a model card beside it.

    Attributes:
        network: From :func:`~sce_video.interop.pretrained.load_network`, or any other loader.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def _save_pretrained(self, save_directory: Path) -> None:
        _write_network(self.network, save_directory)

    @classmethod
    def _from_pretrained(  # type: ignore[override]  # no sink for unknown arguments
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        device: str | None = None,
    ) -> HubNetwork:
        """The network of a folder or a repository, on a device as ``load_model`` takes it."""
        download = {
            **{"cache_dir": cache_dir, "force_download": force_download, "token": token},
            "local_files_only": local_files_only,
        }
        folder = _pretrained_folder(model_id, revision, download)
        return cls(load_network(folder, device=device))

    def generate_model_card(self) -> ModelCard:
        """The page of the repository: input, size of the features, provenance."""
        config = network_config(self.network)
        model, provenance, classifier = config["model"], config["provenance"], config["classifier"]
        crop, duration = model["crop_size"], model["clip_duration"]
        facts = {
            "backbone": model["backbone"]["type"],
            "clip": f"{model['num_frames']} frames of {duration:g} s, {crop} x {crop}",
            "features": config["feature_size"],
            "classes": None if classifier is None else classifier["num_classes"],
            "checkpoint": provenance.get("checkpoint"),
            "sha256": provenance.get("sha256"),
            "sce_video": provenance["software"]["sce_video"],
        }
        lines = [f"- {name}: {value}" for name, value in facts.items() if value is not None]
        return ModelCard.from_template(
            card_data=self._hub_mixin_info.model_card_data,
            template_str=self._hub_mixin_info.model_card_template,
            facts="\n".join(lines),
        )
