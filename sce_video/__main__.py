"""Entry point of ``python -m sce_video``, which is the same as ``sce-video``."""

import sys

from sce_video.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
