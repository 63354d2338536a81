"""Text queries for video-text models, by their tokenizer and text encoder."""

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
from sce_video.utils.records import at

_PREFIX = "text_encoder."
#: Tokenizer files. A model has either the first one or, like CLIP, the other two.
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt")
#: Padding token and characters to remove, for each kind of SigLIP tokenizer (big_vision,
#: pp/ops_text.py; transformers, convert_siglip_to_hf.py)
_SIGLIP = {"BPE": ("<pad>", ""), "Unigram": ("</s>", string.punctuation)}


def stored_text(folder: Path, config: Any) -> dict[str, str | int] | None:
    """Return a model's tokenizer as plain data for its checkpoint; None if it has none."""
    from tokenizers import Regex, Tokenizer, normalizers

    # Read only these files. The configs next to them are skipped: they may name classes and code.
    whole, vocabulary, merges = (folder / name for name in _TOKENIZER_FILES)
    try:
        if whole.is_file():
            backend = Tokenizer.from_file(str(whole))
        else:
            pairs = [tuple(line.split()) for line in read_text(merges).split("\n")[1:]]
            pairs = [pair for pair in pairs if len(pair) == 2]
            tokenizer = transformers().CLIPTokenizer(read_json(vocabulary), pairs)
            backend = tokenizer.backend_tokenizer
    except Exception:  # the tokenizers package raises plain Exception
        return None  # without a tokenizer, only videos can be embedded
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
    """Return whether a backbone with this config embeds videos and text in one space."""
    return _pool_of_video_text_model(backbone) == "projection"


def _pool_of_video_text_model(backbone: Any) -> Any:
    """Return how a video-text model pools its features; None for any other backbone.

    The pool of the tokens decides, unless the frames are not averaged.
    """
    kind = at(backbone, "architecture.model_type", str)
    if kind not in FAMILIES or not FAMILIES[kind].text:
        return None
    of_frames = at(backbone, "frame_pool")
    return at(backbone, "pool") if of_frames in (None, "mean") else of_frames


def text_feature(checkpoint: str | os.PathLike, backbone: dict, text: str) -> np.ndarray:
    """Compute the embedding (D,) float32 of a text by a video-text model, not normalised.

    Args:
        checkpoint: Checkpoint from ``sce-video encoder``, or ``hf:MODEL``.
        backbone: Config of the checkpoint's backbone.
        text: Description of what the videos should show.

    Raises:
        ValueError: If the checkpoint has no text encoder, the backbone's features are not
            projections, or the text is empty or too long.
    """
    from tokenizers import Tokenizer

    if not text.strip():
        raise ValueError("the text of the query is empty")
    if (pool := _pool_of_video_text_model(backbone)) not in (None, "projection"):
        raise ValueError(
            f"features with the pool {pool!s:.60} cannot be compared with a text. Build the index "
            "with the pool projection, for example --checkpoint hf:MODEL:projection"
        )
    stored = load_checkpoint_file(os.fspath(checkpoint))
    found = at(stored, "meta.text", dict)
    weights = {
        key.removeprefix(_PREFIX): value
        for key, value in (at(stored, "state_dict", dict) or {}).items()
        if key.startswith(_PREFIX)
    }
    if found is None or not weights:
        raise ValueError(
            f"{os.fspath(checkpoint)} has no text encoder, so the index cannot be searched by "
            "text. Build it with a video-text model, for example sce-video index VIDEOS "
            "--checkpoint hf:microsoft/xclip-base-patch32"
        )
    try:
        tokenizer = Tokenizer.from_str(found["tokenizer"])
    except Exception as error:  # the tokenizers package raises plain Exception
        raise ValueError(f"the tokenizer in the checkpoint cannot be read: {error}") from error
    tokens = tokenizer.encode(text).ids  # including the start and end tokens
    if len(tokens) > found["max_tokens"]:
        raise ValueError(
            f"the text has {len(tokens)} tokens, but the model accepts at most "
            f"{found['max_tokens']}. Shorten the text"
        )
    config = config_of(checked_backbone(backbone)["architecture"])
    family = family_of(config.model_type)
    # Build on "meta" first, so that an oversized position table is rejected before it is allocated.
    for device in ("meta", "cpu"):
        with bounded_network(stored["state_dict"]), torch.device(device):
            model: Any = getattr(transformers(), family.model)(config)
    own = model.state_dict()
    own = {name: own[name] for name in own if name.partition(".")[0] in family.text}
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError("the weights of the text encoder do not match its config")
    model.load_state_dict(weights, strict=False)
    inputs = {"input_ids": torch.tensor([tokens])}
    if not family.siglip_text:  # SigLIP was trained without a mask, so it sees padding
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    model.eval()
    with torch.inference_mode():
        if family.text_projection is None:
            embedded = model.get_text_features(**inputs).pooler_output
        else:  # PeVideoModel: its get_text_features fails in transformers 5.23
            first = model.text_model(**inputs).last_hidden_state[:, 0]
            embedded = getattr(model, family.text_projection)(first)
    return embedded[0].numpy()
