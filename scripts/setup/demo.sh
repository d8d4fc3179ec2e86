#!/bin/sh
# demo.sh PERFCTL BATCHES: the main job on this machine's own hardware. The PyTorch profiler works everywhere. With
# a GPU, Nsight Systems and Nsight Compute follow if they are installed and allowed to count.
set -eu
perfctl=$1
batches=$2

"$perfctl" torch --batches "$batches" ||
    echo "demo: not every batch size ran; the page shows those that did, and why the others did not" >&2
if [ -d /proc/driver/nvidia/gpus ]; then
    for profiler in nsys ncu; do
        if command -v "$profiler" >/dev/null; then
            "$perfctl" "$profiler" --batches "$batches" ||
                echo "demo: $profiler gave no whole sweep here; '$perfctl doctor' says what it needs" >&2
        fi
    done
fi
"$perfctl" report

page=$(pwd)/perfctl-report.html
echo
echo "The page: $page"
echo "Next:     $perfctl show 1      (the same in the terminal; '$perfctl runs' lists all)"
