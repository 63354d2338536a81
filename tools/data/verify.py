"""Run the command ``sce-video verify``. See --help."""

import sys

from sce_video.commands.verify import main

if __name__ == "__main__":
    sys.exit(main())
