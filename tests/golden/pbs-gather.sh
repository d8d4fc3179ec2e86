#!/bin/bash
# perfctl 1.2.3: what the tasks of train.py left, into one store and one page. For PBS.
# It runs after any outcome and names what is missing. By hand:
#   qsub -W depend=afterany:NUMBER gather.sbatch
#PBS -N perfctl-gather
#PBS -o /dev/null
#PBS -j oe
#PBS -q gpuq
#PBS -A ab1234

cd /home/ada/study || exit 1
exec >>/home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f/gather.log 2>&1
module load apptainer || exit 1
container=$(command -v apptainer || command -v singularity) || { echo "neither apptainer nor singularity is here" >&2; exit 1; }
prefix=(
    "$container" exec
    --bind "${TMPDIR:-/tmp}"
    --bind /home/ada/study
    --bind /data:/data:ro
    --pwd /home/ada/study
    /images/perfctl.sif
)
exec "${prefix[@]}" python3 -m perfctl slurm gather /home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f --store perfctl.db --page perfctl-report.html
