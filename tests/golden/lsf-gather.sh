#!/bin/bash
# perfctl 1.2.3: what the tasks of train.py left, into one store and one page. For LSF.
# It runs after any outcome and names what is missing. By hand:
#   bsub -w 'ended(NUMBER)' < gather.sbatch
#BSUB -J perfctl-gather
#BSUB -o /dev/null
#BSUB -n 1
#BSUB -q gpuq
#BSUB -P ab1234

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
