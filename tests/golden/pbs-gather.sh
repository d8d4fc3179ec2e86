#!/bin/bash
# nsys and ncu on train.py at batch 16, 32, in perfctl.sif: one store and one page of what the array left.
# It runs after any outcome of the array, and names what is missing. It may run twice, and needs no GPU.
#
# Submit   qsub -W depend=afterany:NUMBER gather.sbatch
# By hand  bash gather.sbatch, in this folder

# --- Your cluster. This job needs no GPU: any small queue will do.
#PBS -N perfctl-gather
#PBS -S /bin/bash
#PBS -o /dev/null
#PBS -j oe
#PBS -l select=1
#PBS -l walltime=00:30:00
#PBS -q gpuq
#PBS -A ab1234

cd /home/ada/study || exit 1
exec >>/home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f/gather.log 2>&1
module purge || exit 1  # what the shell that submitted this had loaded
module load apptainer || exit 1
source /home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f/job.sh  # fail, pass_environment
image=/images/perfctl.sif
container=$(command -v apptainer || command -v singularity) || fail "$HOSTNAME has neither apptainer nor singularity on its PATH: load its module"
pass_environment  # GPU numbers, thread counts and scratch folders reach the image; job.sh has the list
"$container" exec --cleanenv \
    --bind /home/ada/study \
    --bind /data:/data:ro \
    --bind "${TMPDIR:-/tmp}" --pwd /home/ada/study \
    "$image" \
    python3 -m perfctl slurm gather /home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f \
    --store perfctl.db --page perfctl-report.html
