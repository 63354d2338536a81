"""Does a checkpoint really hold the backbone that is about to be judged?"""

from __future__ import annotations

from torch import nn

from sce_video.evaluation.collecting import unwrapped

_PREFIX = "backbone."
#: A counter of BN that no forward pass in eval mode reads; old files lack it.
_IGNORED = "num_batches_tracked"


def check_backbone_weights(model: nn.Module, checkpoint: dict, name: str) -> int:
    """Raise unless every weight of the model's backbone is in the checkpoint, in its shape.

    Loading that passes over what does not fit would judge a partly random network without a
    word. Weights of the checkpoint that the model lacks (projector, optimiser, a head) are fine,
    unless they belong to a backbone too: then it is a deeper one.

    Args:
        model: A model with a submodule ``backbone``, bare or wrapped; without such a submodule,
            all of its weights count as the backbone.
        checkpoint: What the file holds: a ``state_dict`` under that key, or the weights at once.
        name: The file's name, for the message.

    Returns:
        Number of backbone tensors that fit.

    Raises:
        ValueError: none, or not all, of them fit; the message names the first of both sides.
    """
    inner = unwrapped(model)
    weights = checkpoint.get("state_dict", checkpoint)
    weights = {key.removeprefix("module."): value for key, value in weights.items()}
    own = {key: value for key, value in inner.state_dict().items() if not key.endswith(_IGNORED)}
    backbone = {key: value for key, value in own.items() if key.startswith(_PREFIX)}
    prefix = _PREFIX if backbone else ""
    backbone = backbone or own
    missing = [key for key in backbone if key not in weights]
    wrong = [k for k in backbone if k in weights and weights[k].shape != backbone[k].shape]
    extra = [
        key
        for key in weights
        if prefix and key.startswith(prefix) and key not in own and not key.endswith(_IGNORED)
    ]
    if len(missing) == len(backbone):
        raise ValueError(
            f"no backbone weight of the model is in {name}: the model has {list(backbone)[:3]}..., "
            f"the file {list(weights)[:3]}...; convert it first (tools/convert) or name the "
            "file that holds this backbone"
        )
    if missing or wrong or extra:
        shapes = [
            f"{k} {tuple(weights[k].shape)} instead of {tuple(backbone[k].shape)}" for k in wrong
        ]
        parts = [
            f"{len(found)} {what}, first {found[:2]}"
            for what, found in (
                ("missing", missing),
                ("of another shape", shapes),
                ("too many", extra),
            )
            if found
        ]
        raise ValueError(
            f"{name} is of another backbone than the model ({'; '.join(parts)}): is the depth or "
            "width of the config right?"
        )
    return len(backbone)
