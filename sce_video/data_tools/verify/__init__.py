"""Find the files of a data set that cannot be decoded completely, and what is wrong with them.

:func:`examine_file` decodes one file, :func:`verify_videos` all files of a list, as a batch
job;
:func:`find_problems` compares what was found with the limits and the list, :func:`write_table` and
:func:`summarize` show it. The command is sce-video verify.
"""

from typing import TYPE_CHECKING

from sce_video.utils.imports import lazy_names

if TYPE_CHECKING:
    from sce_video.data_tools.verify.problems import (
        CONTAINERS,
        KINDS,
        Limits,
        Problem,
        examine_file,
        file_problems,
        find_problems,
    )
    from sce_video.data_tools.verify.run import (
        VerifyJob,
        open_records,
        read_videos,
        summarize,
        verify_videos,
        write_table,
    )

__all__ = [
    "CONTAINERS",
    "KINDS",
    "Limits",
    "Problem",
    "VerifyJob",
    "examine_file",
    "file_problems",
    "find_problems",
    "open_records",
    "read_videos",
    "summarize",
    "verify_videos",
    "write_table",
]

__getattr__ = lazy_names(__name__, __file__)
