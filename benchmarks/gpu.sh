#!/usr/bin/env bash
# All that a GPU can tell, in one command: parity with the CPU, the training step, the input side,
# the evaluation, and real runs; a table at the end, status 1 if a test or a parity bound fails.
# Usage: bash benchmarks/gpu.sh [--minutes 8] [--json OUT] [--device cuda] [--out FOLDER]
#                               [--videos FOLDER] [--parts PART ...] [--smoke]
# Needs no network and no data sets, and writes to its output folder only. Python: $PYTHON, else the
# repository's .venv, else python3; packages may lie in folders of PYTHONPATH.
# --device cpu --smoke: everything once, very small, in two minutes on two cores.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
export PYTHONPATH="$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "$python" "$root/benchmarks/gpu_report.py" "$@"
