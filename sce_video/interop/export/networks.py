"""Export of a network for other runtimes, as ONNX or as a ``torch.export`` program."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as fx_config

from sce_video.inference.classifier import VideoClassifier
from sce_video.interop.pretrained import (
    Network,
    model_card,
    network_config,
    network_weights,
    save_pretrained,
)
from sce_video.models.backbones.common import StagedBackbone, represent
from sce_video.utils.command import without_log_messages
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import atomic_file, regular_file, write_text

INPUT = "clips"
#: Shape (N, T, H, W) of the traced clips if all sizes may vary. In no layer does one of these sizes
#: become 1 or equal to another size, because the tracer would take that for a rule.
_TRACED = (2, 18, 162, 178)
#: Smallest size of a clip. In smaller clips, a ResNet's last layers have a single cell, for which
#: the tracer would specialise.
_LEAST_SIZE = 33
#: Batch sizes for which an exported file is compared with PyTorch.
CHECKED_BATCHES = (1, 3)
#: Largest allowed difference from PyTorch, relative to the largest output.
_TOLERANCE = 1e-4


class ClipNetwork(nn.Module):
    """Network that maps uint8 clips (N, T, H, W, 3) to features (N, C) and probabilities (N, K).

    Only a classifier has probabilities.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        network_weights(network)  # raises ValueError if the head is unknown
        classifies = isinstance(network, VideoClassifier)
        inner: Any = network.recognizer if isinstance(network, VideoClassifier) else network.encoder
        self.backbone = copy.deepcopy(inner.backbone).cpu().float().eval().requires_grad_(False)
        if getattr(self.backbone, "channels_last", False):
            self.backbone.channels_last = False  # each runtime chooses its own memory format
            self.backbone.to(memory_format=torch.contiguous_format)
        self.classifier = copy.deepcopy(inner.cls_head.fc_cls).cpu() if classifies else None
        for name in ("mean", "std"):
            value = torch.tensor(getattr(network.settings, name), dtype=torch.float32)
            self.register_buffer(name, value.reshape(1, -1, 1, 1, 1))

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in their order."""
        return ["features"] if self.classifier is None else ["features", "probabilities"]

    def any_size(self, shape: tuple[int, int, int, int]) -> bool:
        """Return whether one graph accepts clips of lengths and sizes other than ``shape``.

        Tracing fixes the position embeddings of a transformer for one size, and S3D pools clips
        with fewer than five frames differently.
        """
        if not (isinstance(self.backbone, StagedBackbone) and self.backbone.traces_any_size):
            return False
        return shape[0] >= self.backbone.least_frames and shape[1] >= _LEAST_SIZE

    def forward(self, clips: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of ``outputs``."""
        view = clips.permute(0, 4, 1, 2, 3).to(torch.float32) / 255.0
        features = represent(self.backbone, (view - self.mean) / self.std)
        if self.classifier is None:
            return (features,)
        return features, self.classifier(features).softmax(dim=1)


def traced(module: ClipNetwork, shape: tuple[int, int, int, int]) -> ExportedProgram:
    """Trace the network to a graph of torch operators for any batch size.

    Args:
        module: Network to trace.
        shape: Shape (T, H, W, 3) of the clips. It is fixed unless ``module.any_size(shape)``.

    Raises:
        ValueError: If the network cannot be traced.
    """
    sizes: dict[int, Any] = {0: Dim("N")}
    example = (_TRACED[0], *shape)
    if module.any_size(shape):
        sizes |= dict.fromkeys((1, 2, 3), Dim.DYNAMIC)
        example = (*_TRACED, 3)
    clips = torch.zeros(example, dtype=torch.uint8)
    try:
        # Without this option, the tracer refuses networks whose last layer has a single cell.
        with fx_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            return torch.export.export(module, (clips,), dynamic_shapes={INPUT: sizes})
    except Exception as error:  # the network or the tracer may raise any error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        kind = type(module.backbone).__name__
        raise ValueError(f"{kind} cannot be exported: {reason[0][:500]}") from error


def largest_difference(
    module: ClipNetwork, shape: tuple[int, int, int, int], run: Any, name: str
) -> float:
    """Compute the largest difference between the outputs of ``run(clips)`` and PyTorch.

    Random clips are compared at several batch sizes.

    Raises:
        ValueError: If the difference exceeds 1e-4 of the largest output.
    """
    largest = 0.0
    for count in CHECKED_BATCHES:
        generator = np.random.default_rng(count)
        clips = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        with torch.inference_mode():
            wanted = [value.numpy() for value in module(torch.from_numpy(clips))]
        for found, value in zip(run(clips), wanted, strict=True):
            if found.shape != value.shape:
                raise ValueError(
                    f"{name}: an output has shape {found.shape}, but PyTorch's output has "
                    f"{value.shape}"
                )
            difference = float(np.abs(found - value).max())
            if not difference <= _TOLERANCE * max(1.0, float(np.abs(value).max())):
                raise ValueError(
                    f"{name}: the outputs differ from PyTorch's by {difference:.1e}. Nothing was "
                    "written"
                )
            largest = max(largest, difference)
    return largest


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the tracer's messages about its own code and about packages that are not needed."""
    with without_log_messages(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


#: ONNX metadata key that stores the content of ``config.json``.
METADATA = "sce_video"
#: Name of an exported program's extra file that stores the content of ``config.json``.
PROGRAM_METADATA = "sce_video.json"
#: Names of the axes whose sizes may vary.
_AXES = "NTHW"
#: Maximum size of the weights in bytes, because protobuf files are limited to 2 GiB.
_MAX_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class NetworkReport:
    """Report on an exported network.

    Attributes:
        path: Path of the file or folder.
        outputs: Names of the outputs.
        any_size: Whether the length and size of clips may differ between calls, as the batch may.
        difference: Largest difference of an output from PyTorch, over random clips at several
            batch sizes; None if the weights themselves were written.
    """

    path: Path
    outputs: list[str]
    any_size: bool
    difference: float | None


def export_network(network: Network, to: str, out: str | os.PathLike) -> NetworkReport:
    """Write a network for another runtime, and compare the written file with PyTorch.

    Args:
        network: Network from :func:`~sce_video.interop.pretrained.load_network`.
        to: "pretrained" (a folder), "onnx" or "program" (a ``torch.export`` program).
        out: File or folder to write.

    Raises:
        ValueError: If the network cannot be traced, or outputs differ from PyTorch. Nothing is
            written in this case.
        MissingPackageError: If onnx, onnxruntime or onnxscript is not installed.
        WriteError: If ``out`` cannot be written.
    """
    out = Path(out)
    module, settings = ClipNetwork(network), network.settings
    if to == "pretrained":
        return NetworkReport(save_pretrained(network, out), module.outputs, True, None)
    if to == "onnx":
        _import_onnx()  # report a missing package before starting
    shape = (settings.num_frames, settings.crop_size, settings.crop_size, 3)
    text = json.dumps(network_config(network))
    with _quiet():
        program = traced(module, shape)
        with atomic_file(out) as unfinished:
            run = _WRITERS[to](program, module, shape, text, unfinished)
            difference = largest_difference(module, shape, run, str(out))
    write_text(out.with_name(f"{out.name}.md"), model_card(network))
    return NetworkReport(out, module.outputs, module.any_size(shape), difference)


def _write_program(
    program: ExportedProgram, module: ClipNetwork, shape: tuple, text: str, path: Path
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Write a file of ``torch.export.save``, and return a function that runs it."""
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={PROGRAM_METADATA: text})
    with open(path, "rb", opener=regular_file) as file:
        stored = torch.export.load(file).module()
    return lambda clips: [value.numpy() for value in stored(torch.from_numpy(clips))]


def _write_onnx(
    program: ExportedProgram, module: ClipNetwork, shape: tuple, text: str, path: Path
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Write an ONNX file with named axes, and return a function that runs it."""
    onnxruntime = _import_onnx()
    axes = dict(enumerate(_AXES if module.any_size(shape) else _AXES[:1]))
    written: Any = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=module.outputs,
        dynamic_shapes={INPUT: axes},
    )
    size = sum(value.numel() * value.element_size() for value in program.state_dict.values())
    if size > _MAX_BYTES:
        raise ValueError(f"weights of {size / 2**30:.1f} GiB do not fit into one ONNX file (2 GiB)")
    written.model.metadata_props[METADATA] = text
    written.save(path, external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda clips: session.run(None, {INPUT: clips})


def _import_onnx() -> Any:
    """Import onnxruntime, or raise an error that names the missing package."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"--to onnx needs {error.name}. Run pip install sce-video[onnx]"
        ) from None
    return onnxruntime


_WRITERS = {"onnx": _write_onnx, "program": _write_program}
