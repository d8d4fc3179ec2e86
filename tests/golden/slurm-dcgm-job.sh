# Functions of array.sbatch and gather.sbatch, written by perfctl 1.2.3. Reading this file runs nothing.
# shellcheck shell=bash disable=SC2154  # folder and task are set by array.sbatch

fail() { echo "$*" >&2; exit 1; }

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
