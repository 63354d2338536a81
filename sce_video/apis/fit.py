"""Settings of a recipe that follow the size of the user's data set."""

from __future__ import annotations

from mmengine.config import Config
from mmengine.dist import get_world_size

from sce_video.registry import DATASETS


def fit_queue(cfg: Config) -> str | None:
    """Shorten the queue of keys to the data set, in place, if ``cfg.fit_queue`` is true.

    A key is a negative for every clip of its own video but the one beside it in the batch. A queue
    longer than the data set holds a key of every video, most of them several, and on small data
    sets the loss then stays near chance level and the representation does not get better than a
    random one (docs/results.md).

    Args:
        cfg: Config of a training; with several processes each calls this.

    Returns:
        What was changed, for the log; None if nothing was.

    Raises:
        ValueError: the data set has no video.
    """
    size = cfg.model.get("queue_size")
    if not cfg.get("fit_queue") or size is None:
        return None
    videos = len(DATASETS.build(cfg.train_dataloader.dataset))
    accumulated = cfg.optim_wrapper.get("accumulative_counts", 1)
    batch = cfg.train_dataloader.batch_size * accumulated * get_world_size()
    fitting = longest_queue(videos, batch)
    if fitting >= size:
        return None
    cfg.model.queue_size = fitting
    return (
        f"model.queue_size={fitting}, not {size}: the data set has {videos} videos, and the queue "
        "should hold fewer keys than that (fit_queue=False keeps it)"
    )


def longest_queue(videos: int, batch: int) -> int:
    """The largest multiple of the global batch below the number of videos.

    Half the number of videos where these are no more than a batch.
    """
    return (videos - 1) // batch * batch or max(1, videos // 2)
