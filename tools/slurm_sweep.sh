#!/usr/bin/env bash
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
# Run a sweep as a Slurm job array: each task does its share of the pretrainings and evaluations.
# Usage: sbatch --array=1-N[%LIMIT] --gres=gpu:8 --cpus-per-task=64 [arguments of sbatch] \
#            tools/slurm_sweep.sh SWEEP.py ... --out DIR [arguments of sce-video sweep]
# Submit it in the repository's root. The same command resumes and keeps finished steps. When all
# tasks have ended, write the tables: sce-video sweep SWEEP.py ... --out DIR --report
# 300 s before a task's time limit (--signal=B:USR1@SECONDS), its training runs write a checkpoint
# and the task is requeued until its share is finished (with --no-requeue, it only stops).
#   SWEEP_SHARDS  total number of tasks, if only some of them are repeated (--array=3,7)
#   STOP_SECONDS  seconds to write a checkpoint after the signal (240)
set -euo pipefail

usage() {
    sed -n '/^# Usage/,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

positive() {
    case $2 in
        '' | 0* | *[!0-9]*)
            echo "slurm_sweep: $1 must be a number above 0, got '$2'" >&2
            usage
            ;;
    esac
}

[ $# -ge 1 ] || usage
if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    echo "slurm_sweep: not a task of a job array: submit it with sbatch --array=1-N" >&2
    usage
fi
# Each task does every N-th pretraining, so N must be the same for all tasks: the last number of
# an array without gaps. %LIMIT, the tasks at a time, does not change it.
task=$SLURM_ARRAY_TASK_ID
shards=${SWEEP_SHARDS:-$SLURM_ARRAY_TASK_MAX}
if [ -z "${SWEEP_SHARDS:-}" ]; then
    if [ "$SLURM_ARRAY_TASK_MIN" != 1 ] || [ "$SLURM_ARRAY_TASK_COUNT" != "$shards" ]; then
        echo "slurm_sweep: the array must be 1-N without gaps, got $SLURM_ARRAY_TASK_COUNT tasks" \
            "from $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX; to repeat some tasks of an" \
            "array of N, set SWEEP_SHARDS=N" >&2
        usage
    fi
fi
positive SLURM_ARRAY_TASK_ID "$task"
positive SWEEP_SHARDS "$shards"
if [ "$task" -gt "$shards" ]; then
    echo "slurm_sweep: task $task of SWEEP_SHARDS=$shards" >&2
    usage
fi

# Slurm runs a copy of this script from its spool folder, so the repository is where the job was
# submitted.
root=$SLURM_SUBMIT_DIR
if [ ! -f "$root/tools/slurm_sweep.sh" ]; then
    echo "slurm_sweep: no tools/slurm_sweep.sh in $root: submit the job in the repository's root" >&2
    exit 2
fi
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export STOP_SECONDS=${STOP_SECONDS:-240}
# With exec, Slurm's signal reaches the sweep. It calls scontrol requeue when its training runs
# have written a checkpoint (sce_video/commands/sweep.py). SIGTERM from scancel only stops them.
exec "$python" -m sce_video sweep "$@" --shard "$task/$shards"
