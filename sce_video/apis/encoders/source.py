"""A model of transformers: its files, its settings, its weights."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.models.backbones.hf_families import config_of, family_of, transformers, vision_part
from sce_video.utils.errors import UserError
from sce_video.utils.json_files import read_json

#: Files that are fetched from the hub: settings and weights, no code.
_SETTINGS = ["*.json", "*.txt", "*.model"]
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_WEIGHT_FILES = (
    *("model.safetensors", "model-*-of-*.safetensors"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_CONFIG = "config.json"


class EncoderError(UserError, ValueError):
    """A model cannot be found, read or used as an encoder."""


def find_model(name: str) -> Path:
    """The local folder of a model: the given one, or a copy of that name on the hub.

    Only settings and weights are fetched, no code.

    Raises:
        EncoderError: it is neither a folder with a ``config.json`` nor the name of a model in the
            local cache or on a hub that can be reached.
    """
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, _CONFIG)):
            raise EncoderError(f"{name} is no folder of a model: it has no {_CONFIG}")
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise EncoderError(
            f"{name} is neither a folder nor a name on the hub (owner/model): give the folder of a "
            "model, as save_pretrained() writes it, or such a name"
        )
    transformers()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        for weights in _WEIGHTS:
            folder = Path(snapshot_download(name, allow_patterns=[*_SETTINGS, weights]))
            if any(folder.glob(weights)):
                break
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # OSError: no network, no room. A hub that answers with an error names the reason.
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error)
        raise EncoderError(
            f"{name} is no local folder, not in the local cache, and cannot be fetched from the "
            f"hub ({reason}): check name and network, or give a local folder"
        ) from error
    return folder


def read_config(folder: Path) -> Any:
    """The ``PreTrainedConfig`` of a model whose family is known.

    Raises:
        EncoderError: it is of no known family or damaged, or asks for more than a network: see
            :func:`~sce_video.models.backbones.hf_families.config_of`.
    """
    stored = read_json(folder / _CONFIG)
    if not isinstance(stored, dict):
        raise EncoderError(f"{folder / _CONFIG} is no config of a model")
    try:
        return config_of(stored)
    except ValueError as error:
        raise EncoderError(f"{folder / _CONFIG}: {error}") from error


def brought_pool(folder: Path, config: Any) -> str | None:
    """The pool that a classifier brings, None for other models."""
    kind, pool = family_of(config.model_type).classifier or ("", None)
    architectures = read_json(folder / _CONFIG).get("architectures")
    if not isinstance(architectures, list) or kind not in architectures:
        return None
    return pool if getattr(config, "use_mean_pooling", True) else None


def load_parts(folder: Path, config: Any, pool: str) -> tuple[dict[str, nn.Module], int]:
    """The parts of a model with its weights in float32.

    Returns:
        ``network``, and where the model has them ``pooler`` (if ``pool`` is that of a classifier),
        ``text_model`` and ``text_projection``; and the number of weights in the files that belong
        to other parts: a decoder, a classifier.

    Raises:
        EncoderError: the files lack weights of the encoder, have some that it has no place for, or
            cannot be read.
    """
    package = transformers()
    family = family_of(config.model_type)
    kind, of_classifier = family.classifier or ("", None)
    name = kind if pool == of_classifier else family.model
    model, info = _with_weights(getattr(package, name), config, folder)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
    mismatched = sorted(str(entry[0]) for entry in info["mismatched_keys"])
    missing += [key for key in mismatched if not key.startswith("classifier.")]
    if missing:
        raise EncoderError(
            f"{folder} lacks {len(missing)} weights of {name}, first {missing[0]}: it is a model "
            "of another task or another network"
        )
    stray = sorted(key for key in info["unexpected_keys"] if _is_of_network(key, model))
    if stray:
        raise EncoderError(
            f"{folder} has {len(stray)} weights for which {name} of transformers "
            f"{package.__version__} has no place, first {stray[0]}: it is another network, or one "
            "whose names this version does not know"
        )
    parts: dict[str, nn.Module] = {}
    for part in ("text_model", "text_projection"):
        if hasattr(model, part):
            parts[part] = getattr(model, part)
    if name == kind:
        parts["pooler"] = model.pooler if pool == "attentive" else model.fc_norm
        model = model.base_model
    parts["network"] = vision_part(model, family)
    return parts, len(info["unexpected_keys"])


def _is_of_network(key: str, model: Any) -> bool:
    """Whether a weight belongs to a part of the encoder, and not to a decoder or a classifier."""
    part = key.removeprefix(f"{model.base_model_prefix}.").partition(".")[0]
    # Files of transformers 4 have the numbers of positions, which are no weights.
    known = getattr(model.base_model, part, None) is not None
    return known and not key.endswith(".position_ids")


def _with_weights(kind: Any, config: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """A model of transformers with the weights of a folder, and what did not fit.

    transformers sees neither the folder nor its files, among which it would look for adapters and
    other configs, but a config of ours and tensors that were read as data.
    """
    logging = transformers().utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # what was not used is counted and said here
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return kind.from_pretrained(
            None,
            config=config,
            state_dict=_read_weights(folder),
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # of a classifier, which is not used
        )
    except EncoderError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise EncoderError(f"the weights in {folder} cannot be read: {reason}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a model, in one file or in several."""
    for pattern in _WEIGHT_FILES:
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob(pattern)):
            try:
                plain = file.suffix == ".safetensors"
                content = load_file(file) if plain else load_checkpoint_file(file)
            except SafetensorError as error:
                raise EncoderError(f"the weights in {folder} are damaged: {error}") from error
            weights |= {key: value for key, value in content.items() if torch.is_tensor(value)}
        if weights:
            return weights
    raise FileNotFoundError(f"there is no {' and no '.join(_WEIGHT_FILES[::2])}")


def weights_of(parts: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
    """The weights under the names of a checkpoint: ``backbone.``, and ``text_encoder.``."""
    found = {}
    for part, module in parts.items():
        prefix = "text_encoder" if part.startswith("text") else "backbone"
        for key, value in module.state_dict().items():
            found[f"{prefix}.{part}.{key}"] = value.contiguous()
    return found
