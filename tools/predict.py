"""The command of sce_video/commands/predict.py; see --help."""

import sys

from sce_video.commands.predict import main

if __name__ == "__main__":
    sys.exit(main())
