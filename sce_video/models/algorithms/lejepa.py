"""LeJEPA: view prediction with SIGReg (Balestriero and LeCun, arXiv 2511.08544)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel
from sce_video.models.losses.siamese import full_precision
from sce_video.models.losses.sigreg import sigreg_loss
from sce_video.models.modules import StepGenerator
from sce_video.models.modules.view_pairs import check_target_views, default_target_views
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import PartConfig
from sce_video.utils.tensors import LoggedValue


class RandomDirections(StepGenerator):
    """M uniformly distributed unit vectors (M, D) that depend only on the optimiser step."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        if min(count, dim) < 1:
            least = "the number and size of directions must be at least 1"
            raise ValueError(f"{least}, got {count} and {dim}")
        self.count = count
        self.dim = dim

    def forward(self) -> Tensor:
        """Return the directions (M, D) of the current step, float32, on the module's device."""
        directions = torch.randn(self.count, self.dim, generator=self.generator())
        return F.normalize(directions, dim=1).to(self.step.device, non_blocking=True)


@MODELS.register_module()
class LeJEPA(SelfSupervisedModel):
    """Prediction of the global views' centre from all views, with SIGReg to prevent a collapse.

    Let z_v (N, D) be the embeddings of view v, which are not normalised, and let c be the mean of
    the global views' embeddings::

        prediction = mean over views, samples and dimensions of (z_v - c)^2
        loss       = (1 - lambda) * prediction + lambda * mean over views of SIGReg(z_v)

    The method has no target network, stop-gradient, predictor or queue. SIGReg is 0 for embeddings
    distributed as N(0, I). It is computed over the samples of all ranks, but only over one
    micro-batch if gradients are accumulated. The projector must not end with BN, which would fix
    mean and variance independently of the loss.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        lambda_: Weight of SIGReg, 0 to 1. The paper uses 0.02 to 0.05. It is read at every step.
        num_directions: M, number of random directions per step. The paper uses 256 to 1024.
        global_views: Indices of the views whose mean is predicted. All other views only predict.
            None means all views that are as large as the first one.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        lambda_: float = 0.05,
        num_directions: int = 1024,
        global_views: Sequence[int] | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        joint_views: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, joint_views=joint_views)
        if global_views is not None:
            check_target_views(global_views, "global_views")
        self.build_heads(projector)
        self.directions = RandomDirections(num_directions, self.projector.out_channels)
        self.lambda_ = lambda_
        self.global_views = global_views
        self.check_settings()

    def check_settings(self) -> None:
        """Check ``lambda_``.

        Raises:
            ValueError: If it is out of range.
        """
        if not 0 <= self.lambda_ <= 1:
            raise ValueError(f"lambda_ must be from 0 to 1, got {self.lambda_}")

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Check the number of views.

        Returns:
            An empty list, because there is nothing to warn about.

        Raises:
            ValueError: If there are fewer than two views, or if a global view does not exist.
        """
        if num_views is not None and num_views < 2:
            raise ValueError(f"LeJEPA needs at least two views, got {num_views}")
        if num_views is not None and max(self.global_views or (0,)) >= num_views:
            given = f"global_views {list(self.global_views or ())}"
            raise ValueError(f"{given} must be below the number of views, {num_views}")
        return []

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the prediction error and SIGReg for any number of views.

        Returns:
            ``loss``, its parts ``prediction`` and ``sigreg``, the spread ``z_std`` of the first
            view's embeddings (1 for N(0, I), 0 after a collapse), and collapse metrics.
        """
        self.check_training(0, 0, len(views))
        global_views = self.global_views or default_target_views(views, symmetric=True)
        h, embeddings = self.encode_views(views)
        z = full_precision(torch.stack(embeddings))  # (V, N, D)

        # Gradients also flow through the centre. Only SIGReg keeps the embeddings from collapsing.
        centre = z[list(global_views)].mean(dim=0)
        prediction = (z - centre).square().mean()
        directions = self.directions()
        sigreg = torch.stack([sigreg_loss(view, directions) for view in z]).mean()
        return {
            "loss": (1 - self.lambda_) * prediction + self.lambda_ * sigreg,
            "prediction": prediction.detach(),
            "sigreg": sigreg.detach(),
            "z_std": z[0].detach().std(dim=0, correction=0).mean(),
            **self.collapse_metrics(h[0]),
        }

    def after_optimizer_step(self) -> None:
        """Draw new directions for the next step."""
        self.directions.advance()
