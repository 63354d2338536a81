"""Texts as queries of a video-text model: its tokenizer and text encoder."""

from __future__ import annotations

import os
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.weights import bounded_network, checked_backbone
from sce_video.models.backbones.hf_encoder import FAMILIES, config_of, family_of, transformers
from sce_video.utils.files import read_json, read_text

_PREFIX = "text_encoder."
#: A tokenizer, or the two files of one like CLIP's.
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
#: By the kind of SigLIP's tokenizer: the token that fills a text up to its length, and what is
#: removed from it (big_vision, pp/ops_text.py; transformers, convert_siglip_to_hf.py).
_SIGLIP = {"BPE": ("<pad>", ""), "Unigram": ("</s>", string.punctuation)}


def stored_text(folder: Path, config: Any) -> dict[str, Any] | None:
    """The tokenizer of a model as plain data for its checkpoint; None if the folder has none."""
    from tokenizers import Regex, Tokenizer, normalizers

    # By the files alone: the configs beside them may name classes and code.
    whole, vocabulary, merges = (folder / name for name in _TOKENIZER_FILES)
    try:
        if whole.is_file():
            backend = Tokenizer.from_file(str(whole))
        else:
            pairs = [tuple(line.split()) for line in read_text(merges).split("\n")[1:]]
            pairs = [pair for pair in pairs if len(pair) == 2]
            tokenizer = transformers().CLIPTokenizer(read_json(vocabulary), pairs)
            backend = tokenizer.backend_tokenizer
    except Exception:  # tokenizers raises Exception itself
        return None  # weights alone: videos can be embedded, texts cannot
    backend.no_padding()
    backend.no_truncation()
    longest = config.text_config.max_position_embeddings
    if family_of(config.model_type).siglip_text:
        filler, removed = _SIGLIP.get(type(backend.model).__name__, ("", ""))
        number = backend.token_to_id(filler)
        if number is None:
            return None
        steps: list[Any] = [normalizers.Lowercase()]
        if removed:
            steps += [normalizers.Replace(Regex(f"[{re.escape(removed)}]"), "")]
            steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*steps, *own])
        backend.enable_padding(pad_id=number, pad_token=filler, length=int(longest))
    return {"tokenizer": backend.to_str(), "max_tokens": int(longest)}


def has_text(backbone: Any) -> bool:
    """Whether a backbone of this config gives the embeddings that a model shares with texts."""
    config = backbone if isinstance(backbone, dict) else {}
    architecture = config.get("architecture")
    kind = architecture.get("model_type") if isinstance(architecture, dict) else None
    shared = config.get("pool") == "projection" and isinstance(kind, str)
    return shared and kind in FAMILIES and bool(FAMILIES[kind].text)


def text_feature(checkpoint: str | os.PathLike, backbone: dict[str, Any], text: str) -> np.ndarray:
    """The embedding (D,) float32 of a text by a video-text model, not normalised.

    Args:
        checkpoint: From ``sce-video encoder`` or ``hf:MODEL``.
        backbone: Config of its backbone.
        text: What the videos should show.

    Raises:
        ValueError: the checkpoint has no text encoder, the text is empty or longer than it takes.
    """
    from tokenizers import Tokenizer

    if not text.strip():
        raise ValueError("the text of the query is empty")
    stored = load_checkpoint_file(os.fspath(checkpoint))
    meta = stored.get("meta")
    found = meta.get("text") if isinstance(meta, dict) else None
    weights = {
        key.removeprefix(_PREFIX): value
        for key, value in stored.get("state_dict", {}).items()
        if key.startswith(_PREFIX)
    }
    if not isinstance(found, dict) or not weights:
        raise ValueError(
            f"{os.fspath(checkpoint)} has no text encoder, so the index cannot be searched by a "
            "text: build it with a video-text model, for example sce-video index VIDEOS "
            "--checkpoint hf:microsoft/xclip-base-patch32"
        )
    try:
        tokenizer = Tokenizer.from_str(found["tokenizer"])
    except Exception as error:  # tokenizers raises Exception itself
        raise ValueError(f"the tokenizer in the checkpoint cannot be read: {error}") from error
    tokens = tokenizer.encode(text).ids  # with those that begin and end it
    if len(tokens) > found["max_tokens"]:
        raise ValueError(
            f"the text has {len(tokens)} tokens, the model takes {found['max_tokens']}: shorten it"
        )
    config = config_of(checked_backbone(backbone)["architecture"])
    family = family_of(config.model_type)
    # First without memory: a table of positions would be computed before it is counted.
    for device in ("meta", "cpu"):
        with bounded_network(stored["state_dict"]), torch.device(device):
            model: Any = getattr(transformers(), family.model)(config)
    own = model.state_dict()
    own = {name: own[name] for name in own if name.partition(".")[0] in family.text}
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError("the text encoder in the checkpoint does not fit its network")
    model.load_state_dict(weights, strict=False)
    inputs = {"input_ids": torch.tensor([tokens])}
    if not family.siglip_text:  # which was trained to see what fills a text up
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    model.eval()
    with torch.inference_mode():
        if family.text_projection is None:
            embedded = model.get_text_features(**inputs).pooler_output
        else:  # PeVideoModel, whose get_text_features cannot be called (transformers 5.23)
            first = model.text_model(**inputs).last_hidden_state[:, 0]
            embedded = getattr(model, family.text_projection)(first)
    return embedded[0].numpy()
