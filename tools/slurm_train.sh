#!/usr/bin/env bash
# Train under Slurm: one task on each machine, which starts one process for each of its GPUs.
# Usage: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of tools/train.py]
#   GPUS           total number of GPUs (8)
#   GPUS_PER_NODE  GPUs per machine (8, or GPUS if this is less)
#   CPUS_PER_TASK  CPUs for each GPU's process and its data loaders (loader workers of CONFIG and 1)
#   PORT           port of the first machine (20000 to 39999, depending on the job's number)
#   SRUN_ARGS      more arguments of srun, split at blanks, e.g. "--time=24:00:00 --qos=normal"
#   REQUEUE        seconds before the time limit, e.g. 300. Submits with sbatch. The training then
#                  writes a checkpoint and is requeued until it has finished
#   SBATCH_ARGS    with REQUEUE, more arguments of sbatch, e.g. "--time=24:00:00 --qos=normal"
#   MAX_RESTARTS   number of restarts after a process has failed, as in tools/dist_train.sh (0)
set -euo pipefail

# tools/dist_train.sh starts the processes of a machine, not Slurm, so that training starts in the
# same way everywhere and tasks do not have to select their GPU.

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
positive GPUS_PER_NODE "$gpus_per_node"
[ -z "${CPUS_PER_TASK:-}" ] || positive CPUS_PER_TASK "$CPUS_PER_TASK"
if [ $((gpus % gpus_per_node)) -ne 0 ]; then
    echo "slurm_train: GPUS ($gpus) must be a multiple of GPUS_PER_NODE ($gpus_per_node)" >&2
    usage
fi
nodes=$((gpus / gpus_per_node))
requeue=${REQUEUE:-}
[ -z "$requeue" ] || positive REQUEUE "$requeue"
if [ -n "${SBATCH_ARGS:-}" ] && [ -z "$requeue" ]; then
    echo "slurm_train: SBATCH_ARGS are for REQUEUE; without it give SRUN_ARGS" >&2
    usage
fi
read -ra srun_args <<<"${SRUN_ARGS:-}"
read -ra sbatch_args <<<"${SBATCH_ARGS:-}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

needed_cpus() {
    local python=python3
    [ ! -x "$root/.venv/bin/python" ] || python=$root/.venv/bin/python
    PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" "$python" -c '
import sys
from sce_video.engine.config.inheritance import read_config
from sce_video.engine.recipes import find_recipe
try:
    print("cpus", read_config(find_recipe(sys.argv[1])).train_dataloader.num_workers + 1)
except Exception as error:
    sys.exit(f"slurm_train: {error}")
' "$config" | sed -n 's/^cpus //p'
}

cpus_per_task=${CPUS_PER_TASK:-$(needed_cpus || true)}
if [ -z "$cpus_per_task" ]; then
    echo "slurm_train: cannot read $config here. Set CPUS_PER_TASK to its loader workers and 1" >&2
    exit 2
fi

# This runs on each machine. The first host of the step coordinates the others.
# shellcheck disable=SC2016  # expanded on the machine, not here
on_each_node='
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
export NNODES=$SLURM_STEP_NUM_NODES NODE_RANK=$SLURM_PROCID MASTER_ADDR=${hosts[0]}
export PORT=${PORT:-$((20000 + SLURM_JOB_ID % 20000))}
exec bash "$@"
'

job=(--partition="$partition" --job-name="$job_name")
machines=(
    --nodes="$nodes"
    --ntasks="$nodes"
    --ntasks-per-node=1
    --gres="gpu:$gpus_per_node"
    --cpus-per-task="$((cpus_per_task * gpus_per_node))"
)
step=(--kill-on-bad-exit=1 ${srun_args[@]+"${srun_args[@]}"})
step+=(bash -c "$on_each_node" slurm_train "$root/tools/dist_train.sh" "$config" "$gpus_per_node" "$@")

[ -n "$requeue" ] || exec srun "${job[@]}" "${machines[@]}" "${step[@]}"

# Without B: before its name, the signal goes to the tasks of srun, which pass it to the training.
# Rank 0 calls scontrol requeue (sce_video/engine/restarts.py), and Slurm runs the script again.
exec sbatch \
    "${job[@]}" \
    "${machines[@]}" \
    --requeue \
    --open-mode=append \
    --signal="USR1@$requeue" \
    ${sbatch_args[@]+"${sbatch_args[@]}"} <<EOF
#!/usr/bin/env bash
export STOP_SECONDS=$requeue MAX_RESTARTS=$(printf '%q' "${MAX_RESTARTS:-0}")
exec srun $(printf '%q ' "${machines[@]}" "${step[@]}")
EOF
