#!/bin/sh
# demo.sh PERFCTL BATCHES: the main job on this machine's own hardware, then the report of the published V100 study. The
# PyTorch profiler works everywhere. With a GPU, Nsight Systems and Nsight Compute follow if they are installed and allowed
# to count.
set -eu
perfctl=$1
batches=$2
study=$(cd "$(dirname "$0")/../../examples/mnist_v100_study" && pwd)

"$perfctl" torch --batches "$batches" ||
    echo "demo: not every batch size ran; the report shows those that did, and why the others did not" >&2
if [ -d /proc/driver/nvidia/gpus ]; then
    for profiler in nsys ncu; do
        if command -v "$profiler" >/dev/null; then
            "$perfctl" "$profiler" --batches "$batches" ||
                echo "demo: the sweep with $profiler is incomplete; '$perfctl doctor' shows what it needs" >&2
        fi
    done
fi
"$perfctl" report

# A CPU has no counters: the study shows executed FLOPs that do not follow the batch size, and why.
echo
echo "The published study of a Tesla V100 ($study):"
"$perfctl" ingest --again "$study"/*/ --store perfctl-v100.db >/dev/null
"$perfctl" ledger --store perfctl-v100.db | sed '/^layer /,$d'   # the findings
"$perfctl" report --store perfctl-v100.db --out perfctl-v100.html

echo
echo "This machine:  $(pwd)/perfctl-report.html"
echo "V100 study:    $(pwd)/perfctl-v100.html"
echo "Next:          $perfctl ledger      (this machine in the terminal)"
echo "               docs/tutorials/v100-case.md explains the study"
