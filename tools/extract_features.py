"""The command of sce_video/commands/extract_features.py; see --help."""

import sys

from sce_video.commands.extract_features import main

if __name__ == "__main__":
    sys.exit(main())
