"""The command of sce_video/commands/search.py; see --help."""

import sys

from sce_video.commands.search import main

if __name__ == "__main__":
    sys.exit(main())
