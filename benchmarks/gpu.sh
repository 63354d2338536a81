#!/usr/bin/env bash
# Measure everything that needs a GPU: parity with the CPU, the training step, the input side, the
# evaluation, two ranks, and real runs. Prints a table. Status 1 if a test or a parity bound fails.
# Usage: bash benchmarks/gpu.sh [--minutes 11] [--json OUT] [--device cuda] [--out FOLDER]
#                               [--videos FOLDER] [--parts PART ...] [--smoke]
# Needs no network and no datasets, and writes only to its output folder. Uses $PYTHON, or the
# repository's .venv, or python3. Packages may lie in folders of PYTHONPATH.
# --device cpu --smoke runs everything once at a very small size, in four minutes on two cores.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
export PYTHONPATH="$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "$python" "$root/benchmarks/gpu_report.py" "$@"
