"""Make annotation lists from the official downloads of video and image data sets.

``ucf101``, ``hmdb51``, ``kinetics``, ``ssv2``, ``diving48``, ``finegym``, ``ntu60``,
``epic_kitchens``, ``tiny_imagenet`` and ``imagenet`` read the official files and locate the videos
or images; ``prepare`` compares them with the disk and the published counts, and writes the lists.
``ava`` does the same for AVA, whose lists hold key frames with boxes. The command is
``sce-video prepare NAME ROOT``.
"""

from sce_video.data_tools.preparation.hmdb51 import locate_hmdb51, read_hmdb51
from sce_video.data_tools.preparation.imagenet import (
    IMAGENET100_CLASSES,
    locate_imagenet,
    read_imagenet,
)
from sce_video.data_tools.preparation.kinetics import (
    K200_CLASSES,
    add_k200,
    locate_kinetics,
    read_class_list,
    read_kinetics400,
)
from sce_video.data_tools.preparation.official import ClassMap, Entry, Located, OfficialLists, Split
from sce_video.data_tools.preparation.prepare import Options, prepare
from sce_video.data_tools.preparation.ssv2 import locate_ssv2, read_ssv2
from sce_video.data_tools.preparation.tiny_imagenet import (
    locate_tiny_imagenet,
    read_tiny_imagenet,
)
from sce_video.data_tools.preparation.ucf101 import locate_ucf101, read_ucf101

__all__ = [
    "IMAGENET100_CLASSES",
    "K200_CLASSES",
    "ClassMap",
    "Entry",
    "Located",
    "OfficialLists",
    "Options",
    "Split",
    "add_k200",
    "locate_hmdb51",
    "locate_imagenet",
    "locate_kinetics",
    "locate_ssv2",
    "locate_tiny_imagenet",
    "locate_ucf101",
    "prepare",
    "read_class_list",
    "read_hmdb51",
    "read_imagenet",
    "read_kinetics400",
    "read_ssv2",
    "read_tiny_imagenet",
    "read_ucf101",
]
