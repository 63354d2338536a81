"""``sce-video doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.prepare import DoctorOptions
from sce_video.utils.command import command, printable_lines


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print all findings and return 1 if one of them is a failure, 0 with warnings only."""
    options = parse(DoctorOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.doctor import doctor

    if not options.report:
        found = doctor(options, lambda finding: print(printable_lines(finding.line()), flush=True))
        return int(found.failures > 0)
    findings = doctor(options).findings
    from sce_video.runs.machine_checks import report_lines

    print(printable_lines("\n".join(report_lines(findings))))
    return 0
