#!/usr/bin/env bash
# Set up and run the tests. Usage: bash tools/run_tests.sh [pytest arguments]
# --cov prints the coverage of the package by file; --random-order shuffles the tests.
# There is one test process per core, at most 8. "-n 0" runs all tests in one process, for use with
# a debugger. A test that hangs fails after 20 minutes and prints the stacks of its threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh dev
# Hundreds of processes import the package, so compile it once before.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal --timeout 1200 "$@"
