"""The command of sce_video/commands/verify.py; see --help."""

import sys

from sce_video.commands.verify import main

if __name__ == "__main__":
    sys.exit(main())
