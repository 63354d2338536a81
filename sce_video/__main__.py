"""`python -m sce_video` is the command `sce-video`."""

import sys

from sce_video.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
