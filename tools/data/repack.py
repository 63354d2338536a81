"""The command of sce_video/commands/repack.py; see --help."""

import sys

from sce_video.commands.repack import main

if __name__ == "__main__":
    sys.exit(main())
