"""A network as a file for other runtimes: ONNX, or a program of ``torch.export``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from sce_video.apis.exporting.formats import NETWORK_FORMATS
from sce_video.apis.exporting.network_module import (
    INPUT,
    ClipNetwork,
    Comparison,
    clip_shape,
    quiet,
    traced,
)
from sce_video.apis.pretrained import Network, network_config, save_pretrained
from sce_video.utils.atomic_file import atomic_file
from sce_video.utils.errors import MissingPackageError

#: Key of the metadata of a file that holds the content of ``config.json``.
METADATA = "sce_video"
PROGRAM_METADATA = "sce_video.json"
_AXES = "NTHW"
#: A protobuf file holds less than 2 GiB; larger weights would be files beside it.
_MAX_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class NetworkReport:
    """What was written.

    Attributes:
        path: The file or folder.
        outputs: Names of the outputs.
        any_size: Whether length and size of the clips may differ from call to call, beside the
            batch.
        difference: Largest difference of an output from PyTorch, over random clips at several batch
            sizes; None where the weights themselves were written.
    """

    path: Path
    outputs: list[str]
    any_size: bool
    difference: float | None


def export_network(network: Network, to: str, out: str | os.PathLike) -> NetworkReport:
    """Write a network for another runtime, and compare what was written with PyTorch.

    Args:
        network: From :func:`~sce_video.apis.pretrained.load_network`.
        to: "pretrained" (a folder), "onnx" or "program" (a file of ``torch.export``).
        out: File or folder to write.

    Raises:
        ValueError: an unknown format or ending, a network that cannot be traced, or outputs that
            differ from PyTorch's: then nothing is written.
        FileExistsError: there is something at ``out``.
        MissingPackageError: onnx, onnxruntime or onnxscript is not installed.
        WriteError: ``out`` cannot be written.
    """
    out = Path(out)
    if to not in NETWORK_FORMATS:
        raise ValueError(f"the format must be one of {', '.join(NETWORK_FORMATS)}, got {to!r}")
    ending = _ENDINGS.get(to, "")
    if out.suffix != ending and ending:
        raise ValueError(f"the file must end in {ending}, got {str(out)!r}")
    if os.path.lexists(out):
        raise FileExistsError(f"{out} exists: remove it, or give another --out")
    if to == "pretrained":
        outputs = ClipNetwork(network).outputs
        return NetworkReport(save_pretrained(network, out), outputs, True, None)
    if to == "onnx":
        _import_onnx()  # before the work, not after it
    module, shape = ClipNetwork(network), clip_shape(network)
    comparison = Comparison(module, shape)
    text = json.dumps(network_config(network))
    with quiet():
        program = traced(module, shape)
        with atomic_file(out) as unfinished:
            comparison.check(_WRITERS[to](program, module, shape, text, unfinished), str(out))
    return NetworkReport(out, module.outputs, module.any_size(shape), comparison.largest)


def _write_program(
    program: ExportedProgram, module: ClipNetwork, shape: tuple, text: str, path: Path
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Write a file of ``torch.export.save``; returns what runs it."""
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={PROGRAM_METADATA: text})
    with open(path, "rb") as file:
        stored = torch.export.load(file).module()
    return lambda clips: [value.numpy() for value in stored(torch.from_numpy(clips))]


def _write_onnx(
    program: ExportedProgram, module: ClipNetwork, shape: tuple, text: str, path: Path
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Write an ONNX file with named axes; returns what runs it."""
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
    """onnxruntime, or the error that names what is missing of the extra "onnx"."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"--to onnx needs {error.name}: pip install sce-video[onnx]"
        ) from None
    return onnxruntime


_WRITERS = {"onnx": _write_onnx, "program": _write_program}
_ENDINGS = {"onnx": ".onnx", "program": ".pt2"}
