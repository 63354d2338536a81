"""The command of sce_video/commands/sweep.py; see --help."""

import sys

from sce_video.commands.sweep import main

if __name__ == "__main__":
    sys.exit(main())
