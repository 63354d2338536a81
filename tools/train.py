"""Run the command ``sce-video train``. See --help."""

import sys

from sce_video.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
