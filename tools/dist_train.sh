#!/usr/bin/env bash
# Train on several processes, on one machine or more.
# Usage: bash tools/dist_train.sh CONFIG NPROC [arguments of tools/train.py]
#   NPROC        processes on this machine, one per GPU
#   NNODES       number of machines (1). Run the same command on each of them
#   NODE_RANK    number of this machine, counted from 0 (0)
#   MASTER_ADDR  address of machine 0, the same everywhere (127.0.0.1)
#   PORT         a free port of machine 0, the same everywhere (29500)
#   MAX_RESTARTS if a process fails or is killed, start all of them again, at most this often (0).
#                The training continues from its last checkpoint
#   RUN_ID       a new name for each launch, the same on all machines. Needed for restarts on
#                several machines outside Slurm
#   STOP_SECONDS seconds to write a checkpoint after SIGTERM or SIGUSR1, before processes are
#                killed (30)
set -euo pipefail

usage() {
    sed -n '/^# Usage/,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

[ $# -ge 2 ] || usage
config=$1
nproc=$2
shift 2
case $nproc in
    '' | 0* | *[!0-9]*)
        echo "dist_train: NPROC must be a number of processes, got '$nproc'" >&2
        usage
        ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
[ ! -x "$root/.venv/bin/python" ] || python=$root/.venv/bin/python
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

nnodes=${NNODES:-1}
address=${MASTER_ADDR:-127.0.0.1}
port=${PORT:-29500}
restarts=${MAX_RESTARTS:-0}
if [ "$restarts" = 0 ]; then
    options=(--node_rank="${NODE_RANK:-0}" --master_addr="$address" --master_port="$port")
else
    # This rendezvous tells the other machines that one of them starts again. Unless each start has
    # a store of its own, torch 2.13 may hand it the addresses of processes that are gone.
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    run=${RUN_ID:-${SLURM_STEP_ID:+$SLURM_JOB_ID.$SLURM_STEP_ID}}
    if [ "$nnodes" = 1 ]; then
        run=${RUN_ID:-$(uname -n).$$}
    elif [ -z "$run" ]; then
        echo "dist_train: MAX_RESTARTS with NNODES=$nnodes needs RUN_ID, a new name for this" \
            "launch, the same on all machines" >&2
        usage
    fi
    export SCE_VIDEO_LAUNCH=$run # by which a start knows the earlier ones
    options=(--rdzv_backend=c10d --rdzv_endpoint="$address:$port" --rdzv_id="$run")
    [ "$nnodes" != 1 ] || options+=(--local_addr="$address")
    options+=(--max_restarts="$restarts")
fi
if [ -n "${STOP_SECONDS:-}" ]; then
    options+=(--shutdown_timeout="$STOP_SECONDS")
    options+=(--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1)
fi

exec "$python" -m torch.distributed.run \
    --nnodes="$nnodes" \
    "${options[@]}" \
    --nproc_per_node="$nproc" \
    "$root/tools/train.py" "$config" --launcher pytorch "$@"
