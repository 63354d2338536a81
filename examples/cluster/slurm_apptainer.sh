#!/usr/bin/env bash
# Pretrain on two machines of eight GPUs under Slurm, inside a container of Apptainer.
#   apptainer build sce_video.sif docker-archive:sce_video.tar        (of: docker save sce-video)
#   sbatch examples/cluster/slurm_apptainer.sh CONFIG VIDEOS WORK_DIR
# Each of the eight processes of a machine has 12 loader workers in the recipes of Kinetics, so that
# 8 x 13 cores are used. With fewer, ask for all cores of a machine: the workers follow.
# The tests do not run this script. Without a container, use tools/slurm_train.sh.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=104
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
set -euo pipefail

config=${1:?usage: slurm_apptainer.sh CONFIG VIDEOS WORK_DIR}
videos=${2:?usage: slurm_apptainer.sh CONFIG VIDEOS WORK_DIR}
work_dir=${3:?usage: slurm_apptainer.sh CONFIG VIDEOS WORK_DIR}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

mkdir -p "$work_dir"
# tools/dist_train.sh starts one process per GPU of a machine. --resume starts from scratch if there
# is nothing to continue.
srun apptainer exec --nv --bind "$videos:/videos:ro" --bind "$work_dir:/runs" --pwd /opt/sce_video \
    --env "NNODES=$SLURM_NNODES,MASTER_ADDR=$first,PORT=29500" sce_video.sif \
    bash -c 'NODE_RANK=$SLURM_NODEID exec bash tools/dist_train.sh "$0" 8 --work-dir /runs --resume \
        --cfg-options train_dataloader.dataset.data_root=/videos' "$config"
