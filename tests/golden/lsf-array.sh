#!/bin/bash -l
# perfctl 1.2.3: 3 profiler runs of train.py, one a task. For LSF.
# Made by: perfctl slurm render
# Read it, edit it, keep it. By hand:  bsub < array.sbatch
# and then, with the number that it prints:  bsub -w 'ended(NUMBER)' < gather.sbatch
#BSUB -J "perfctl[1-3]%2"
#BSUB -L /bin/bash
#BSUB -r
#BSUB -o /dev/null
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -gpu "num=2:mode=exclusive_process"
#BSUB -R "rusage[mem=16384MB]"
#BSUB -W 30
#BSUB -wt 5
#BSUB -wa URG
#BSUB -q gpuq
#BSUB -P ab1234
#BSUB -m e

# Which batch size of which profiler this task runs. LSF counts from 1; outside of an array the index is 0.
if [[ ${LSB_JOBINDEX:-0} -gt 0 ]]; then task=$(( LSB_JOBINDEX - 1 )); else
    task=${1:?no array index: submit this file with bsub, which reads its line -J, or give the number of one task}
fi
job=${LSB_JOBID:-no job}
node=$(hostname)
restart=0
tmp=${TMPDIR:-/tmp}
case $task in
    0) profiler=nsys batch=16 ;;
    1) profiler=nsys batch=32 ;;
    2) profiler=ncu batch=16 ;;
    *) echo "there is no task $task" >&2; exit 2 ;;
esac

cd /home/ada/study || exit 1
folder=/home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f
exec >>"$folder/task-$task.log" 2>&1
note() { printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" | tee -a "$folder/task-$task.state"; }

child=""    # perfctl's process
stopped=""  # told to stop
# shellcheck disable=SC2317  # both are called by trap
stop() {  # the time is nearly up, or the job must go: perfctl ends the profiler and keeps its report
    [[ -n $stopped ]] || note "told to stop"
    stopped=1
    case $child in
        "") exit 143 ;;  # nothing to end yet
        starting) ;;     # the line after its start looks at $stopped
        *) kill -TERM "$child" 2>/dev/null ;;
    esac
}
# shellcheck disable=SC2317
finish() {  # whatever happened
    code=$?
    dcgmi profile --resume || echo "dcgmi could not go on with its monitoring" >&2
    nvidia-smi -q -d CLOCK
    rm -rf -- "$TMPDIR"
    note "ended with exit code $code"
    exit "$code"
}
# What tasks left here that were killed outright: nobody holds the lock in it any more.
for lock in "$tmp"/perfctl-*/.held; do
    [[ -O ${lock%/*} ]] && flock -n "$lock" true && rm -rf -- "${lock%/*}"
done
TMPDIR=$(mktemp -d "$tmp/perfctl-XXXXXX") || exit 1
export TMPDIR
exec 9>"$TMPDIR/.new" && flock 9  # held for as long as anything of this task lives
mv "$TMPDIR/.new" "$TMPDIR/.held"
trap finish EXIT
trap stop TERM USR1 USR2 URG
note "started on $node as $job, restart $restart"

module purge || exit 1  # what the shell that submitted this had loaded
module load apptainer || exit 1
ulimit -c 0
# DCGM is the whole node's: without --exclusive, another task that ends here lets it go on under this one.
dcgmi profile --pause || echo "dcgmi could not pause its monitoring: the counters may be in use" >&2

container=$(command -v apptainer || command -v singularity) || { echo "neither apptainer nor singularity is here" >&2; exit 1; }
# The image gets a clean environment and, of this one, what is named here. For another variable of your own, here or
# before you submit:  export APPTAINERENV_NAME=value SINGULARITYENV_NAME=value
pass() { [[ -v APPTAINERENV_$1 || -v SINGULARITYENV_$1 ]] || export "APPTAINERENV_$1=$2" "SINGULARITYENV_$1=$2"; }
for name in $(compgen -e); do
    case $name in
        CUDA_VISIBLE_DEVICES | CUDA_DEVICE_* | CUDA_LAUNCH_BLOCKING | CUDA_MODULE_LOADING | CUBLAS_* | \
            CUDNN_* | NVIDIA_* | NCCL_* | TORCH_* | PYTORCH_* | OMP_* | MKL_* | OPENBLAS_* | MASTER_* | RANK | \
            LOCAL_RANK | WORLD_SIZE | HF_HOME | HF_*_OFFLINE | HF_DATASETS_CACHE | XDG_CACHE_HOME | SLURM_JOB_* \
            | SLURM_ARRAY_* | SLURM_CPUS_* | SLURM_GPUS* | SLURM_N* | SLURM_PROCID | SLURM_LOCALID | \
            PBS_ARRAY_INDEX | PBS_JOBID | LSB_JOBID | LSB_JOBINDEX | SCRATCH | LSCRATCH | LOCAL_SCRATCH | \
            SLURM_TMPDIR | TMPDIR | PERFCTL_*) pass "$name" "${!name}" ;;
    esac
done
pass PYTHONNOUSERSITE 1  # no packages of the home folder
binds=(--bind "${TMPDIR:-/tmp}")
for place in "${SCRATCH:-}" "${LSCRATCH:-}" "${LOCAL_SCRATCH:-}" "${SLURM_TMPDIR:-}"; do
    [[ -d $place && $place != / ]] && binds+=(--bind "$place")
done
# What stands before perfctl: nothing, srun, a container. The profiler is started by perfctl, inside of it.
child=starting
prefix=(
    "$container" exec --cleanenv --nv
    "${binds[@]}"
    --bind /home/ada/study
    --bind /data:/data:ro
    --pwd /home/ada/study
    /images/perfctl.sif
)
case $profiler in
    nsys)
        "${prefix[@]}" python3 -m perfctl nsys --device=cuda --sweep-name=nsys-train.py-1a2b3c4d \
            --batches "$batch" --no-store --scratch "$TMPDIR" --grace 225 -- python train.py '{batch}' &
        ;;
    ncu)
        "${prefix[@]}" python3 -m perfctl ncu --device=cuda --layer=conv2 --sweep-name=ncu-train.py-5e6f7a8b \
            --batches "$batch" --no-store --scratch "$TMPDIR" --grace 225 &
        ;;
esac
child=$!
[[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do  # a signal ends wait, not perfctl
    wait "$child"
    code=$?
done
exit "$code"
