"""LoRA: low-rank adapters of the linear layers of a frozen transformer (arXiv 2106.09685)."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.backbones.common import FreezableBackbone, StagedBackbone
from sce_video.models.modules.target_encoder import TargetEncoder

#: Names of what an adapter adds to a linear layer.
ADAPTER = ("lora_A", "lora_B", "lora_scale")


class LoRALinear(nn.Linear):
    """A linear layer with frozen weights and a trained update of rank r: W x + b + alpha/r B A x.

    A (r, in) is drawn as the weight of a linear layer and B (out, r) is 0, so that a training
    begins with the output of the layer (section 4.1; microsoft/LoRA, loralib/layers.py). The names
    of W and b stay, so files with or without adapters have the same ones.

    The update is computed beside W x, and not added to W (as with ``torch.nn.utils.parametrize``):
    the backward pass then has no gradient of the size of W, and no copy of W is kept for it.
    """

    lora_scale: Tensor  # in the checkpoint, so that W + scale B A can be computed from it alone

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        has_bias = linear.bias is not None
        super().__init__(linear.in_features, linear.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_A = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.register_buffer("lora_scale", linear.weight.new_tensor(alpha / rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # torch's of nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.lora_A) * self.lora_scale  # (..., r), fewer numbers than W x has
        return super().forward(x) + F.linear(low, self.lora_B)


def add_adapters(model: nn.Module, rank: int, alpha: float | None = None) -> int:
    """Freeze a model's backbone and add adapters to the attention and MLP of its blocks.

    Blocks that ``frozen_stages`` freezes get none. Biases, norms and embeddings are frozen, too:
    adapters alone are trained in the paper and by default in its code (``bias="none"``). The
    backbone of a :class:`TargetEncoder` becomes a copy of the adapted one, whose A and B are moving
    averages. Heads are left as they are.

    Args:
        model: A model with a transformer ``backbone`` of this package.
        rank: r, at most the size of the smallest layer.
        alpha: Scale of the update times r; None for r.

    Returns:
        Number of adapted layers.

    Raises:
        ValueError: rank or alpha out of range; no transformer, or nothing in it to adapt.
    """
    alpha = rank if alpha is None else alpha
    if type(rank) is not int or rank < 1:
        raise ValueError(f"lora.rank must be a whole number of at least 1, got {rank!r}")
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ValueError(f"lora.alpha must be above 0, got {alpha!r}")
    backbone: Any = getattr(model, "backbone", None)
    blocks: list[nn.Module] = []
    # The linear layers of convolutional networks are gates: nothing is learned by these alone.
    if isinstance(backbone, FreezableBackbone) and not isinstance(backbone, StagedBackbone):
        blocks = [b for layer in backbone.layers()[1:] for b in layer if isinstance(b, nn.Module)]
    found = [
        (parent, name, layer)
        for block in blocks
        for parent in block.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]
    if not found:
        why = "all of its layers are frozen" if blocks else "this network has none"
        raise ValueError(
            f"LoRA adapts the linear layers of attention and MLP; {why} ({type(backbone).__name__})"
        )
    most = min(min(layer.weight.shape) for *_, layer in found)
    if rank > most:
        raise ValueError(f"lora.rank must be at most {most}, the size of a layer, got {rank}")
    backbone.requires_grad_(False)
    for parent, name, layer in found:
        setattr(parent, name, LoRALinear(layer, rank, alpha))
    if isinstance(target := getattr(model, "target", None), TargetEncoder):
        target.backbone = copy.deepcopy(backbone)
        target.requires_grad_(False)
    return len(found)


def merged_weights(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights by name with every adapter added to its layer: W + scale B A, at least in float32.

    The weights may be those of an untrusted file: no more memory is taken than its tensors have.

    Raises:
        ValueError: an adapter that is incomplete, does not fit its layer, or is none of ours.
    """
    merged = {name: value for name, value in weights.items() if not _is_adapter(name)}
    taken = held = 0  # bytes that are computed here, and those of different weights
    storages: set[int] = set()
    for part in sorted({name.rpartition(".")[0] for name in weights if _is_adapter(name)}):
        tensors: list[Any] = [weights.get(f"{part}.{name}") for name in ("weight", *ADAPTER)]
        if not all(torch.is_tensor(x) and x.is_floating_point() for x in tensors):
            raise ValueError(f"{part} needs a weight and {', '.join(ADAPTER)}: some are missing")
        W, A, B, scale = tensors
        rank, size = A.shape[:1], W.shape
        fits = W.ndim == 2 and (A.shape, B.shape) == (rank + size[1:], size[:1] + rank)
        if not fits or scale.ndim or not 1 <= rank[0] <= min(size):
            shapes = ", ".join(str(tuple(x.shape)) for x in (W, A, B))
            raise ValueError(f"the adapter of {part} does not fit: weight, A and B are {shapes}")
        # Many weights may be views of one storage; what is computed here has its own.
        storage = W.untyped_storage()
        held += 0 if storage.data_ptr() in storages else storage.nbytes()
        storages.add(storage.data_ptr())
        taken += W.nbytes
        if taken > held:
            raise ValueError("adapters of weights that share their memory")
        dtype = torch.promote_types(W.dtype, torch.float32)
        update = scale.to(dtype) * (B.to(dtype) @ A.to(dtype))
        merged[f"{part}.weight"] = (W.to(dtype) + update).to(W.dtype)
    return merged


def _is_adapter(name: Any) -> bool:
    return isinstance(name, str) and name.rpartition(".")[2] in ADAPTER
