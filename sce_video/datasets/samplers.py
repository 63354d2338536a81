"""The order and seeds of an epoch's samples. A pass can start in the middle of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
from mmengine.dist import get_dist_info, sync_random_seed
from torch import Tensor
from torch.utils.data import Sampler

from sce_video.datasets.video_dataset import SampleRequest, mix_seed
from sce_video.registry import DATA_SAMPLERS

_BLOCK = 4096
#: Number of batches that a worker reads ahead from object storage. Reading takes longer than
#: decoding there.
_BATCHES_AHEAD = 2


class FollowedRequest(SampleRequest):
    """A request that also contains a later request, which the same worker gets two batches later.

    It equals a plain request with the same index and seed.
    """

    following: SampleRequest | None = None


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Variant of mmengine's ``DefaultSampler`` with a seed per sample and a start within the epoch.

    All ranks draw the same order, and rank r uses the samples at positions r, r + world size, and
    so on. The batches of size B of W ranks therefore contain the same samples, with the same seeds,
    as a batch of size B * W of one process.

    Args:
        dataset: Anything with a length.
        shuffle: Whether to draw a new order in every epoch. Otherwise, the order of the dataset is
            used.
        seed: Base seed, the same on all ranks. None draws one and broadcasts it.
        round_up: Whether to repeat the first samples so that all ranks have the same number.
        min_samples: Minimum number of samples in an epoch of all ranks together. A smaller dataset
            is used several times, each time in a new order and with new seeds.

    Raises:
        ValueError: If the dataset is empty, or ``min_samples`` is below 0.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        round_up: bool = True,
        min_samples: int = 0,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("ResumableSampler: the dataset is empty")
        if min_samples < 0:
            raise ValueError(
                f"ResumableSampler: min_samples must not be negative, got {min_samples}"
            )
        self.rank, self.world_size = get_dist_info()
        self.dataset, self.shuffle, self.round_up = dataset, shuffle, round_up
        self.seed = int(sync_random_seed() if seed is None else seed)
        self.distance = 0  # set by announce_batches; 0 announces nothing
        self.epoch = self._start = 0
        self.passes = max(1, math.ceil(min_samples / len(dataset)))
        size = len(dataset) * self.passes
        if round_up:
            self.num_samples = math.ceil(size / self.world_size)
            self.total_size = self.num_samples * self.world_size
        else:
            self.num_samples = math.ceil((size - self.rank) / self.world_size)
            self.total_size = size

    def _order(self) -> Tensor:
        """Return the positions of this rank's samples, int64: ``index + pass * len(dataset)``."""
        size = len(self.dataset)
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(mix_seed(self.seed, self.epoch))
            drawn = [torch.randperm(size, generator=generator) for _ in range(self.passes)]
            order = torch.cat([k * size + one for k, one in enumerate(drawn)])
        else:
            order = torch.arange(size * self.passes)
        if self.total_size > len(order):
            order = order.repeat(math.ceil(self.total_size / len(order)))
        return order[self.rank : self.total_size : self.world_size].clone()  # this rank's samples

    def __iter__(self) -> Iterator[SampleRequest]:
        """Yield this rank's requests, except requests that :meth:`set_start` skips."""
        start, self._start = self._start, 0
        order = self._order()[start:]
        if not self.distance:
            yield from self._requests(order)
            return
        later = self._requests(order[self.distance :])
        for request in self._requests(order):
            followed = FollowedRequest(*request)
            followed.following = next(later, None)
            yield followed

    def _requests(self, order: Tensor) -> Iterator[SampleRequest]:
        seed, epoch, size = self.seed, self.epoch, len(self.dataset)
        blocks = order.split(_BLOCK)  # Python ints take five times as much memory
        positions = (i for block in blocks for i in block.tolist())
        return (SampleRequest(i % size, mix_seed(seed, epoch, i)) for i in positions)

    def announce_batches(self, batch_size: int, num_workers: int) -> None:
        """Add to each request the request that its loader worker gets two batches later."""
        self.distance = _BATCHES_AHEAD * batch_size * max(1, num_workers)  # workers take turns

    def __len__(self) -> int:
        """Return this rank's number of samples in a whole epoch."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order and the seeds of later passes."""
        self.epoch = epoch

    def set_total_size(self, total_size: int) -> None:
        """Set the number of samples per epoch of all ranks, a multiple of the number of ranks.

        The order of an epoch is cut off, or repeated from its start.
        """
        if total_size < self.world_size or total_size % self.world_size:
            raise ValueError(
                f"total_size must be a positive multiple of {self.world_size}, got {total_size}"
            )
        self.total_size, self.num_samples = total_size, total_size // self.world_size

    def set_start(self, num_samples: int) -> None:
        """Skip the first ``num_samples`` samples of this rank, in the *next* pass only."""
        if not 0 <= num_samples <= self.num_samples:
            raise ValueError(
                f"num_samples must be from 0 to {self.num_samples} per rank, got {num_samples}"
            )
        self._start = num_samples
