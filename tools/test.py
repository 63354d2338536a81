"""Run the command ``sce-video test``. See --help."""

import sys

from sce_video.commands.test import main

if __name__ == "__main__":
    sys.exit(main())
