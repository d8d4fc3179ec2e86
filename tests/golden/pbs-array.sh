#!/bin/bash
# nsys and ncu on train.py at batch 16, 32, in perfctl.sif: one task of the array each.
# Written by perfctl 1.2.3, for PBS:
#   perfctl slurm render
#
# Submit   In this folder: qsub array.sbatch, and then, with the number that it prints:
#          qsub -W depend=afterany:NUMBER gather.sbatch
# Logs     task-0.log, task-1.log, ... and gather.log, beside this file
# Resume   submit both again: what is complete is skipped
# Gather   gather.sbatch brings all runs into perfctl.db and perfctl-report.html; so does perfctl slurm gather
# Try one  bash array.sbatch 0, in this folder: runs task 0 where you are, without PBS

# --- Your cluster. A line with ## is off: fill it in, and remove one #. A GPU's type is a resource of your site.
#PBS -l select=1:ncpus=8:ngpus=2:mem=16384mb
#PBS -l walltime=00:30:00
#PBS -q gpuq
#PBS -A ab1234
#PBS -m e

# --- The array. Each task writes its own log; -r y: after a node failure it starts again, and skips what is complete.
#PBS -N perfctl
#PBS -S /bin/bash
#PBS -J 0-2%2
#PBS -r y
#PBS -j oe
#PBS -o /dev/null

# --- What each array index runs
task=${PBS_ARRAY_INDEX:-${1:?no array index: submit this file with qsub, which reads its line -J, or give the number of one task}}
case $task in
    0) profiler=nsys batch=16 ;;
    1) profiler=nsys batch=32 ;;
    2) profiler=ncu batch=16 ;;
    *) echo "there is no task $task" >&2; exit 2 ;;
esac

cd /home/ada/study || exit 1
folder=/home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f
exec >>"$folder/task-$task.log" 2>&1
# shellcheck disable=SC2317  # called by job.sh
after() {  # at the end, whatever happened
    dcgmi profile --resume || echo "dcgmi could not go on with its monitoring" >&2
    nvidia-smi -q -d CLOCK
}
source "$folder/job.sh"  # begin, run, fail, pass_environment
begin  # notes the start, makes a private TMPDIR, and lets the profiler write its report when the job is told to stop
stop_before_limit 300 1800  # PBS itself does not warn

# --- Modules, environment
module purge || exit 1  # what the shell that submitted this had loaded
module load apptainer || exit 1
ulimit -c 0
# DCGM is the whole node's: without --exclusive, another task that ends here lets it go on under this one.
dcgmi profile --pause || echo "dcgmi could not pause its monitoring: the counters may be in use" >&2

# --- The run: perfctl starts the profiler inside the image, for from outside a profiler sees nothing of it
image=/images/perfctl.sif
container=$(command -v apptainer || command -v singularity) || fail "$HOSTNAME has neither apptainer nor singularity on its PATH: load its module"
pass_environment  # GPU numbers, thread counts and scratch folders reach the image; job.sh has the list
case $profiler in
    nsys)
        arguments=(nsys --device=cuda --sweep-name=nsys-train.py-1a2b3c4d \
            --batches "$batch" --no-store --scratch "$TMPDIR" --grace 225 \
            -- python train.py '{batch}') ;;
    ncu)
        arguments=(ncu --device=cuda --layer=conv2 --sweep-name=ncu-train.py-5e6f7a8b \
            --batches "$batch" --no-store --scratch "$TMPDIR" --grace 225) ;;
esac
# --no-store: gather.sbatch fills the store. --grace: seconds to write the report when told to stop.
run "$container" exec --nv --cleanenv \
    --bind /home/ada/study \
    --bind /data:/data:ro \
    --bind "$TMPDIR" --pwd /home/ada/study \
    "$image" \
    python3 -m perfctl "${arguments[@]}"
