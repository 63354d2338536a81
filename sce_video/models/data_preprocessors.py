"""Conversion of a collated uint8 batch to augmented and normalised views on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from sce_video.models.augmentation import (
    ViewAugmentation,
    ViewParameters,
    augment,
    build_view,
    draw_parameters,
)
from sce_video.models.fused_augmentation import accepts, augment_fused, can_compile
from sce_video.models.recognizer import ActionDataSample
from sce_video.registry import MODELS, mmaction_installed
from sce_video.utils import tensors as reused_memory

#: Collated data of N samples by name, before or after they are prepared
Batch = dict[str, Any]


@MODELS.register_module()
class VideoDataPreprocessor(BaseDataPreprocessor):
    """Data preprocessor that moves a batch to the device, augments it and normalises it.

    The augmentation runs only in training. It applies colour jitter, grey, blur, solarise and flip,
    in this order, to whole batches. Every random parameter is drawn once per view of a sample, from
    the sample's seed and the index of the view, and is used for all frames of the view. The
    augmentation runs without gradient and in float32, even under autocast.

    Args:
        views: One distribution for each view in the batch, for example
            ``dict(name="strong-alpha", strength=1.0)``
            (:func:`~sce_video.models.augmentation.build_view`). None or an empty list turns the
            augmentation off.
        mean: Value to subtract, on the 0..1 scale: one number, or one per channel.
        std: Value to divide by after the subtraction: one number, or one per channel.
        channels_last: Whether views are returned in ``torch.channels_last_3d`` memory.
        chunk_size: Number of samples that are processed together. It affects speed and memory
            (about five times the size of the chunk's float views), and results only by rounding.
            None means 32, or on a CPU as many samples as fit into 4 MiB of cache. A fused
            augmentation processes all samples together.
        fused: Whether torch.compile turns the augmentation into a few large kernels
            (:mod:`~sce_video.models.fused_augmentation`), which affects results only by rounding.
            None means only on a GPU for which kernels can be compiled. They are compiled in the
            first step, and only for the first eight clip shapes.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        views: Sequence[ViewAugmentation | dict] | None = None,
        mean: float | Sequence[float] = 0.45,
        std: float | Sequence[float] = 0.225,
        channels_last: bool = False,
        chunk_size: int | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(non_blocking=True)
        if isinstance(views, (str, dict)):
            raise ValueError(f"views must be a list with one entry per view, got {views!r}")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be 1 or more, got {chunk_size}")
        self.views = [build_view(view) for view in views or []]
        self.channels_last = channels_last
        self.chunk_size = chunk_size
        self.fused = fused
        self.register_buffer("mean", _per_channel("mean", mean), persistent=False)
        self.register_buffer("std", _per_channel("std", std), persistent=False)
        if not bool((self.std > 0).all()):
            raise ValueError(f"std must be above 0, got {std}")

    @torch.no_grad()
    def forward(self, data: Batch, training: bool = False) -> Batch:
        """Move a batch to the device, normalise it and, if ``training``, augment it.

        Args:
            data: ``inputs``, a list of V uint8 tensors (N, T, H, W, 3) with any T, H and W.
                Optional entries are ``label``, ``index`` and ``clip`` (N,), and ``seed`` (N,)
                int64. Without ``seed``, seeds are drawn from torch's global generator.
            training: Whether to augment the views.

        Returns:
            ``inputs``, a list of V float32 tensors (N, 3, T, H, W), and ``data_samples`` with
            ``label``, ``index`` and ``clip`` on the device and, in training, ``seed`` as N ints.
        """
        views = self.prepare_views(data, training)
        samples = {key: data[key] for key in ("label", "index", "clip") if key in data}
        samples = self.cast_data(samples)
        if training and "seed" in data:  # a list, because DistributedDataParallel moves tensors
            samples["seed"] = data["seed"].tolist()
        return dict(inputs=views, data_samples=samples)

    @torch.no_grad()
    def prepare_views(self, data: Batch, training: bool = False) -> list[Tensor]:
        """Return only the views of :meth:`forward`, V float32 tensors (N, 3, T, H, W).

        Raises:
            ValueError: If a view is not uint8 (N, T, H, W, 3).
        """
        clips = data["inputs"]
        for number, clip in enumerate(clips):
            if clip.dtype != torch.uint8 or clip.ndim != 5 or clip.shape[-1] != 3:
                raise ValueError(
                    f"view {number} must be uint8 (N, T, H, W, 3), got {clip.dtype} "
                    f"{tuple(clip.shape)}. The pipeline must not scale or normalise, because the "
                    "data preprocessor does"
                )
        parameters: list[ViewParameters] | list[None] = [None] * len(clips)
        if training and self.views and clips:  # a batch has no views if all samples were skipped
            parameters = self.draw(len(clips[0]), len(clips), data.get("seed"))
        with torch.autocast(self.device.type, enabled=False):
            return [
                self._prepare(c, None) if p is None else self._augment(c, p)
                for c, p in zip(clips, parameters, strict=True)
            ]

    @torch.no_grad()
    def normalise(self, clip: Tensor) -> Tensor:
        """Convert uint8 (N, T, H, W, 3) to float32 (N, 3, T, H, W) without augmentation."""
        with torch.autocast(self.device.type, enabled=False):
            return self._prepare(clip, None)

    def draw(self, batch_size: int, num_views: int, seeds: Tensor | None) -> list[ViewParameters]:
        """Draw the random parameters of each view for samples with these seeds (N,).

        Raises:
            ValueError: If the batch and the configuration have different numbers of views.
        """
        if num_views != len(self.views):
            raise ValueError(
                f"the batch has {num_views} views, but the data preprocessor has "
                f"{len(self.views)}. `views` must have one entry for each view of the pipeline"
            )
        if seeds is None:
            seeds = torch.randint(2**63 - 1, (batch_size,))
        numbers = seeds.tolist()
        return [draw_parameters(a, numbers, view) for view, a in enumerate(self.views)]

    def _augment(self, clip: Tensor, parameters: ViewParameters) -> Tensor:
        """Convert uint8 (N, T, H, W, 3) to augmented float32 (N, 3, T, H, W)."""
        fused = can_compile(self.device) if self.fused is None else self.fused
        if not (fused and accepts(tuple(clip.shape))):
            return self._prepare(clip, parameters)
        layout = torch.channels_last_3d if self.channels_last else torch.contiguous_format
        try:
            return augment_fused(self.cast_data(clip), parameters, self.mean, self.std, layout)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            print_log(
                f"torch.compile cannot compile the augmentation, which runs unfused: {reason}",
                logger="current",
                level=logging.WARNING,
            )
            self.fused = False
            return self._prepare(clip, parameters)

    def _prepare(self, clip: Tensor, parameters: ViewParameters | None) -> Tensor:
        """Convert uint8 (N, T, H, W, 3) to float32 (N, 3, T, H, W), chunk by chunk."""
        clip = self.cast_data(clip).permute(0, 4, 1, 2, 3)
        on_cpu = clip.device.type == "cpu"
        # Allocate the result in the memory layout that the network uses.
        shape = clip.permute(0, 2, 3, 4, 1).shape if self.channels_last else clip.shape
        if on_cpu:
            out = reused_memory.empty(tuple(shape), torch.float32)
        else:
            out = torch.empty(shape, device=clip.device)
        out = out.permute(0, 4, 1, 2, 3) if self.channels_last else out
        default = max(1, 2**20 // max(1, clip[:1].numel())) if on_cpu else 32
        chunk_size = self.chunk_size or default
        # Without augmentation, frames are independent, so a CPU can process blocks of them that are
        # small enough for its caches (1 MiB in float32).
        whole = parameters is not None or not on_cpu
        block = clip.shape[2] if whole else max(1, 2**18 // max(1, clip[:1, :, :1].numel()))
        for start in range(0, len(clip), chunk_size):
            rows = slice(start, start + chunk_size)
            for first in range(0, clip.shape[2], max(1, block)):
                part = (rows, slice(None), slice(first, first + block))
                # Make the data contiguous while it is uint8, so that only a quarter of the bytes
                # are moved.
                x = clip[part].contiguous().to(torch.float32).div_(255.0)
                if parameters is not None:
                    x = augment(x, parameters.rows(rows))
                torch.sub(x, self.mean, out=out[part]).div_(self.std)
        return out


def _per_channel(name: str, value: float | Sequence[float]) -> Tensor:
    tensor = torch.tensor(value, dtype=torch.float32).reshape(1, -1, 1, 1, 1)
    if tensor.shape[1] not in (1, 3):
        raise ValueError(f"{name} must be one number or three, got {value}")
    return tensor


@MODELS.register_module()
class BoxDataPreprocessor(VideoDataPreprocessor):
    """Data preprocessor for clips with boxes and actions, which augments only the colours.

    Geometric augmentation belongs to the pipeline, where the boxes are moved as well. A view that
    flips is therefore refused.
    """

    def forward(self, data: Batch, training: bool = False) -> Batch:
        """Prepare a batch with one view and with ``boxes`` and ``actions``, N tensors each.

        Returns:
            ``inputs`` float32 (N, 3, T, H, W), and ``data_samples`` with ``boxes`` and ``actions``.

        Raises:
            ValueError: If a view flips, or if there is not exactly one view.
        """
        if any(view.flip_prob > 0 for view in self.views):
            raise ValueError(
                "a view of BoxDataPreprocessor must not flip, because the boxes would not move. "
                "Set flip_prob=0"
            )
        prepared = super().forward(data, training)
        if torch.is_tensor(prepared["inputs"]) or len(prepared["inputs"]) != 1:
            raise ValueError(f"expected one view per clip, got {len(prepared['inputs'])}")
        samples = {key: self.cast_data(data[key]) for key in ("boxes", "actions") if key in data}
        return {"inputs": prepared["inputs"][0], "data_samples": samples}


@MODELS.register_module()
class RecognizerDataPreprocessor(VideoDataPreprocessor):
    """A :class:`VideoDataPreprocessor` with the output format of mmaction2's recognisers."""

    def forward(self, data: Batch, training: bool = False) -> Batch:
        """Prepare a batch with V views of the same shape.

        Returns:
            ``inputs`` float32 (N, V, 3, T, H, W), and ``data_samples``, N ``ActionDataSample`` with
            labels.
        """
        sample_type: Any = ActionDataSample
        if mmaction_installed():  # imported here, because it is slow and only recognisers need it
            sample_type = import_module("mmaction.structures").ActionDataSample
        prepared = super().forward(data, training)
        samples = [
            sample_type().set_gt_labels(label)
            for label in prepared["data_samples"]["label"].reshape(-1, 1)
        ]
        return {"inputs": torch.stack(prepared["inputs"], dim=1), "data_samples": samples}
