"""Checks of ``sce-video doctor``, each of which reports one property and how to repair it.

Every check is a function of plain values, so a test can provoke each finding. :func:`examine` reads
the values of this machine.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np
import torch
from packaging.requirements import Requirement
from packaging.version import Version

from sce_video.datasets.loading.batches import shared_memory_needed
from sce_video.datasets.readers import backend_importable
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.sources import is_table, list_videos, listed_extensions, open_video
from sce_video.datasets.tables.table import is_remote
from sce_video.dependencies import dependency_problems, installed_version
from sce_video.find.store import IndexStore
from sce_video.options.prepare import DoctorOptions
from sce_video.options.training import PretrainOptions
from sce_video.registry import READERS
from sce_video.runs.choices import MANY_REPEATS
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.plan_pretraining import plan_pretraining
from sce_video.runs.planned_training import PlannedTraining
from sce_video.utils.cores import usable_cores
from sce_video.version import __version__

# Severity levels of a finding
OK = "ok"
WARNING = "warning"
FAILURE = "failure"
_GIB = 2**30
#: Seconds spent on timing each decoder
_SECONDS_PER_BACKEND = 5.0


@dataclass(frozen=True)
class _Amount:
    """Amount of a resource that a training run needs.

    Attributes:
        least: Amount below which training fails.
        enough: Amount below which training may fail.
        unit: Unit of both amounts.
        advice: How to get more of the resource.
    """

    least: float
    enough: float
    unit: str
    advice: str


#: Number of loader workers per GPU in the recipes for Kinetics and ImageNet
_WORKERS = 12
#: Bytes per batch in these recipes (64 videos, 2 views, 8 frames of 224 x 224 pixels, 3 colours)
_BATCH = 64 * 2 * 8 * 224 * 224 * 3
#: Required and recommended amounts, by resource
_AMOUNTS = {
    # Loader workers pass batches through shared memory, so several GPUs need more of it.
    "shared memory": _Amount(
        1,
        8,
        "GiB free",
        "docker run --ipc=host, or --shm-size={needed}; or --workers 0 (no loader workers)",
    ),
    # Loader workers, sockets and log files of a training run need a few hundred open files.
    "open files": _Amount(256, 4096, "allowed", "ulimit -n 65536"),
    "disk": _Amount(1, 10, "GiB free", "free some space, or give another folder with --out"),
}


@dataclass(frozen=True)
class Finding:
    """Result of checking one property.

    Attributes:
        level: ``ok``, ``warning`` (training is slow or may fail later) or ``failure`` (training
            will fail).
        what: Description of what was found.
        advice: How to solve the problem; empty without a problem.
    """

    level: str
    what: str
    advice: str = ""

    @property
    def will_fail(self) -> bool:
        """Whether training will fail."""
        return self.level == FAILURE

    def line(self) -> str:
        """Format the finding for the terminal."""
        mark = {OK: "ok     ", WARNING: "warning", FAILURE: "FAILURE"}[self.level]
        return f"{mark}  {self.what}" + (f"\n         -> {self.advice}" if self.advice else "")


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Check the version of Python."""
    what, old = f"Python {version[0]}.{version[1]}", version < (3, 11)
    return Finding(FAILURE, what, "install Python 3.11 or later") if old else Finding(OK, what)


def check_packages(problems: list[str] | None = None) -> Iterator[Finding]:
    """Check torch and OpenMMLab with :func:`~sce_video.dependencies.dependency_problems`."""
    found = dependency_problems() if problems is None else problems
    for problem in found:
        what, _, advice = problem.partition(". Run ")
        yield Finding(FAILURE, what, advice)
    if not found:
        names = ("torch", "mmengine", "mmcv-lite", "mmaction2")
        versions = [f"{name} {installed_version(name) or 'not installed'}" for name in names]
        yield Finding(OK, ", ".join(versions))


def check_cudnn(version: Version | None, cudnn: int | None) -> Finding | None:
    """Check for cuDNN before 9.15, with which torch 2.9 has slow or wrong bf16 3-D convolutions."""
    if cudnn is None or version is None:
        return None
    what = f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}"
    if (version.major, version.minor) == (2, 9) and cudnn < 91500:
        return Finding(FAILURE, f"{what} with torch {version}", "pip install 'torch>=2.10'")
    return Finding(OK, what)


def _decoders(installed: bool) -> list[str]:
    """List the registered readers of video files. Readers of frame folders need no library."""
    found = [name for name, kind in READERS.module_dict.items() if kind.library or name == "av"]
    return [name for name in found if not installed or backend_importable(name)]


def check_nccl(gpus: int, available: bool) -> Finding | None:
    """Check NCCL, with which several GPUs exchange gradients. Return None without a problem."""
    if gpus == 0 or available:
        return None
    advice = "install torch's CUDA build for Linux, which contains NCCL; one GPU works without it"
    what = f"this torch has no NCCL, but there are {gpus} GPUs"
    return Finding(FAILURE if gpus > 1 else WARNING, what, advice)


def check_decoders() -> Iterator[Finding]:
    """Check all registered decoders. PyAV is required. Other decoders are faster for some files."""
    for name in _decoders(installed=False):
        reader = READERS.module_dict[name]
        if name == "av":
            codec = ".".join(map(str, av.library_versions["libavcodec"]))
            what = f"PyAV {av.__version__}, FFmpeg {av.ffmpeg_version_info}, libavcodec {codec}"
        elif backend_importable(name):
            # Find the FFmpeg version if the wheel contains FFmpeg.
            files = importlib.metadata.files(reader.library) or ()
            found = (re.match(r"libavcodec\S*\.so\.(\d+)", file.name) for file in files)
            codec = next((f", libavcodec {match[1]}" for match in found if match), "")
            what = f"{reader.library} {installed_version(reader.library)}{codec}"
        else:
            hint = reader.import_hint
            what = "not installed, and not needed" + f" ({hint})" * bool(hint)
        yield Finding(OK, f"decoder {name}: {what}")


def check_gpu(names: list[str], built_for_cuda: bool, device_files: bool) -> Finding:
    """Compare the GPUs that torch can use with the device files of the system."""
    if names:
        return Finding(OK, f"GPU: {', '.join(names)}")
    if not device_files:
        advice = "train only small networks. sce-video pretrain chooses one that fits"
        return Finding(WARNING, "no GPU", advice)
    if not built_for_cuda:
        advice = "install the CUDA build of torch (see pytorch.org, 'Start locally')"
        return Finding(FAILURE, "there is an NVIDIA GPU, but this torch is a CPU build", advice)
    advice = "nvidia-smi must list it, with a driver as new as torch's CUDA"
    return Finding(FAILURE, "there is an NVIDIA GPU that torch cannot use", advice)


def check_cores(usable: int, of_machine: int, gpus: int) -> Finding:
    """Check whether this process may use enough cores for the recipes' loader workers.

    Args:
        usable: Number of cores that affinity and control group allow.
        of_machine: Number of cores of the machine.
        gpus: Number of GPUs.
    """
    what = f"cores: {usable}"
    if usable < of_machine:
        what += f" of {of_machine}, limited by the affinity or control group of this process"
    wanted = (_WORKERS + 1) * gpus
    if usable >= wanted:
        return Finding(OK, what)
    return Finding(
        WARNING,
        f"{what}, but {gpus} GPUs use {wanted}, because the recipes for Kinetics have a training "
        f"process and {_WORKERS} loader workers per GPU. At most {max(1, usable // gpus)} loader "
        "workers per GPU are possible",
        "request more cores (Slurm: --cpus-per-task; CPUS_PER_TASK in tools/slurm_train.sh counts "
        "per GPU), or use sce-video repack, after which an eighth of the cores suffices",
    )


def check_amount(name: str, amount: float, of: str = "", gpus: int = 1) -> Finding:
    """Check free shared memory, free disk space, or the limit of open files.

    Args:
        name: ``shared memory``, ``disk`` or ``open files``.
        amount: Number of bytes or files.
        of: Words after the name.
        gpus: Number of GPUs, all of which training may use.
    """
    needed = _AMOUNTS[name]
    if name == "shared memory":
        text = shared_memory_needed(_BATCH, _WORKERS * max(1, gpus))
        enough, advice = float(text.removesuffix("g")), needed.advice.format(needed=text)
        needed = replace(needed, enough=max(needed.enough, enough), advice=advice)
    value, shown = amount, f"{amount:.0f}"
    if needed.unit != "allowed":
        value = amount / _GIB
        shown = f"{value:.1f}"
    level = FAILURE if value < needed.least else WARNING if value < needed.enough else OK
    advice = "" if level == OK else needed.advice
    return Finding(level, f"{name}{of}: {shown} {needed.unit}", advice)


def check_video_files(facts: FolderFacts) -> Iterator[Finding]:
    """Check whether the videos in a folder or table can be read, also from random positions."""
    yield Finding(OK, facts.describe())
    folder = facts.folder
    advice, copy = f"sce-video verify {folder} lists all such files", f"repack {folder} REPACKED"
    if is_table(folder):
        advice = f"import its file again: sce-video import FILES {folder}"
        copy = f"repack FILES REPACKED, then sce-video import REPACKED {folder}"
    for path, reason in facts.unreadable:
        yield Finding(WARNING, f"{path}: {reason}", advice)
    if facts.key_distance > 60 and facts.short_side > 128:
        yield Finding(
            WARNING,
            f"key frames are {facts.key_distance:.0f} frames apart, so decoding a random clip "
            f"also decodes about {facts.key_distance / 2:.0f} frames before it",
            f"sce-video {copy}",
        )
    if facts.repeats > MANY_REPEATS:
        yield Finding(
            WARNING,
            f"{100 * facts.repeats:.0f} % of adjacent frames are equal, because the frame rate "
            "was raised or nothing moves. sce-video pretrain uses the next frame that differs",
            "use videos with their original frame rate, or RandomClips.diff_prob=0 for scenes "
            "without motion",
        )
    if facts.short_side > 480:
        what = f"frames of {facts.width} x {facts.height} are decoded to be shrunk to 224 or less"
        smaller = copy.replace("REPACKED", "REPACKED --short-side 320", 1)
        yield Finding(WARNING, what, f"sce-video {smaller}")


def decode_rates(
    folder: str, num_frames: int, duration: float, extensions: Sequence[str] | None = None
) -> dict[str, float]:
    """Measure clips per second and core for every installed decoder on files in a folder.

    Table rows are decoded only by ``av``. For a table in an object store, the result is empty,
    because reading single rows would measure the network latency.
    """
    if is_remote(folder):
        return {}
    listed, rates = list_videos(folder, extensions), {}
    for name in ["av"] if is_table(folder) else _decoders(installed=True):
        count, start = 0, time.perf_counter()
        for index in range(len(listed)):
            try:
                reader = open_video(os.path.join(folder, listed.path(index)), name)
            except VideoDecodeError:
                continue
            # Decode a clip from the middle, because videos often begin with a title or black
            # frames.
            wanted = int(min(1.0, duration / max(reader.duration, 1e-6)) * len(reader.timestamps))
            first = (len(reader.timestamps) - wanted) // 2
            with reader:
                reader.read(np.unique(first + np.arange(num_frames) * wanted // num_frames))
            count += 1
            if time.perf_counter() - start > _SECONDS_PER_BACKEND:
                break
        rates[name] = count / (time.perf_counter() - start)
    return rates


def check_loading(planned: PlannedTraining) -> Finding:
    """Check whether the cores can feed the device, with the settings that pretraining chooses."""
    timing, cores = planned.timing, planned.machine.cores
    # Number of workers that together load a batch in the time of one training step
    needed = max(1, math.ceil(timing.loading(workers=1)))
    what = (
        f"a step of {timing.batch} videos takes {1000 * timing.step:.0f} ms, and the views of a "
        f"video take {1000 * timing.sample:.0f} ms on a core, so {needed} loader workers can feed "
        "the device"
    )
    if timing.on_gpu and needed > cores:
        return Finding(
            WARNING,
            f"{what}, and there are {cores} cores",
            f"sce-video repack {planned.facts.folder} REPACKED, or a larger network",
        )
    return Finding(OK, what)


def examine(options: DoctorOptions, store: IndexStore | None = None) -> Iterator[Finding]:
    """Examine this machine, and yield each finding as soon as it is made.

    The findings of a report name no files and folders.

    Args:
        options: Options of the command.
        store: Search index whose files are checked; None for no index.

    Raises:
        ValueError: If the folder contains no video, only one, or none that can be read.
        TableError: If the table cannot be read.
    """
    folder, videos, named = Path(options.out), options.videos, not options.report
    yield check_python()
    yield from check_packages()
    yield from check_decoders()
    names = [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]
    yield check_gpu(names, torch.version.cuda is not None, Path("/dev/nvidia0").exists())
    cudnn = check_cudnn(installed_version("torch"), torch.backends.cudnn.version())
    nccl = check_nccl(len(names), torch.distributed.is_nccl_available())
    yield from filter(None, (nccl, cudnn))
    yield check_cores(usable_cores(), os.cpu_count() or 1, len(names))
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir():  # macOS has none
        yield check_amount("shared memory", shutil.disk_usage(shared_memory).free, gpus=len(names))
    yield check_amount("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # The runs folder may not exist yet. Check the disk of its nearest existing parent.
    existing = next(path for path in (folder, *folder.resolve().parents) if path.is_dir())
    yield check_amount("disk", shutil.disk_usage(existing).free, f" of {folder}" if named else "")
    if videos is not None:
        yield from _check_videos(videos, options)
    if store is not None:
        yield check_index_files(store, named)


def _check_videos(videos: str, options: DoctorOptions) -> Iterator[Finding]:
    """Check a folder or table of videos, and time decoders and a few training steps with it."""
    facts = examine_folder(videos, extensions=listed_extensions(options.all_files))
    if options.report:
        reasons = [why.replace(path, "FILE") for path, why in facts.unreadable]
        unreadable = tuple(("FILE", reason) for reason in reasons)
        facts = replace(facts, folder="VIDEOS", unreadable=unreadable)
    yield from check_video_files(facts)
    try:
        facts.check_readable()
    except ValueError as error:
        yield Finding(FAILURE, str(error))
        return
    for name, rate in decode_rates(videos, 8, 2.56, facts.extensions).items():
        yield Finding(OK, f"decoder {name}: {rate:.0f} clips of 8 frames a second and core")
    # The check times the network that pretrain would choose for these videos.
    usual = PretrainOptions(videos=videos, out=options.out, all_files=options.all_files)
    yield check_loading(replace(plan_pretraining(usual, time.monotonic()), facts=facts))


def check_index_files(store: IndexStore, named: bool = True) -> Finding:
    """Compare all files of a search index with their checksums.

    Files are named only with ``named``.
    """
    damaged = store.check()
    if not damaged:
        return Finding(OK, "search index: all files are intact")
    shown = "; ".join(damaged) if named else f"{len(damaged)} damaged files"
    advice = "restore them from a copy, or build the index again: sce-video index --rebuild"
    return Finding(FAILURE, f"search index: {shown}", advice)


def report_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield findings as Markdown for an issue, with the versions of all packages.

    The report names no file, folder, host or user if the findings name none.
    """
    system = (platform.system(), platform.release(), platform.machine(), *platform.libc_ver())
    yield f"sce_video {__version__}, {' '.join(system)}, {os.cpu_count()} cores\n\n```text"
    for finding in findings:
        yield finding.line()
    yield "```\n\n<details><summary>packages</summary>\n\n```text"
    required = importlib.metadata.requires("sce-video") if installed_version("sce-video") else ()
    for name in sorted({Requirement(text).name for text in required or ()}, key=str.lower):
        if version := installed_version(name):
            yield f"{name}=={version}"
    yield "```\n\n</details>"
