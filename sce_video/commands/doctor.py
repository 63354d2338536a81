"""``sce-video doctor``."""

from __future__ import annotations

from sce_video.options.prepare import DoctorOptions
from sce_video.utils.command import command, printable_lines


@command(options=DoctorOptions)
def main(options: DoctorOptions) -> int:
    """Print all findings, and return 1 if one of them is a failure, else 0."""
    from sce_video.runs.doctor import doctor

    if not options.report:
        found = doctor(options, lambda finding: print(printable_lines(finding.line()), flush=True))
        return int(found.failures > 0)
    findings = doctor(options).findings
    from sce_video.runs.machine_checks import report_lines

    print(printable_lines("\n".join(report_lines(findings))))
    return 0
