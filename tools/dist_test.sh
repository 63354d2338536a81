#!/usr/bin/env bash
# Test a checkpoint on several processes, on one machine or more.
# Usage: bash tools/dist_test.sh CONFIG CHECKPOINT NPROC [arguments of tools/test.py]
#   NPROC        processes on this machine, one per GPU
#   NNODES       number of machines (1). Run the same command on each of them
#   NODE_RANK    number of this machine, counted from 0 (0)
#   MASTER_ADDR  address of machine 0, the same everywhere (127.0.0.1)
#   PORT         a free port of machine 0, the same everywhere (29500)
set -euo pipefail

usage() {
    sed -n '/^# Usage/,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

[ $# -ge 3 ] || usage
config=$1
checkpoint=$2
nproc=$3
shift 3
case $nproc in
    '' | 0* | *[!0-9]*)
        echo "dist_test: NPROC must be a number of processes, got '$nproc'" >&2
        usage
        ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
[ ! -x "$root/.venv/bin/python" ] || python=$root/.venv/bin/python
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

exec "$python" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$nproc" \
    "$root/tools/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
