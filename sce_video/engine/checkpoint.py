"""Checkpoints that are written atomically as plain data and read without executing code.

A checkpoint holds only tensors, numbers, strings and containers, so it can be read by
``torch.load(..., weights_only=True)``, for example by mmaction2's
``init_cfg=dict(type="Pretrained")``. mmengine 0.10.7 stores ``HistoryBuffer`` objects, which
torch >= 2.6 refuses. When such a file is read, every class name of a pickled buffer maps to a
stand-in that records plain arguments. The buffers are built afterwards from checked vectors of
numbers, so a file cannot call a class of numpy or mmengine.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import random
import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from sce_video.engine.batch_layout import layout_of
from sce_video.engine.config.snapshot import (
    differences,
    foreign_classes,
    imports_of,
    plain,
    recorded_training,
    resolved_config,
)
from sce_video.engine.run_json import describe_code
from sce_video.engine.weights import check_count, load_weights_file
from sce_video.models.modules.lora import ADAPTER, merged_weights
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.files import atomic_file, local_copy, regular_file
from sce_video.utils.plain_pickle import NUMPY_STAND_INS, ArrayRecord, DtypeRecord, convert
from sce_video.utils.run_files import find_checkpoints as find_checkpoints  # for callers
from sce_video.utils.run_files import newest_checkpoint
from sce_video.utils.storage import is_url

if TYPE_CHECKING:
    from mmengine.runner import Runner

#: Attribute bit that marks a zip record as a folder. Files of torch.save never set it.
_FOLDER = 0x10
_MAX_PLAIN_PARTS = 10**6
#: Message hub key for the name of a stopped training run's checkpoint.
STOP_CHECKPOINT = "stop_checkpoint"
#: File name prefix of checkpoints that a validation metric selects (mmengine's save_best).
BEST = "best_"
_OWN_NAME = re.compile(r"(best|epoch|iter)_[\w.-]*\.pth")


class HistoryRecord:
    """Stand-in for mmengine's ``HistoryBuffer`` that records its unchecked state."""

    _state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def buffer(self) -> HistoryBuffer:
        """Build the history from two checked vectors of numbers.

        Raises:
            pickle.UnpicklingError: If the state does not belong to a HistoryBuffer.
        """
        state = self._state if isinstance(self._state, dict) else {}
        records = [state.get(name) for name in ("_log_history", "_count_history")]
        arrays = [record.array() for record in records if type(record) is ArrayRecord]
        length = state.get("max_length", 0)
        sound = len(arrays) == 2 and all(array.ndim == 1 for array in arrays)
        sound = sound and len(arrays[0]) == len(arrays[1])
        if not sound or type(length) is not int or length < 1:
            raise pickle.UnpicklingError("a malformed HistoryBuffer")
        return HistoryBuffer(arrays[0].tolist(), arrays[1].tolist(), length)


def _history_method(owner: Any, name: Any) -> Any:
    """Replace ``getattr``, which a pickled HistoryBuffer calls for its four statistics."""
    # The real ``getattr`` would give a file access to every attribute of every permitted object.
    if owner is _EmptyRecord:  # Python 3.11.0 to 3.11.3 pickle Enum members in this way
        return _EmptyRecord()
    if owner is not HistoryRecord or name not in ("min", "max", "current", "mean"):
        raise pickle.UnpicklingError(f"attribute {name!r} is not a statistic of a HistoryBuffer")
    return f"HistoryBuffer.{name}"


#: Names in mmengine's files and their stand-ins. None of the stand-ins builds a real object.
_MMENGINE_STAND_INS: list = [
    (HistoryRecord, "mmengine.logging.history_buffer.HistoryBuffer"),
    (_history_method, "builtins.getattr"),
    *((stand_in, name) for name, stand_in in NUMPY_STAND_INS.items()),
]
_STAND_INS = frozenset(stand_in for stand_in, _ in _MMENGINE_STAND_INS)


def _checked_leaf(storages: dict[int, int], value: Any) -> Any:
    """Check a value that torch has read, and build the buffer of a HistoryRecord."""
    # A tensor with more numbers than its storage (a stride of 0, sparse, without data) is refused,
    # because copying it could take any amount of memory. Storage sizes are noted by address.
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and not (value.is_meta or value.is_nested)
        if not plain or value.nbytes > value.untyped_storage().nbytes():
            raise pickle.UnpicklingError(f"a tensor of shape {tuple(value.shape)} without its data")
        storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value
    if type(value) is HistoryRecord:
        return value.buffer()
    left_behind = isinstance(value, set | frozenset) and any(
        isinstance(item, ArrayRecord | DtypeRecord | HistoryRecord) for item in value
    )
    if left_behind or (callable(value) and value in _STAND_INS):
        raise pickle.UnpicklingError("a class or function instead of data")
    return value


def load_checkpoint_file(
    path: str | Path, map_location: Any = "cpu", merge_adapters: bool = True
) -> dict:
    """Read a checkpoint without executing code that it may contain.

    torch does not verify the checksums that it stores, so they are compared here first. Files
    written by torch < 1.6 have no checksums. If one is damaged, only truncation is detected.

    Args:
        path: A checkpoint or ``.safetensors`` file, its URL (:mod:`sce_video.utils.storage`), or a
            local folder (:func:`~sce_video.utils.run_files.newest_checkpoint`).
        map_location: Device for the tensors, as for :func:`torch.load`. ``.safetensors`` files are
            always read to the CPU.
        merge_adapters: Whether LoRA adapters are merged into the weights
            (:func:`~sce_video.models.modules.lora.merged_weights`). Only a resumed training run
            needs them separate.

    Raises:
        FileNotFoundError: If the file does not exist, or the folder contains no checkpoints.
        ObjectStoreError: If an object store cannot be read.
        ValueError: If the file is damaged, unreadable, or contains anything but plain data.
    """
    path = path if is_url(path) else newest_checkpoint(path)
    name = str(path)
    if name.endswith(".safetensors"):
        return load_weights_file(path)
    path = local_copy(path, newest=True)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {name} (local files, s3:// and gs:// are read)")
    try:
        _check_archive(path)
        with torch.serialization.safe_globals(_MMENGINE_STAND_INS):
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
        storages: dict[int, int] = {}
        checkpoint = convert(checkpoint, partial(_checked_leaf, storages))
        if sum(storages.values()) > path.stat().st_size:
            raise pickle.UnpicklingError("tensors larger than the file")
        if merge_adapters and isinstance(checkpoint, dict):
            inner = isinstance(checkpoint.get("state_dict"), dict)
            weights = checkpoint["state_dict"] if inner else checkpoint
            if any(str(name).endswith(ADAPTER) for name in weights):
                weights = merged_weights(weights)
                checkpoint = {**checkpoint, "state_dict": weights} if inner else weights
    except pickle.UnpicklingError as error:
        # torch's own message advises weights_only=False, which would run the code.
        text = str(error)
        ends = (text.partition(mark)[2] for mark in ("WeightsUnpickler error: ", "source.\n"))
        detail = next(filter(None, ends), text)
        raise ValueError(
            f"{name} contains more than plain data and is not loaded, since that could run code: "
            f"{detail.strip().splitlines()[0][:500]}"
        ) from None
    except Exception as error:  # a damaged file can raise any error: TypeError, IndexError, ...
        raise ValueError(
            f"{name} is not a readable checkpoint: {str(error)[:500] or type(error).__name__}"
        ) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{name} contains a {type(checkpoint).__name__}, not a checkpoint")
    return checkpoint


def first_readable(paths: Iterable[Path], logger: Any) -> Path | None:
    """Return the first readable checkpoint, or None, and warn about unreadable ones before it."""
    for path in paths:
        try:
            load_checkpoint_file(path)
        except ValueError as error:
            print_log(f"skipped: {error}", logger=logger, level=logging.WARNING)
        else:
            return path
    return None


def _check_archive(path: Path) -> None:
    """Raise ValueError unless the file is an undamaged archive in the form that torch writes."""
    # torch writes no compressed or overlapping records, but it would read them, and a small file
    # of such records unpacks to any size. torch does not verify the stored CRC-32 either.
    # Verifying it here takes 0.1 s for 400 MB in the page cache; torch.load itself takes 0.2 s.
    with open(path, "rb", opener=regular_file) as file:
        start = file.read(2)
        if not zipfile.is_zipfile(file):
            if start[:1] == b"\x80":  # a pickle of torch < 1.6, which has no checksums
                return
            raise ValueError(
                "it is truncated" if start == b"PK" else "it was not written by torch.save"
            )
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            check_count(len(records))
            stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
            if not stored or sum(record.file_size for record in records) > path.stat().st_size:
                raise ValueError("its records are compressed, which torch.save does not do")
            if start != b"PK":  # torch reads an archive that follows other bytes as a pickle
                if start[:1] == b"\x80":
                    return
                raise ValueError("it was not written by torch.save")
            # torch leaves the memory uninitialised if a record is marked as a folder.
            damaged = next((r.filename for r in records if r.external_attr & _FOLDER), None)
            if damaged is None and any(r.CRC for r in records):  # torch may have stored no CRCs
                damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"it is damaged: bits of its record {damaged} have changed")


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's content as a hexadecimal string.

    For a URL, hash the version that this process has read; for a folder, its newest checkpoint.
    """
    with open(
        local_copy(path if is_url(path) else newest_checkpoint(path)), "rb", opener=regular_file
    ) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_checkpoint_file(path: str | Path, checkpoint: dict | None = None) -> dict[str, Any]:
    """Describe the origin of a checkpoint's weights, for checkpoints and results made from them.

    The description contains ``path``, ``sha256`` and, if the file records them, ``epoch``,
    ``benchmark`` (the result that its recipe reproduces), ``training`` (:func:`record_training`),
    ``selected`` (how ``save_best`` chose it) and ``pretrained`` (the same description of the
    network from which training started, or "random"). ``other_weights`` is True if the training run
    did not write these weights.
    """
    content = load_checkpoint_file(path) if checkpoint is None else checkpoint
    meta = {**content.get("meta", {}), "training": recorded_training(content)}
    meta["epoch"] = meta.get("trained_epochs", meta.get("epoch"))  # if they are counted separately
    names = ("epoch", "benchmark", "selected", "pretrained", "training")
    known = {name: meta[name] for name in names if meta.get(name) is not None}
    plain_ones = {name: value for name, value in known.items() if is_plain(value)}
    if not has_own_weights(content):
        # Reading a file merges its adapters, so the separate weights are needed for comparison.
        adapters = (meta["training"].get("config") or {}).get("lora")
        whole = load_checkpoint_file(path, merge_adapters=False) if adapters else {}
        if not (adapters and has_own_weights(whole)):
            plain_ones["other_weights"] = True
    return {"path": str(path), "sha256": file_sha256(path), **plain_ones}


def weights_sha256(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes, in any file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            values: Any = flat.view(torch.uint8).numpy()  # shares memory instead of copying
            digest.update(values)
    return digest.hexdigest()


def has_own_weights(content: Mapping[str, Any]) -> bool:
    """Return whether the weights have the hash that their training run recorded, if it did."""
    meta, weights = content.get("meta"), content.get("state_dict")
    record = meta.get("training") if isinstance(meta, dict) else None
    noted = record.get("weights_sha256") if isinstance(record, dict) else None
    if noted is None:
        return True
    return isinstance(weights, dict) and weights_sha256(weights) == noted


def save_checkpoint_file(checkpoint: dict, path: str | Path) -> None:
    """Write a checkpoint atomically, so ``path`` is either the old file or the complete new one.

    Raises:
        WriteError: If the file cannot be written.
    """
    with atomic_file(path) as unfinished:
        with open(unfinished, "wb") as file:  # from a path, torch would store its name in the file
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch finishes the archive after a failed write
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


def pack_message_hub(state: dict) -> dict:
    """Convert the state of mmengine's message hub to plain data, without other objects."""
    histories = {}
    for name, buffer in state["log_scalars"].items():
        values, counts = (torch.from_numpy(np.asarray(data)) for data in buffer.data)
        histories[name] = {"values": values.double(), "counts": counts.long()}
    info = {name: value for name, value in state["runtime_info"].items() if is_plain(value)}
    resumed = {k: v for k, v in state["resumed_keys"].items() if k in histories or k in info}
    return {"log_scalars": histories, "runtime_info": info, "resumed_keys": resumed}


def unpack_message_hub(state: dict, folder: str | Path) -> dict:
    """Undo :func:`pack_message_hub`, and leave a state that mmengine itself saved unchanged.

    Hooks remove the checkpoints that the state lists. It may be untrusted, so every name that is
    not a checkpoint in ``folder``, the training run's work folder, is left out.
    """
    info = {}
    for name, value in state["runtime_info"].items():
        if name == "keep_ckpt_ids":
            value = [step for step in value if type(step) is int]
        elif "ckpt" in name or name == STOP_CHECKPOINT:
            file = Path(value).name if isinstance(value, str) else ""
            if not _OWN_NAME.fullmatch(file):
                continue
            value = file if name == STOP_CHECKPOINT else str(Path(folder, file))
        info[name] = value
    histories = dict(state["log_scalars"])
    for name, stored in histories.items():
        if not isinstance(stored, HistoryBuffer):
            values, counts = stored["values"].tolist(), stored["counts"].tolist()
            histories[name] = HistoryBuffer(values, counts)
    return {**state, "log_scalars": histories, "runtime_info": info}


def is_plain(value: Any) -> bool:
    """Return whether a value consists only of numbers, strings, None and containers of them.

    A value with more than a million parts is refused, because nested lists that share their
    elements can expand to any size.
    """
    left, todo = _MAX_PLAIN_PARTS, [value]
    while todo:
        node = todo.pop()
        left -= 1
        if type(node) is dict:
            todo += [*node, *node.values()]
        elif type(node) in (list, tuple):
            todo += node
        elif node is not None and type(node) not in (bool, int, float, str):
            return False
        if len(todo) > left:
            return False
    return True


def random_states() -> dict:
    """Return the states of the random generators of Python, numpy and torch as plain data."""
    name, keys, *rest = np.random.get_state()
    numpy = (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest)
    states = {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict) -> None:
    """Restore the states returned by :func:`random_states`."""
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


#: Endings of classes whose pickles fill them like a dict. A plain dict replaces them.
_DICTS = (".AttributeDict", ".defaultdict")


class _EmptyRecord:
    """Stand-in for any class or function in a file. It accepts all arguments and keeps none."""

    def __new__(cls, *_: Any) -> _EmptyRecord:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


class _DictRecord:
    """Stand-in for a class derived from dict. The file then fills the empty dict."""

    def __new__(cls, *_: Any) -> dict:  # type: ignore[misc]
        return {}


def load_third_party_checkpoint(path: str | Path) -> dict:
    """Read a file of ``torch.save``, with empty records instead of other packages' objects.

    Raises:
        FileNotFoundError: If the file does not exist.
        IsADirectoryError: If the path is a folder.
        ValueError: If the file is damaged or refers to the operating system.
    """
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(Path(path))
    except Exception:  # load_checkpoint_file below reports what is wrong with the file
        names = []
    stand_ins: list[Any] = [
        (_DictRecord if name.endswith(_DICTS) else _EmptyRecord, name)
        for name in names
        if name not in {known for _, known in _MMENGINE_STAND_INS}
    ]
    with torch.serialization.safe_globals(stand_ins):
        return load_checkpoint_file(path)


# -- what a checkpoint says about its training -----------------------------------------------------


def record_training(
    runner: Runner, resumed: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a training run by its resolved config and by facts that no config states.

    Args:
        runner: The runner with a built model and training dataset.
        resumed: Record in the checkpoint from which the training run was resumed, empty if it
            contains none; None if the training run was not resumed.

    Returns:
        The config, with the number of epochs of the loop (which a budget may set), and a dict:

        - ``network``, ``batch_size`` (global), ``max_epochs``;
        - ``data`` (:func:`describe_samples`, with the ``ann_sha256`` of the video list);
        - ``changed``: settings that changed when the training run was resumed;
        - ``code`` (:func:`~sce_video.engine.run_json.describe_code`);
        - ``foreign_classes``: classes of other packages; ``imports``: the modules of these classes.
    """
    layout = layout_of(runner)
    config = resolved_config(runner.cfg, None if layout is None else layout.global_batch)
    if "max_epochs" in (config.get("train_cfg") or {}):
        config["train_cfg"]["max_epochs"] = runner.max_epochs
    data = describe_samples(runner.train_dataloader.dataset)
    if "ann_file" in data:
        with suppress(OSError):  # the video list may have been removed since
            data["ann_sha256"] = file_sha256(data["ann_file"])
    changed: list[str] = []
    if resumed is not None and not isinstance(resumed.get("config"), dict):
        changed = ["the earlier part has no record"]
    elif resumed is not None:
        changed = [*resumed.get("changed", ()), *map(str, differences(config, resumed["config"]))]
        before = resumed.get("data") or {}
        changed += [
            f"{name} of the training data: {data.get(name)} -> {before.get(name)}"
            for name in ("samples", "num_classes")  # not the paths, because the folder may move
            if data.get(name) != before.get(name)
        ]
    return config, {
        "network": describe_network(runner),
        "data": data,
        "batch_size": (config.get("train_dataloader") or {}).get("batch_size"),
        "max_epochs": runner.max_epochs,
        "changed": changed,
        "code": describe_code(),
        "foreign_classes": foreign_classes(runner.cfg),
        "imports": imports_of(runner.cfg),
    }


def describe_network(runner: Runner) -> dict[str, Any]:
    """Return the backbone's config and its number of parameters, which implies its width."""
    model = unwrap_model(runner.model)
    backbone = getattr(model, "backbone", model)
    config = plain((runner.cfg.get("model") or {}).get("backbone")) or {}
    return {**config, "parameters": sum(p.numel() for p in backbone.parameters())}


def describe_samples(dataset: Any) -> dict[str, Any]:
    """Return the source and number of a dataset's samples as plain data.

    ``num_classes`` counts the different labels, and ``films`` lists the films of AVA.
    """
    found: dict[str, Any] = {"type": type(dataset).__name__, "samples": len(dataset)}
    for name in ("kind", "name", "split", "data_root", "ann_file"):
        if getattr(dataset, name, None) is not None:
            found[name] = str(getattr(dataset, name))
    labels = np.asarray(getattr(dataset, "labels", ()))
    if (labels >= 0).any():
        found["num_classes"] = len(np.unique(labels[labels >= 0]))
    if classes := (getattr(dataset, "metainfo", None) or {}).get("classes"):
        found["classes"] = [str(name) for name in classes]
    if hasattr(dataset, "num_films"):
        found["films"] = dataset.num_films
    return found


def record_selection(runner: Runner, filename: str) -> dict[str, Any] | None:
    """Return the metric, value and validation list by which ``save_best`` chose a checkpoint.

    Return None unless ``filename`` is ``best_<metric>_epoch_<N>.pth``. The best value so far is
    read from the runner's message hub.
    """
    if not filename.startswith(BEST):
        return None
    data = describe_samples(runner.val_dataloader.dataset)
    found: dict[str, Any] = {
        "metric": filename.removeprefix(BEST).rpartition("_epoch_")[0],
        "value": float(runner.message_hub.get_info("best_score", float("nan"))),
        "data_root": data.get("data_root", ""),
        **{name: data[name] for name in ("split", "ann_file") if name in data},
    }
    if "ann_file" in data:
        found["ann_sha256"] = file_sha256(data["ann_file"])
    return found


def selected_on(selected: dict[str, Any], data: dict[str, Any]) -> bool:
    """Return whether a checkpoint was selected (:func:`record_selection`) on its test data.

    ``data`` describes the test set by its ``ann_sha256`` or, if it has no video list, by
    ``data_root`` and ``split``.
    """
    keys = ("ann_sha256",) if selected.get("ann_sha256") else ("data_root", "split")
    return all(selected.get(key) == data.get(key) for key in keys)
