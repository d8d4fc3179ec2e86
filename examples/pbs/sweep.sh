#!/bin/bash
# Example: ncu on mnist_cnn at batch 16, 32, 64, 128 and 256 as a PBS Professional array, one batch size per task.
# perfctl does not render or test this script. Copy it and fill in what your cluster needs.
#
# Submit   qsub sweep.sh, in the folder that shall contain perfctl-runs
# Resume   submit it again: perfctl skips what is complete
# Gather   after the array, on any node: perfctl slurm gather perfctl-runs/ncu-mnist_cnn \
#              --store perfctl.db --page perfctl-report.html
# Try one  PBS_O_WORKDIR=$PWD PBS_ARRAY_INDEX=0 bash sweep.sh

# --- Your cluster
#PBS -l select=1:ncpus=8:ngpus=1:mem=16384mb
#PBS -l walltime=01:00:00
#PBS -q gpu
#PBS -A project

# --- The array. -r y: after a node failure, a task starts again.
#PBS -N perfctl
#PBS -S /bin/bash
#PBS -J 0-4
#PBS -r y
#PBS -j oe
#PBS -o /dev/null

batches=(16 32 64 128 256)
batch=${batches[${PBS_ARRAY_INDEX:?submit this file with qsub}]}

cd "$PBS_O_WORKDIR" || exit 1
exec >>"task-$PBS_ARRAY_INDEX.log" 2>&1
scratch=$(mktemp -d "${TMPDIR:-/tmp}/perfctl-XXXXXX") || exit 1
trap 'rm -rf -- "$scratch"' EXIT

# module load cuda  # what your nodes need; or: source ~/venv/bin/activate

# PBS sends no signal before the time limit. So timeout stops perfctl 300 s before it, and --grace leaves 225 s to write the
# report. --no-store: the tasks run at the same time, and gather fills the store.
timeout --foreground --signal=TERM 3300 \
    perfctl ncu --device=cuda --out=perfctl-runs --sweep-name=ncu-mnist_cnn \
    --batches "$batch" --no-store --scratch "$scratch" --grace 225
