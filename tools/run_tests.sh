#!/usr/bin/env bash
# Set up and run the tests. Usage: bash tools/run_tests.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh
exec .venv/bin/python -m pytest "$@"
