#!/usr/bin/env bash
# Train under Slurm: one task on each machine, which starts one process for each of its GPUs.
# Usage: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of tools/train.py]
#   GPUS           GPUs in all (8)
#   GPUS_PER_NODE  of one machine (8, or GPUS if that is less)
#   CPUS_PER_TASK  CPUs for each GPU's process and its data loaders (8)
#   PORT           port of the first machine (from 20000 to 39999, by the number of the job)
#   SRUN_ARGS      more arguments of srun, split at blanks, e.g. "--time=24:00:00 --qos=normal"
set -euo pipefail

# The processes of a machine are started by tools/dist_train.sh and not by Slurm, so that training
# starts in one and the same way everywhere and no GPU has to be told apart by the task's number.

usage() {
    sed -n '/^# Usage/,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

positive() {
    case $2 in
        '' | 0* | *[!0-9]*)
            echo "slurm_train: $1 must be a number above 0, got '$2'" >&2
            usage
            ;;
    esac
}

[ $# -ge 3 ] || usage
partition=$1
job_name=$2
config=$3
shift 3

gpus=${GPUS:-8}
positive GPUS "$gpus"
gpus_per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
cpus_per_task=${CPUS_PER_TASK:-8}
positive GPUS_PER_NODE "$gpus_per_node"
positive CPUS_PER_TASK "$cpus_per_task"
if [ $((gpus % gpus_per_node)) -ne 0 ]; then
    echo "slurm_train: GPUS ($gpus) must be a multiple of GPUS_PER_NODE ($gpus_per_node)" >&2
    usage
fi
nodes=$((gpus / gpus_per_node))
read -ra srun_args <<<"${SRUN_ARGS:-}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What each machine runs: the first host of the step is where the others meet.
# shellcheck disable=SC2016  # expanded on the machine, not here
on_each_node='
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
export NNODES=$SLURM_STEP_NUM_NODES NODE_RANK=$SLURM_PROCID MASTER_ADDR=${hosts[0]}
export PORT=${PORT:-$((20000 + SLURM_JOB_ID % 20000))}
exec bash "$@"
'

exec srun \
    --partition="$partition" \
    --job-name="$job_name" \
    --nodes="$nodes" \
    --ntasks="$nodes" \
    --ntasks-per-node=1 \
    --gres="gpu:$gpus_per_node" \
    --cpus-per-task="$((cpus_per_task * gpus_per_node))" \
    --kill-on-bad-exit=1 \
    ${srun_args[@]+"${srun_args[@]}"} \
    bash -c "$on_each_node" slurm_train "$root/tools/dist_train.sh" "$config" "$gpus_per_node" "$@"
