"""From features to the representation h: the one place where features are pooled."""

from __future__ import annotations

from torch import Tensor, nn


def average_pool(features: Tensor) -> Tensor:
    """Mean of features (N, C, ...) over all dimensions after C: (N, C).

    Raises:
        ValueError: features are no tensor or have nothing to pool, e.g. the tuple of pathways that
            mmaction2's SlowFast returns.
    """
    if not isinstance(features, Tensor) or features.ndim < 3:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"average pooling needs a tensor (N, C, ...), got {shape}")
    return features.mean(dim=tuple(range(2, features.ndim)))


def map_tokens(features: Tensor) -> Tensor:
    """Tokens (N, L, C) of features (N, C, ...): one of each position, the last index fastest.

    Raises:
        ValueError: features are no tensor (N, C, ...), or have one position, as those of an encoder
            that pools them itself.
    """
    if not isinstance(features, Tensor) or features.ndim < 3 or features[0, 0].numel() < 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"attentive pooling needs features (N, C, ...) of two positions or more, got {shape}: "
            "this backbone gives no tokens. An HFEncoder gives its patch tokens with "
            "model.backbone.pool=mean, if its family has that"
        )
    return features.flatten(2).transpose(1, 2)


def represent(backbone: nn.Module, view: Tensor) -> Tensor:
    """h (N, C) of a view (N, 3, T, H, W): the backbone's features, pooled.

    A backbone with a method ``pool(features) -> (N, C)`` pools its own features (all of ours do);
    those of any other backbone, mmaction2's for example, are averaged by :func:`average_pool`.
    """
    features = backbone(view)
    pool = getattr(backbone, "pool", None)
    # A submodule that happens to be called "pool" is a layer of the network, not this contract.
    if pool is None or isinstance(pool, nn.Module):
        return average_pool(features)
    return pool(features)
