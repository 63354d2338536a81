#!/usr/bin/env bash
# From nothing to evaluated features: environment, toy videos, pretraining, evaluation, a table.
# Usage: bash tools/quickstart.sh [--smoke] [--method moco]
# --smoke: the same path in about a minute. --method: another than SCE, see configs/quickstart/.
# Results: work_dirs/quickstart/results.json, work_dirs/quickstart_smoke/results.json. Safe to
# repeat: environment and videos are kept, the rest is done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/setup_env.sh
exec .venv/bin/python tools/quickstart.py "$@"
