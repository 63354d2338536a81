"""``sce-video verify``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.prepare import VerifyOptions
from sce_video.utils.command import RESUMABLE, command


@command(interrupted=RESUMABLE)
def main(argv: Sequence[str] | None = None) -> int:
    """Verify the files and return the exit status, 1 if there are problems."""
    options = parse(VerifyOptions, argv)
    # Imported here, so that a wrong command line is reported before the readers load.
    from sce_video.data_tools.verify import describe_problems, verify

    result = verify(options)
    print(describe_problems(result.problems, result.files))
    print(f"table: {result.table}")
    return 1 if result.problems else 0
