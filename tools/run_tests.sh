#!/usr/bin/env bash
# Set up and run the tests. Usage: bash tools/run_tests.sh [pytest arguments]
# --cov prints the coverage of the package by file; --random-order shuffles the tests.
# A test process per core, 8 at most; "-n 0" runs all in one process, as a debugger needs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh dev
# Hundreds of processes import the package: the first one compiles it for all.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal "$@"
