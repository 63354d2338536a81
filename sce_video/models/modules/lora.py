"""LoRA: low-rank adapters for the linear layers of a frozen transformer (arXiv 2106.09685)."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.backbones.common import FreezableBackbone, StagedBackbone
from sce_video.models.modules.target_encoder import TargetEncoder

#: Names of the tensors that an adapter adds to a linear layer
ADAPTER = ("lora_A", "lora_B", "lora_scale")


class LoRALinear(nn.Linear):
    """A linear layer with frozen weights and a trained update of rank r: W x + b + alpha/r B A x.

    A (r, in) is initialised like the weight of a linear layer, and B (out, r) with 0, so training
    starts with the layer's own output (section 4.1; microsoft/LoRA, loralib/layers.py). W and b
    keep their names, so files with and without adapters use the same names.

    The update is computed separately from W x. If it were added to W, as by
    ``torch.nn.utils.parametrize``, the backward pass would need a gradient as large as W and a copy
    of W.
    """

    lora_scale: Tensor  # saved, so that a checkpoint contains all that W + scale B A needs

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        has_bias = linear.bias is not None
        super().__init__(linear.in_features, linear.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_A = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        self.register_buffer("lora_scale", linear.weight.new_tensor(alpha / rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as torch initialises nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        low = F.linear(x, self.lora_A) * self.lora_scale  # (..., r), smaller than W x
        return super().forward(x) + F.linear(low, self.lora_B)


def add_adapters(model: nn.Module, rank: int, alpha: float | None = None) -> int:
    """Freeze a model's backbone, and add adapters to the attention and MLP of its blocks.

    Blocks that ``frozen_stages`` freezes get no adapters. Biases, norms and embeddings are frozen
    as well, because the paper and by default its code train only adapters (``bias="none"``). The
    backbone of a :class:`TargetEncoder` becomes a copy of the adapted one, and its A and B become
    moving averages. Heads do not change.

    Args:
        model: A model with a transformer of this package as its ``backbone``.
        rank: Rank r, at most the size of the smallest layer.
        alpha: Scale of the update, times r. None means r.

    Returns:
        Number of adapted layers.

    Raises:
        ValueError: If the rank or alpha is out of range, or if there is no layer to adapt.
    """
    alpha = rank if alpha is None else alpha
    if type(rank) is not int or rank < 1:
        raise ValueError(f"lora.rank must be a whole number of at least 1, got {rank!r}")
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ValueError(f"lora.alpha must be above 0, got {alpha!r}")
    backbone: Any = getattr(model, "backbone", None)
    blocks: list[nn.Module] = []
    # The only linear layers of convolutional networks are gates, which learn nothing on their own.
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
        why = "all of them are frozen" if blocks else "this network has none"
        raise ValueError(
            f"LoRA adapts the linear layers of attention and MLP, but {why} "
            f"({type(backbone).__name__})"
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
    """Add every adapter to its layer, W + scale B A, in at least float32.

    The weights may come from an untrusted file. The function therefore allocates no more memory
    than they occupy.

    Args:
        weights: Tensors by name.

    Returns:
        Tensors by name, without adapters.

    Raises:
        ValueError: If an adapter is incomplete, does not fit its layer, or has a different format.
    """
    merged = {name: value for name, value in weights.items() if not _is_adapter(name)}
    taken = held = 0  # bytes of merged weights, and bytes of the distinct weights that are stored
    storages: set[int] = set()
    for part in sorted({name.rpartition(".")[0] for name in weights if _is_adapter(name)}):
        tensors: list[Any] = [weights.get(f"{part}.{name}") for name in ("weight", *ADAPTER)]
        if not all(torch.is_tensor(x) and x.is_floating_point() for x in tensors):
            raise ValueError(
                f"{part} needs a weight and {', '.join(ADAPTER)}, but some are missing"
            )
        W, A, B, scale = tensors
        rank, size = A.shape[:1], W.shape
        fits = W.ndim == 2 and (A.shape, B.shape) == (rank + size[1:], size[:1] + rank)
        if not fits or scale.ndim or not 1 <= rank[0] <= min(size):
            shapes = ", ".join(str(tuple(x.shape)) for x in (W, A, B))
            raise ValueError(f"the adapter of {part} does not fit: weight, A and B are {shapes}")
        # Several weights may share a storage, but each merged weight needs its own memory.
        storage = W.untyped_storage()
        held += 0 if storage.data_ptr() in storages else storage.nbytes()
        storages.add(storage.data_ptr())
        taken += W.nbytes
        if taken > held:
            raise ValueError("several adapters belong to weights that share their memory")
        dtype = torch.promote_types(W.dtype, torch.float32)
        update = scale.to(dtype) * (B.to(dtype) @ A.to(dtype))
        merged[f"{part}.weight"] = (W.to(dtype) + update).to(W.dtype)
    return merged


def _is_adapter(name: Any) -> bool:
    return isinstance(name, str) and name.rpartition(".")[2] in ADAPTER
