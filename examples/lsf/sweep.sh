#!/bin/bash -l
# Example: ncu on mnist_cnn at batch 16, 32, 64, 128 and 256 as an LSF array, one batch size per task.
# perfctl does not render or test this script. Copy it and fill in what your cluster needs.
#
# Submit   bsub < sweep.sh, in the folder that shall contain perfctl-runs
# Resume   submit it again: perfctl skips what is complete
# Gather   after the array, on any node: perfctl slurm gather perfctl-runs/ncu-mnist_cnn \
#              --store perfctl.db --page perfctl-report.html
# Try one  LSB_JOBINDEX=1 bash sweep.sh

# --- Your cluster
#BSUB -gpu "num=1:mode=exclusive_process"
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -R "rusage[mem=16384MB]"
#BSUB -W 60
#BSUB -q gpu
#BSUB -P project

# --- The array. LSF counts from 1. -r: after a node failure, a task starts again. -wa, -wt: URG, 5 minutes before the limit.
#BSUB -J "perfctl[1-5]"
#BSUB -L /bin/bash
#BSUB -r
#BSUB -o /dev/null
#BSUB -wa URG
#BSUB -wt 5

batches=(16 32 64 128 256)
index=${LSB_JOBINDEX:?submit this file with bsub}
batch=${batches[index - 1]}

exec >>"task-$index.log" 2>&1
scratch=$(mktemp -d "${TMPDIR:-/tmp}/perfctl-XXXXXX") || exit 1
trap 'rm -rf -- "$scratch"' EXIT

# module load cuda  # what your nodes need; or: source ~/venv/bin/activate

# --no-store: the tasks run at the same time, and gather fills the store. --grace: seconds to write the report when stopped.
perfctl ncu --device=cuda --out=perfctl-runs --sweep-name=ncu-mnist_cnn \
    --batches "$batch" --no-store --scratch "$scratch" --grace 225 &
child=$!
trap 'kill -TERM "$child"' URG TERM  # LSF sends URG to every process of the job, and only this script reacts
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do  # a signal ends wait, not perfctl
    wait "$child"
    code=$?
done
exit "$code"
