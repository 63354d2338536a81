"""Published facts that a result is checked against: data set sizes, networks, methods, epochs."""

from __future__ import annotations

from sce_video.published.sets import (
    BATCHES,
    CLASS_LISTS,
    EPOCHS,
    IMAGE_METHODS,
    IMAGE_NETWORKS,
    IMAGE_TEST_SETS,
    IMAGE_TRAINING_SETS,
    METHODS,
    PRETRAINING_EPOCHS,
    PRETRAINING_SETS,
    TEST_SETS,
    TRAINING_SETS,
    VIDEO_NETWORKS,
    WITH_SPLITS,
    PublishedSize,
    class_list_problem,
    image_batch,
    image_epochs,
    image_settings,
    linear_rate,
    linear_schedule,
)

#: Type, depth and number of parameters of every network of the paper.
NETWORKS = {**VIDEO_NETWORKS, **IMAGE_NETWORKS}

__all__ = [
    "BATCHES",
    "CLASS_LISTS",
    "EPOCHS",
    "IMAGE_METHODS",
    "IMAGE_NETWORKS",
    "IMAGE_TEST_SETS",
    "IMAGE_TRAINING_SETS",
    "METHODS",
    "NETWORKS",
    "PRETRAINING_EPOCHS",
    "PRETRAINING_SETS",
    "TEST_SETS",
    "TRAINING_SETS",
    "VIDEO_NETWORKS",
    "WITH_SPLITS",
    "PublishedSize",
    "class_list_problem",
    "image_batch",
    "image_epochs",
    "image_settings",
    "linear_rate",
    "linear_schedule",
]
