# Functions of array.sbatch and gather.sbatch, written by perfctl 2.0.0. Reading this file runs nothing.
# shellcheck shell=bash disable=SC2154  # folder and task are set by array.sbatch

fail() { echo "$*" >&2; exit 1; }

# pass_environment: what --cleanenv would keep from the image. Host paths (LD_LIBRARY_PATH, PYTHONPATH) and secrets stay
# outside. For another variable of your own:  export APPTAINERENV_NAME=value SINGULARITYENV_NAME=value
pass_environment() {
    local name place
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
    for place in "${SCRATCH:-}" "${LSCRATCH:-}" "${LOCAL_SCRATCH:-}" "${SLURM_TMPDIR:-}"; do
        [[ -d $place && $place != / && $place != *[:,]* ]] || continue
        export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$place"
        export SINGULARITY_BIND="${SINGULARITY_BIND:+$SINGULARITY_BIND,}$place"
    done
}
pass() { [[ -v APPTAINERENV_$1 || -v SINGULARITYENV_$1 ]] || export "APPTAINERENV_$1=$2" "SINGULARITYENV_$1=$2"; }

# note TEXT: one line in task-N.state, from which perfctl slurm status tells how far the task is.
note() { printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" | tee -a "$folder/task-$task.state"; }

# begin: note the start, make a private TMPDIR, and be ready to be told to stop.
begin() {
    local lock job node restart tmp
    job=${SLURM_ARRAY_JOB_ID:-no job} node=${SLURMD_NODENAME:-$HOSTNAME}
    restart=${SLURM_RESTART_COUNT:-0} tmp=${SLURM_TMPDIR:-/tmp}
    # What tasks left on this node that were killed outright: nobody holds the lock in it any more.
    for lock in "$tmp"/perfctl-*/.held; do
        [[ -O ${lock%/*} ]] && flock -n "$lock" true && rm -rf -- "${lock%/*}"
    done
    TMPDIR=$(mktemp -d "$tmp/perfctl-XXXXXX") || exit 1
    export TMPDIR
    exec 9>"$TMPDIR/.new" && flock 9  # held for as long as anything of this task lives
    mv "$TMPDIR/.new" "$TMPDIR/.held"
    trap finish EXIT
    trap stop TERM USR1
    note "started on $node as $job, restart $restart"
}

# run COMMAND...: start it, pass a stop on to it, wait for it.
child=""    # its process
stopped=""  # told to stop
run() {
    local code
    child=starting
    "$@" &
    child=$!
    [[ -z $stopped ]] || kill -TERM "$child" 2>/dev/null
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do  # a signal ends wait, not perfctl
        wait "$child"
        code=$?
    done
    return "$code"
}

# shellcheck disable=SC2317  # stop and finish are called by trap
stop() {  # the time is nearly up, or the job must go: perfctl ends the profiler and keeps its report
    [[ -n $stopped ]] || note "told to stop"
    stopped=1
    case $child in
        "") exit 143 ;;  # nothing to end yet
        starting) ;;     # run looks at $stopped
        *) kill -TERM "$child" 2>/dev/null ;;
    esac
}

# shellcheck disable=SC2317
finish() {  # whatever happened
    local code=$?
    if declare -F after >/dev/null; then after; fi
    rm -rf -- "$TMPDIR"
    note "ended with exit code $code"
    exit "$code"
}
