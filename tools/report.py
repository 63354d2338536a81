"""The command of sce_video/commands/report.py; see --help."""

import sys

from sce_video.commands.report import main

if __name__ == "__main__":
    sys.exit(main())
