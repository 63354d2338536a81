"""The (N, K) matrices of the losses with a queue: one of logits for each branch, no copies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sce_video.models.losses import info_nce_loss, ressl_loss, sce_loss

N, K, D = 3, 50, 8


class Made(TorchDispatchMode):
    """Notes the operations whose results are new (N, K) matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape == (N, K) and not result._is_view():
            self.names.append(func.overloadpacket.__name__)
        return result


@pytest.mark.parametrize(
    ("loss", "numbers", "made"),
    [
        (info_nce_loss, dict(tau=0.1), ["mm"]),
        (ressl_loss, dict(tau=0.1, tau_m=0.05), ["mm", "mm", "_softmax", "mul"]),
        # The second product with s2 is that of the logged entropy.
        (sce_loss, dict(), ["mm", "mm", "_softmax", "mul", "mul"]),
    ],
)
def test_matrices_of_a_forward_pass(loss, numbers, made):
    torch.manual_seed(0)
    query, key, queue = (F.normalize(torch.randn(n, D), dim=1) for n in (N, N, K))
    query.requires_grad_()
    with Made() as found:
        value = loss(query, key, queue, **numbers)
    matrices = [name for name in found.names if name not in ("detach", "t", "alias")]
    # logsumexp of a CPU is one operation or, in other versions, several.
    kept = [name for name in matrices if name in ("mm", "_softmax", "mul", "div")]
    assert sorted(kept) == sorted(made)
    assert torch.isfinite(value)
