"""``sce-video verify``."""

from __future__ import annotations

from sce_video.options.prepare import VerifyOptions
from sce_video.utils.command import RESUMABLE, command


@command(options=VerifyOptions, interrupted=RESUMABLE)
def main(options: VerifyOptions) -> int:
    """Verify the files, and return 1 if there are problems, else 0."""
    from sce_video.data_tools.verify import describe_problems, verify

    result = verify(options)
    print(describe_problems(result.problems, result.files))
    print(f"table: {result.table}")
    return 1 if result.problems else 0
