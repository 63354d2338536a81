"""The last transform: from numpy views to the sample a loader ships."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class PackClips:
    """Turn the views into uint8 tensors; colours and layout are the data preprocessor's work."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` (list of V uint8 tensors (T, H, W, 3)), ``label, index, seed``."""
        inputs = [torch.from_numpy(np.ascontiguousarray(view)) for view in results["views"]]
        kept = {name: int(results[name]) for name in ("label", "index", "seed")}
        return {"inputs": inputs, **kept}
