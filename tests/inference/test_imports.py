"""Loading a model and embedding import no package that they do not need."""

import json
import subprocess
import sys

import pytest

#: mmengine imports transformers, and all that it needs, wherever it is installed.
EMBED = """
import json, sys
sys.modules["transformers"] = None
import numpy as np
from sce_video import embed, load_model
features = embed(load_model(sys.argv[1], device="cpu"), np.zeros((4, 32, 32, 3), np.uint8))
assert features.shape == (1, 32)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_embedding_imports_no_plots_templates_or_other_networks(checkpoint):
    """In a process that embeds an array."""
    command = [sys.executable, "-c", EMBED, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    unwanted = {"mmaction", "mmaction.models", "matplotlib", "jinja2", "filelock"}
    assert not unwanted & set(json.loads(done.stdout))
