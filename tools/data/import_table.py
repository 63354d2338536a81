"""The command of sce_video/commands/import_table.py; see --help."""

import sys

from sce_video.commands.import_table import main

if __name__ == "__main__":
    sys.exit(main())
