"""Lists of the eleven sets of many-shot transfer, from their official downloads.

``text_lists``, ``matlab_lists``, ``voc2007`` and ``cifar`` read the official files; ``prepare``
compares them with the disk and the published counts, and writes the lists. The command is
sce-video prepare.
"""

from sce_video.data_tools.transfer.prepare import (
    TRANSFER_SETS,
    TransferSet,
    prepare_transfer_set,
)

__all__ = ["TRANSFER_SETS", "TransferSet", "prepare_transfer_set"]
