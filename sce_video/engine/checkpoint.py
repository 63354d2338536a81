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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from sce_video.engine.batch_layout import layout_of
from sce_video.engine.config.differences import differences
from sce_video.engine.config.snapshot import (
    ConfigData,
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
from sce_video.utils.files import atomic_file, content_sha256, local_copy, regular_file
from sce_video.utils.plain_pickle import NUMPY_STAND_INS, ArrayRecord, DtypeRecord, convert
from sce_video.utils.records import at
from sce_video.utils.run_files import find_checkpoints as find_checkpoints  # re-exported
from sce_video.utils.run_files import newest_checkpoint
from sce_video.utils.storage import is_url

if TYPE_CHECKING:
    from mmengine.runner import Runner

#: Description of a checkpoint or of a training run, as JSON data.
Provenance = dict[str, Any]
#: Attribute bit that marks a zip record as a folder. torch.save never sets it.
_FOLDER = 0x10
#: Largest number of elements in a value that :func:`is_plain` accepts.
_MAX_PLAIN_PARTS = 10**6
#: Message hub key for the name of a stopped training run's checkpoint.
STOP_CHECKPOINT = "stop_checkpoint"
#: File name prefix of checkpoints that a validation metric selects (mmengine's save_best).
BEST = "best_"
#: Names of the checkpoint files that mmengine's and this package's hooks write.
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
    # The real ``getattr`` would let a file access every attribute of every permitted object.
    if owner is _EmptyRecord:  # Python 3.11.0 to 3.11.3 pickle Enum members with getattr
        return _EmptyRecord()
    if owner is not HistoryRecord or name not in ("min", "max", "current", "mean"):
        raise pickle.UnpicklingError(f"attribute {name!r} is not a statistic of a HistoryBuffer")
    return f"HistoryBuffer.{name}"


#: Stand-ins for names in mmengine's files. None of them builds the real object.
_MMENGINE_STAND_INS: list = [
    (HistoryRecord, "mmengine.logging.history_buffer.HistoryBuffer"),
    (_history_method, "builtins.getattr"),
    *((stand_in, name) for name, stand_in in NUMPY_STAND_INS.items()),
]
_STAND_INS = frozenset(stand_in for stand_in, _ in _MMENGINE_STAND_INS)


def _checked_leaf(storages: dict[int, int], value: Any) -> Any:
    """Check a value that torch has read, and build the buffer of a HistoryRecord.

    The sizes of the tensors' storages are noted in ``storages``, by address.
    """
    # Refuse a tensor with more elements than its storage (for example sparse, or with a stride of
    # 0), because copying it could take any amount of memory.
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

    torch does not verify the checksums that it stores, so they are verified here first. A file
    written by torch < 1.6 has no checksums, so only truncation is detected.

    Args:
        path: A checkpoint or ``.safetensors`` file, its URL (:mod:`sce_video.utils.storage`), or a
            local folder (:func:`~sce_video.utils.run_files.newest_checkpoint`).
        map_location: Device for the tensors, as for :func:`torch.load`. ``.safetensors`` files are
            always read to the CPU.
        merge_adapters: Whether to merge LoRA adapters into the weights
            (:func:`~sce_video.models.modules.lora.merged_weights`). Only a resumed training run
            needs separate adapters.

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
        raise FileNotFoundError(
            f"there is no checkpoint at {name}. Give a file, a folder, an s3:// or a gs:// URL"
        )
    try:
        _check_archive(path)
        with torch.serialization.safe_globals(_MMENGINE_STAND_INS):
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
        storages: dict[int, int] = {}
        checkpoint = convert(checkpoint, partial(_checked_leaf, storages))
        if sum(storages.values()) > path.stat().st_size:
            raise pickle.UnpicklingError("tensors larger than the file")
        if merge_adapters and isinstance(checkpoint, dict):
            inner = at(checkpoint, "state_dict", dict)
            weights = checkpoint if inner is None else inner
            if any(str(name).endswith(ADAPTER) for name in weights):
                weights = merged_weights(weights)
                checkpoint = weights if inner is None else {**checkpoint, "state_dict": weights}
    except pickle.UnpicklingError as error:
        # torch's own message recommends weights_only=False, which would run code from the file.
        text = str(error)
        ends = (text.partition(mark)[2] for mark in ("WeightsUnpickler error: ", "source.\n"))
        detail = next(filter(None, ends), text)
        raise ValueError(
            f"{name} contains more than plain data. It is not loaded, because that could run code: "
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
    """Return the first readable checkpoint, or None, and warn about each one that is not."""
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
    # torch never writes compressed or overlapping records, but it would read them, so a small file
    # could unpack to any size. It does not verify CRC-32 checksums either. For 400 MB in the page
    # cache, verifying them takes 0.1 s, and torch.load takes 0.2 s.
    with open(path, "rb", opener=regular_file) as file:
        start = file.read(2)
        if not zipfile.is_zipfile(file):
            if start[:1] == b"\x80":  # a pickle from torch < 1.6, which has no checksums
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
            if start != b"PK":  # torch reads every other file as a pickle
                if start[:1] == b"\x80":
                    return
                raise ValueError("it was not written by torch.save")
            # If a record is marked as a folder, torch leaves its memory uninitialised.
            damaged = next((r.filename for r in records if r.external_attr & _FOLDER), None)
            if damaged is None and any(r.CRC for r in records):  # torch can save without CRCs
                damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"it is damaged: bits of its record {damaged} have changed")


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's content as a hexadecimal string.

    For a URL, the version that this process has read is hashed. For a folder, its newest checkpoint
    is hashed.
    """
    return content_sha256(local_copy(path if is_url(path) else newest_checkpoint(path)))


def describe_checkpoint_file(path: str | Path, checkpoint: dict | None = None) -> Provenance:
    """Describe the origin of a checkpoint's weights, for checkpoints and results made from them.

    The description contains ``path``, ``sha256`` and, if the file records them:

    - ``epoch``;
    - ``benchmark``: the result that its recipe reproduces;
    - ``selected``: how ``save_best`` chose it;
    - ``pretrained``: a description of the network from which training started, or "random";
    - ``training``: the record of :func:`record_training`;
    - ``other_weights``: True if the weights are not those that the training run wrote.

    Args:
        path: Path of the file.
        checkpoint: Content of the file; None reads it.
    """
    content = load_checkpoint_file(path) if checkpoint is None else checkpoint
    stated = ("epoch", "benchmark", "selected", "pretrained")
    found = {name: at(content, f"meta.{name}") for name in stated}
    # In a checkpoint that is written by iteration, "epoch" does not yet include an epoch that has
    # just ended.
    if (epochs := at(content, "meta.trained_epochs")) is not None:
        found["epoch"] = epochs
    found["training"] = recorded_training(content)
    known = {name: v for name, v in found.items() if v is not None and is_plain(v)}
    if not has_own_weights(content):
        # Loading has merged the adapters, so read the file without merging to compare the weights.
        adapters = at(found["training"], "config.lora")
        whole = load_checkpoint_file(path, merge_adapters=False) if adapters else {}
        if not (adapters and has_own_weights(whole)):
            known["other_weights"] = True
    return {"path": str(path), "sha256": file_sha256(path), **known}


def weights_sha256(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes.

    It does not depend on the file format of the tensors.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            values: Any = flat.view(torch.uint8).numpy()  # shares memory instead of copying
            digest.update(values)
    return digest.hexdigest()


def has_own_weights(content: Mapping[str, Any]) -> bool:
    """Return whether the weights have the hash that their training run recorded.

    Without a recorded hash, they count as the run's own weights.
    """
    recorded = at(content, "meta.training.weights_sha256")
    if recorded is None:
        return True
    weights = at(content, "state_dict", dict)
    return weights is not None and weights_sha256(weights) == recorded


def save_checkpoint_file(checkpoint: dict, path: str | Path) -> None:
    """Write a checkpoint atomically, so ``path`` is either the old file or the complete new one.

    Raises:
        WriteError: If the file cannot be written.
    """
    with atomic_file(path) as unfinished:
        with open(unfinished, "wb") as file:  # given a path, torch would store its name in the file
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # after a failed write, torch cannot end the archive
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


def pack_message_hub(state: dict) -> dict:
    """Convert the state of mmengine's message hub to plain data, and leave out other objects."""
    histories = {}
    for name, buffer in state["log_scalars"].items():
        values, counts = (torch.from_numpy(np.asarray(data)) for data in buffer.data)
        histories[name] = {"values": values.double(), "counts": counts.long()}
    info = {name: value for name, value in state["runtime_info"].items() if is_plain(value)}
    resumed = {k: v for k, v in state["resumed_keys"].items() if k in histories or k in info}
    return {"log_scalars": histories, "runtime_info": info, "resumed_keys": resumed}


def unpack_message_hub(state: dict, folder: str | Path) -> dict:
    """Convert the state of :func:`pack_message_hub` back, or accept a state that mmengine saved.

    Hooks remove the checkpoints that the state lists. The state may be untrusted, so every name
    that is not a checkpoint in ``folder``, the training run's work folder, is left out.
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

    A value with more than a million parts does not count as plain, because nested lists that share
    their elements can expand to any size.
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


#: Suffixes of the names of dict-like classes, which are unpickled as plain dicts.
_DICTS = (".AttributeDict", ".defaultdict")


class _EmptyRecord:
    """Stand-in for any class or function in a file. It accepts any arguments and keeps nothing."""

    def __new__(cls, *_: Any) -> _EmptyRecord:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


class _DictRecord:
    """Stand-in for a class derived from dict. The file then fills the empty dict."""

    def __new__(cls, *_: Any) -> dict:  # type: ignore[misc]
        return {}


def load_third_party_checkpoint(path: str | Path) -> dict:
    """Read a file of ``torch.save``, with empty records in place of other packages' objects.

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


# -- the record of a training run in its checkpoints -----------------------------------------------


def record_training(runner: Runner, resumed: Provenance | None) -> tuple[ConfigData, Provenance]:
    """Describe a training run by its resolved config and by facts that no config states.

    Args:
        runner: The runner with a built model and training dataset.
        resumed: Record in the checkpoint from which the training run was resumed, with the earlier
            changes of settings in ``changed``; None if the training run was not resumed.

    Returns:
        The config, with the loop's number of epochs (which a budget may set), and a dict:

        - ``network``: the backbone (:func:`describe_network`);
        - ``data``: the training samples (:class:`SampleFacts`);
        - ``batch_size``: the global batch;
        - ``max_epochs``;
        - ``changed``: settings that changed when the training run was resumed;
        - ``code``: versions of the code (:func:`~sce_video.engine.run_json.describe_code`);
        - ``foreign_classes``: classes of other packages;
        - ``imports``: the modules of these classes.
    """
    layout = layout_of(runner)
    config = resolved_config(runner.cfg, None if layout is None else layout.global_batch)
    if at(config, "train_cfg.max_epochs") is not None:
        config["train_cfg"]["max_epochs"] = runner.max_epochs
    data = describe_samples(runner.train_dataloader.dataset)
    if data.ann_file is not None:
        with suppress(OSError):  # the video list may no longer exist
            data = replace(data, ann_sha256=file_sha256(data.ann_file))
    changed: list[str] = []
    if resumed is not None and at(resumed, "config", dict) is None:
        changed = ["the earlier part has no record"]
    elif resumed is not None:
        changed = [*resumed["changed"], *map(str, differences(config, resumed["config"]))]
        # Paths are not compared, because the folder may have moved.
        for name, own in (("samples", data.samples), ("num_classes", data.num_classes)):
            before = at(resumed, f"data.{name}")
            if own != before:
                changed.append(f"{name} of the training data: {own} -> {before}")
    return config, {
        "network": describe_network(runner),
        "data": data.row(),
        "batch_size": at(config, "train_dataloader.batch_size"),
        "max_epochs": runner.max_epochs,
        "changed": changed,
        "code": describe_code(),
        "foreign_classes": foreign_classes(runner.cfg),
        "imports": imports_of(runner.cfg),
    }


def describe_network(runner: Runner) -> dict[str, object]:
    """Return the backbone's config and its number of parameters, which implies its width."""
    model = unwrap_model(runner.model)
    backbone = getattr(model, "backbone", model)
    config = plain(at(runner.cfg, "model.backbone")) or {}
    return {**config, "parameters": sum(p.numel() for p in backbone.parameters())}


@dataclass(frozen=True)
class SampleFacts:
    """Source and number of a dataset's samples, as far as they are known.

    Attributes:
        type: Class of the dataset.
        samples: Number of samples.
        kind: Kind of the samples, such as ``video`` or ``image``.
        name: Name of a published set.
        split: Split of the set.
        data_root: Folder of the files.
        ann_file: List of the files.
        num_classes: Number of different labels.
        classes: Names of the classes.
        films: Number of films, for AVA.
        ann_sha256: SHA-256 of the list.
    """

    type: str = ""
    samples: int | None = None
    kind: str | None = None
    name: str | None = None
    split: str | None = None
    data_root: str | None = None
    ann_file: str | None = None
    num_classes: int | None = None
    classes: list[str] | None = None
    films: int | None = None
    ann_sha256: str | None = None

    def row(self) -> dict[str, object]:
        """Return the known facts as JSON data."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def describe_samples(dataset: Any) -> SampleFacts:
    """Describe the samples of a dataset by the attributes that it has."""
    names = ("kind", "name", "split", "data_root", "ann_file")
    stated = {name: getattr(dataset, name, None) for name in names}
    labels = np.asarray(getattr(dataset, "labels", ()))
    labels = labels[labels >= 0]
    classes = at(getattr(dataset, "metainfo", None), "classes")
    return SampleFacts(
        type=type(dataset).__name__,
        samples=len(dataset),
        num_classes=len(np.unique(labels)) if len(labels) else None,
        classes=[str(name) for name in classes] if classes else None,
        films=getattr(dataset, "num_films", None),
        **{name: None if value is None else str(value) for name, value in stated.items()},
    )


def record_selection(runner: Runner, filename: str) -> dict[str, object] | None:
    """Return the metric, value and validation list by which ``save_best`` chose a checkpoint.

    Return None unless ``filename`` is ``best_<metric>_epoch_<N>.pth``. The best value so far is
    read from the runner's message hub.
    """
    if not filename.startswith(BEST):
        return None
    data = describe_samples(runner.val_dataloader.dataset)
    found = {
        "metric": filename.removeprefix(BEST).rpartition("_epoch_")[0],
        "value": float(runner.message_hub.get_info("best_score", float("nan"))),
        "data_root": data.data_root or "",
        "split": data.split,
        "ann_file": data.ann_file,
        "ann_sha256": None if data.ann_file is None else file_sha256(data.ann_file),
    }
    return {name: value for name, value in found.items() if value is not None}


def selected_on(selected: Mapping[str, object], data: Mapping[str, object]) -> bool:
    """Return whether a checkpoint was selected on the data that it is tested on.

    Args:
        selected: Record of :func:`record_selection`.
        data: Description of the test set. The sets are compared by their ``ann_sha256`` or, without
            a list, by ``data_root`` and ``split``.
    """
    keys = ("ann_sha256",) if selected.get("ann_sha256") else ("data_root", "split")
    return all(selected.get(key) == data.get(key) for key in keys)
