"""Teacher of a distillation during training: features that are computed once, or its network.

:mod:`sce_video.runs.plan_distillation` chooses the teacher and its settings.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets.loading.batches import collate_views
from sce_video.datasets.sources import video_sha256, video_state
from sce_video.datasets.video_dataset import SampleRequest
from sce_video.datasets.video_list import video_of
from sce_video.engine.checkpoint import file_sha256
from sce_video.engine.runner import RANDOM
from sce_video.evaluation.rows import evaluating
from sce_video.inference.clip_features import NetworkPerClip, clip_network
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.encoders.frame_networks import frame_pools_of
from sce_video.inference.features import Features, join_features, read_features, write_features
from sce_video.inference.model import VideoModel, build_model, checkpoint_of, load_model
from sce_video.inference.network_input import ViewOptions
from sce_video.models.algorithms.distill import TeacherClip
from sce_video.models.backbones.frame_pools import frame_features
from sce_video.options.training import OBJECTIVES
from sce_video.registry import DATASETS
from sce_video.runs.start_weights import sees_single_frames
from sce_video.utils.command import Progress
from sce_video.utils.cores import usable_cores
from sce_video.utils.distributed import run_on_main_rank, unwrap_model
from sce_video.utils.files import content_sha256
from sce_video.utils.records import at
from sce_video.utils.run_files import (
    MODEL_CONFIG,
    TEACHER_FEATURES,
    find_checkpoints,
    is_model,
    packaged_network,
)
from sce_video.utils.storage import is_url

#: Number of videos after which rank 0 signals the waiting ranks that it is still working. A
#: collective operation that waited for more than half an hour would end the run.
_VIDEOS_PER_SIGN = 32
#: Origins of stored features that do not suit a run, by the entry of their key that differs
_OTHER_ORIGINS = {
    "sha256": "another teacher",
    "videos": "another list of videos",
    "files": "earlier versions of the videos",
    "clips": "other clips",
    "central_share": "other crops",
    "features": "another pooling of the frames",
    "frame_pool": "another pooling of the frames",
}
#: Ways to resize a frame that keep its aspect ratio, after which it is cropped
_KEEP_ASPECT = ("linear", "bilinear", "bicubic")
#: Largest number of processes that compute features on a GPU, each with a copy of the teacher
_MOST_ON_GPU = 4
#: Largest number of clips from which a student's projector starts
_STARTED = 512


def with_clip(model: VideoModel, clip: StudentClip) -> VideoModel:
    """Return the teacher with the student's clips.

    An image network receives all of the student's frames. Any other network receives its own number
    of frames. If the student always gets central crops, the teacher does, too, even if it usually
    squashes whole frames to a square.
    """
    settings = replace(model.settings, clip_duration=clip.duration)
    if sees_single_frames(settings.backbone):
        settings = replace(settings, num_frames=clip.num_frames)
    if clip.central_share is not None:
        resize = settings.resize
        if resize not in _KEEP_ASPECT:
            resize = "bicubic" if resize.endswith("bicubic") else "bilinear"
        side = round(settings.crop_size / clip.central_share)
        settings = replace(settings, short_side=side, resize=resize)
    return with_frame_pool(replace(model, settings=settings), clip.frame_pool)


def with_frame_pool(model: VideoModel, frame_pool: str | None) -> VideoModel:
    """Return an image network that pools frame features like its student.

    Args:
        model: Teacher.
        frame_pool: Pool of the student; None if it has no such option. The network is returned
            unchanged then, or if the teacher has no such option.
    """
    own = getattr(model.encoder.backbone, "frame_pool", None)
    if frame_pool in (None, own) or not frame_pools_of(model.settings.backbone):
        return model
    backbone = {**model.settings.backbone, "frame_pool": frame_pool}
    return build_model(replace(model.settings, backbone=backbone), model.checkpoint, model.device)


def network_of_clips(model: VideoModel, clip: StudentClip) -> NetworkPerClip:
    """Return a network that computes the teacher's features for the student's fixed clips."""
    return clip_network(with_clip(model, clip), clip.fixed, clip.objective == "frames")


@dataclass(frozen=True)
class StudentClip:
    """Clips and objective of the student of a distillation.

    Attributes:
        duration: Duration of a clip in seconds.
        num_frames: Number of frames in a clip.
        fixed: K, number of fixed clips per video; 0 for random clips.
        objective: Objective of the distillation, one of ``OBJECTIVES``.
        central_share: Share of the short side that a central crop covers; None for random crops.
        frame_pool: How the student pools frame features; None if it has no such option.
    """

    duration: float
    num_frames: int
    fixed: int
    objective: str
    central_share: float | None = None
    frame_pool: str | None = None


def student_clip(cfg: Config) -> StudentClip:
    """Return the student's clips and objective, according to the config of a distillation."""
    steps = cfg.train_dataloader.dataset.pipeline
    step = next((step for step in steps if {"clip_duration", "num_frames"} <= {*step}), None)
    if step is None:
        raise ValueError(
            "a distillation trains on clips, but no step of the pipeline has clip_duration and "
            "num_frames"
        )
    fixed = step.type.rpartition(".")[2] == "OneOfClips"
    clips = step.get("num_clips", 4) if fixed else 0
    objective = at(cfg, "model.objective") or OBJECTIVES[0]
    check_objective(objective, clips)
    sizes = {step.type.rpartition(".")[2]: at(step, "size") for step in steps}
    resized, cropped = at(sizes, "ResizeShortSide"), at(sizes, "CenterCropClips")
    central = cropped / resized if resized and cropped else None
    pool = at(cfg, "model.backbone.frame_pool")
    return StudentClip(step.clip_duration, step.num_frames, clips, objective, central, pool)


def check_objective(objective: Any, clips: Any) -> None:
    """Raise ValueError if an objective is unknown, or the number of clips does not suit it."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if type(clips) is not int or clips < 0:
        raise ValueError(f"teacher-clips must be a whole number of at least 0, got {clips!r}")
    if objective == "tokens" and clips:
        raise ValueError(
            "objective 'tokens' compares positions within a crop, so the teacher must see the "
            f"student's crop. Set --teacher-clips to 0 instead of {clips}"
        )
    if objective == "frames" and not clips:
        raise ValueError(
            "objective 'frames' needs stored features of the teacher. Give --teacher-clips 1 or "
            "more, not 0"
        )


def prepare_teacher(cfg: Config) -> TeacherHook | None:
    """Return the hook that passes the teacher to a ``Distill``; None for another method.

    If ``teacher.npz`` in the folder of the run (or of another seed) contains features of K clips
    per video from the same teacher, files and clips, these features are used. Otherwise rank 0
    computes them while the other ranks wait. Unless the run is resumed, videos that could not be
    read before are tried again. If the teacher itself has been removed, its stored features are
    enough. The function sets ``model.teacher_channels`` and counts the time that it takes towards
    the time budget. All ranks call this before the network is built.

    Raises:
        FileNotFoundError: If neither the teacher nor its features exist.
        ValueError: If no teacher is given, or the stored features are damaged.
    """
    if "teacher_checkpoint" not in cfg:
        return None
    if cfg.teacher_checkpoint is None:
        raise ValueError(
            "a distillation needs a teacher. Run sce-video pretrain --teacher SOURCE, or set "
            "teacher_checkpoint=PATH in the config"
        )
    begun = time.monotonic()
    clip = student_clip(cfg)
    if not clip.fixed:
        if _is_gone(cfg.teacher_checkpoint):
            raise _gone(cfg.teacher_checkpoint)
        model = with_clip(load_model(cfg.teacher_checkpoint), clip)
        cfg.model.teacher_channels = model.feature_size
        return TeacherHook(model)
    features = StoredFeatures(cfg, clip)
    file = run_on_main_rank(features.find)
    if file is None:
        work = features.compute()  # only rank 0 advances it
        while run_on_main_rank(lambda: next(work, None)) is not None:
            pass
        file = features.file
    budget = at(cfg, "default_hooks.budget")
    if budget is not None:
        budget.spent = round(budget.get("spent", 0.0) + time.monotonic() - begun, 2)
    values, failures = features.load(file)
    cfg.model.teacher_channels = values.shape[-1]
    return TeacherHook(features=values, failures=failures)


def _is_gone(teacher: str) -> bool:
    """Return whether a teacher was in a file or folder that does not exist any more."""
    elsewhere = is_url(teacher) or is_model(teacher) or packaged_network(teacher)
    return not elsewhere and not Path(teacher).exists()


def _gone(teacher: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"the teacher {teacher} does not exist. Restore it, or start a new run with --teacher"
    )


def compared_teacher(cfg: Config) -> VideoModel | None:
    """Return a finished distillation's teacher with the student's clips; None without one."""
    if at(cfg, "teacher_checkpoint") is None:
        return None
    return with_clip(load_model(cfg.teacher_checkpoint), student_clip(cfg))


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def _other_origin(stored: Any, key: dict[str, Any]) -> str:
    """Return where stored features come from, given their key and the key of the wanted ones."""
    known = stored if isinstance(stored, dict) else key
    differing = {name for name in _OTHER_ORIGINS if known.get(name) != key.get(name)}
    if "videos" in differing:  # other paths are other files
        differing.discard("files")
    found = [origin for name, origin in _OTHER_ORIGINS.items() if name in differing]
    return " and ".join(dict.fromkeys(found)) or "an unknown teacher"


class StoredFeatures:
    """Teacher's features of K clips per training video, and the file that contains them.

    Attributes:
        teacher: Checkpoint of the teacher; None if it does not exist any more.
        file: File in the run's folder.
        paths: Paths of the training videos.
        key: Everything on which the features depend. The file also contains the hash of the videos'
            ``content`` and the name of the teacher.
    """

    def __init__(self, cfg: Config, clip: StudentClip) -> None:
        self.name = str(cfg.teacher_checkpoint)
        self.teacher = None if _is_gone(self.name) else checkpoint_of(self.name)
        self.file = Path(cfg.work_dir, TEACHER_FEATURES)
        self.clip, self.clips = clip, clip.fixed
        self.workers = at(cfg, "train_dataloader.num_workers") or 0
        dataset = DATASETS.build({**cfg.train_dataloader.dataset, "pipeline": []})
        self.paths = [dataset.path(index) for index in range(len(dataset))]
        self.key: dict[str, Any] = {
            "sha256": None if self.teacher is None else file_sha256(self.teacher),
            "videos": _digest(self.paths),
            "files": _digest([str(video_state(path)) for path in self.paths]),
            "clips": [clip.duration, clip.num_frames, clip.fixed],
        }
        # An exported network has its clips and crops in a file of their own.
        settings = Path(self.teacher or self.name).with_name(MODEL_CONFIG)
        if self.teacher is not None and settings.is_file():
            self.key["settings"] = content_sha256(settings)
        self._sha256 = cache(video_sha256)
        # A resumed run keeps its samples. For any other run, a missing disk may be back.
        begun = at(cfg, "load_from") or find_checkpoints(cfg.work_dir)
        self._retries = self.teacher is not None and not (at(cfg, "resume") and begun)
        #: Features of some videos, of which the others could not be read
        self._some: Features | None = None
        if clip.central_share is not None:
            self.key["central_share"] = clip.central_share
        if clip.objective == "frames":
            self.key["features"] = "frames"
        elif clip.frame_pool is not None:
            self.key["frame_pool"] = clip.frame_pool

    def find(self) -> Path | None:
        """Find a file with these features in the folder of this run or of another seed's run.

        If there are only features of another origin, a warning states what differs.

        Raises:
            FileNotFoundError: If there is neither a file nor the teacher.
        """
        others = self.file.parent.parent.glob(f"seed*/{TEACHER_FEATURES}")
        seeds = sorted(others) if self.file.parent.name.startswith("seed") else []
        warning = None
        for file in (self.file, *seeds):
            if not file.is_file():
                continue
            found = self._read(file)
            stored = at(found.provenance, "teacher")
            if not self._suits(stored):
                warning = warning or (
                    f"the features in {file} come from {_other_origin(stored, self.key)}, so they "
                    "are computed again"
                )
            elif found.failures and self._retries and file == self.file:
                self._some = found  # another seed's samples stay as they are
            else:
                return file
        if self.teacher is None:
            raise _gone(self.name)
        if warning is not None and self._some is None:
            print_log(warning, logger="current", level=logging.WARNING)
        return None

    def _suits(self, stored: Any) -> bool:
        """Return whether stored features have the wanted origin, given their key.

        All files are read only if nothing but their state differs, as after copying a dataset. A
        teacher that does not exist any more is recognised by its name.
        """
        if not isinstance(stored, dict):
            return False
        content = stored.get("content")
        known = {name: stored[name] for name in stored if name not in ("content", "name")}
        if self.teacher is None:
            if stored.get("name") != self.name:
                return False
            known["sha256"] = None
            known.pop("settings", None)
        if known == self.key:
            return True
        if content is None or {**known, "files": self.key["files"]} != self.key:
            return False
        return bool(content == _digest(list(map(self._content_of, self.paths))))

    def _content_of(self, path: str) -> str:
        """Return the hash of a video's file, of which the list may contain many segments."""
        return str(self._sha256(video_of(path)))

    def _read(self, file: Path) -> Features:
        """Read the features in a file; raise ValueError if it is damaged."""
        # Do not recompute silently, because the file may hold hours of work and be repairable.
        try:
            return read_features(file)
        except ValueError as error:
            raise ValueError(f"{error}. Remove the file, and it is computed again") from None

    def compute(self) -> Iterator[int]:
        """Compute and write the features, and yield the number of finished videos at times.

        If :meth:`find` has found features of some of the videos, only the others are computed.
        """
        assert self.teacher is not None
        model = network_of_clips(load_model(self.teacher), self.clip)
        workers = min(self.workers, _MOST_ON_GPU)
        if self.workers and model.device.type == "cpu":  # training has not begun, so cores are free
            workers = usable_cores()
        options = ViewOptions(num_clips=self.clips, num_workers=workers)
        parts: list[Features] = []
        contents: list[str] = []
        left: Sequence[int] = range(len(self.paths))
        if self._some is not None:
            parts.append(replace(self._some, failures=[]))
            assert self._some.indices is not None  # some rows are missing
            left = np.setdiff1d(left, self._some.indices).tolist()
        progress = Progress(len(left), "features of the teacher:", unit="videos")
        paths = [self.paths[index] for index in left]
        for index, part in zip(left, iterate_features(model, paths, options), strict=True):
            parts.append(replace(part, indices=np.full(len(part), index)))
            contents.append(self._content_of(self.paths[index]))  # the file is in the page cache
            progress.advance(bool(part.failures))
            if len(contents) % _VIDEOS_PER_SIGN == 0:
                yield len(contents)
        progress.finish()
        content = _digest(contents)
        if self._some is not None:
            content = self._some.provenance["teacher"].get("content")
        provenance = {
            "teacher": {**self.key, "content": content, "name": self.name},
            "num_views": self.clips,
        }
        if model.positions:
            provenance["positions"] = model.positions
        found = join_features(parts, model.row_size, provenance)
        if not len(found):
            path, reason = found.failures[0]
            raise ValueError(
                f"the teacher cannot read any of {len(found.failures)} videos. The first is "
                f"{path}: {reason}"
            )
        if model.positions:
            found = replace(found, values=_compact(found.values))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_features(self.file, found)

    def load(self, file: Path) -> tuple[Tensor, list[tuple[str, str]]]:
        """Return the features of all listed videos, and why some videos have none.

        Returns:
            Features (videos, K, D), or (videos, K, T, D) for "frames", with zeros for unreadable
            videos, and path and reason for each unreadable video.
        """
        found, count = self._read(file), len(self.paths)
        frames = self.clip.objective == "frames"
        shape = (self.clips, found.provenance.get("positions", 1)) if frames else (self.clips,)
        size, left = divmod(found.values.shape[1], math.prod(shape))
        indices = np.arange(len(found)) if found.indices is None else found.indices
        if left or not len(found) or len(np.unique(indices)) < len(found):
            raise ValueError(f"{file} has no features of {self.clips} clips for each video")
        if indices.min() < 0 or indices.max() >= count:
            raise ValueError(f"{file} has features of video {indices.max()} of {count}")
        values = stored = torch.from_numpy(_compact(found.values) if frames else found.values)
        if not np.array_equal(indices, np.arange(count)):
            values = torch.zeros(count, found.values.shape[1], dtype=values.dtype)
            values[torch.from_numpy(indices)] = stored
        return values.view(count, *shape, size), found.failures


def _compact(values: np.ndarray) -> np.ndarray:
    """Convert features to half precision, unless a value is too large for it.

    There are T times as many features of frames as of clips, and they stay in memory in training.
    """
    fits = np.abs(values).max(initial=0) < np.finfo(np.float16).max
    return values.astype(np.float16) if fits else values


class TeacherHook(Hook):
    """Hook that passes a network or stored features to a ``Distill`` before the first step.

    Videos whose clips the teacher could not read are marked as bad files. A linear projector of a
    pretrained student starts from a regression of these features
    (:meth:`~sce_video.models.Distill.start_linearly`).
    """

    def __init__(
        self,
        model: VideoModel | None = None,
        features: Tensor | None = None,
        failures: list[tuple[str, str]] | None = None,
    ) -> None:
        self._model, self._features, self._failures = model, features, failures or []

    def before_train(self, runner) -> None:
        give_teacher(unwrap_model(runner.model), self._model, self._features)
        for path, reason in self._failures:
            runner.train_dataloader.dataset.mark_bad(path, reason)
        projector: Any = getattr(unwrap_model(runner.model), "projector", None)
        if runner.iter == 0 and _starts_linearly(runner, projector):
            run_on_main_rank(lambda: _start_linearly(runner))
            for value in projector.state_dict().values():
                broadcast(value)


def _starts_linearly(runner: Runner, projector: Any) -> bool:
    """Return whether the projector is a linear layer behind a network that is already trained."""
    kinds = [type(layer) for layer in getattr(projector, "layers", ())]
    trained = at(runner.cfg, "pretrained") not in (None, RANDOM)
    frames = at(runner.cfg, "model.objective") == "frames"
    return frames and trained and kinds == [nn.Linear, nn.BatchNorm1d]


def _start_linearly(runner: Runner) -> None:
    """Start the projector from the features of some training clips."""
    dataset: Any = runner.train_dataloader.dataset
    chosen = np.linspace(0, len(dataset) - 1, min(_STARTED, len(dataset))).astype(int)
    loader = DataLoader(
        dataset,
        batch_size=runner.train_dataloader.batch_size,
        sampler=[SampleRequest(int(index), int(index)) for index in chosen],
        collate_fn=collate_views,
    )
    positions, taught = [], []
    with evaluating(runner.model) as student:
        for batch in loader:
            if not batch["inputs"]:  # none of its videos could be read
                continue
            data = student.data_preprocessor(batch)
            view, samples = data["inputs"][0], data["data_samples"]
            positions.append(frame_features(student.backbone, view))
            taught.append(student.teach(view, samples))
        explained = student.start_linearly(torch.cat(positions), torch.cat(taught))
    runner.logger.info(
        f"the projector starts from a linear regression on {sum(map(len, taught))} clips. It "
        f"explains {100 * max(0.0, explained):.0f} % of the variance of the teacher's features"
    )


def give_teacher(
    student: Any, model: VideoModel | None = None, features: Tensor | None = None
) -> None:
    """Pass a network with the clip that it needs, or features on its device, to a ``Distill``."""
    if features is not None:
        student.set_teacher(features=features.to(next(student.parameters()).device))
    elif model is not None:
        clip = TeacherClip(model.settings.num_frames, model.settings.crop_size)
        student.set_teacher(model.encoder, clip=clip)
