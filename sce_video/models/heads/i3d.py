"""mmaction2's classifier for clips, fit for mixed precision."""

from __future__ import annotations

from mmaction.models.heads import I3DHead as MmactionI3DHead
from torch import Tensor

from sce_video.registry import MODELS


@MODELS.register_module()
class I3DHead(MmactionI3DHead):
    """mmaction2's ``I3DHead``, whose loss and accuracy are of float32 scores under autocast too.

    mmaction2 counts the right answers with numpy, which has no bfloat16. Arguments and parameters
    are mmaction2's, so checkpoints fit both.
    """

    def loss_by_feat(self, cls_scores: Tensor, data_samples: list) -> dict[str, Tensor]:
        """Loss and accuracies of scores (N, number of classes), see mmaction2."""
        return super().loss_by_feat(cls_scores.float(), data_samples)
