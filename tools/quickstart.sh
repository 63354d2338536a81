#!/usr/bin/env bash
# From nothing to evaluated features: environment, toy videos, pretraining, evaluation, a table.
# Usage: bash tools/quickstart.sh [--smoke] [--method moco]
# --smoke runs the same steps in about a minute. --method selects another method than SCE, see
# configs/quickstart/. The results are work_dirs/quickstart/results.json and
# work_dirs/quickstart_smoke/results.json. A second run keeps environment and videos.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/setup_env.sh
exec .venv/bin/python tools/quickstart.py "$@"
