#!/bin/sh
# setup_and_run_all.sh [PYTHON]: environment, install, a check of the GPU, then both studies on the available devices: training
# (unet and lstm on CPU and GPU) and inference. Without a GPU training compares cpu with cpu:bf16 and cpu:compile, at a
# reduced size. SIZE=full trains the networks at their own size on a CPU too, which takes hours.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
venv=${VENV:-.venv}
out=${OUT:-runs}

sh scripts/setup/make_venv.sh "$python" "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[torch,nvml,notebook]'
perfctl=$venv/bin/perfctl
"$perfctl" doctor || echo "setup: what doctor found missing is left out below" >&2

unet=""
lstm=""
if [ -d /proc/driver/nvidia/gpus ]; then
    echo "setup: training on the CPU and on the GPU"
else
    echo "setup: there is no NVIDIA GPU here: the CPU is compared with itself in bf16 and compiled"
    if [ "${SIZE:-}" != full ]; then
        unet="--base-width 8 --image-size 64 --samples 128"
        lstm="--hidden 48 --length 20 --samples 4800"
    fi
fi

failed=0
# Word splitting is intended: each variable holds options, or nothing.
# shellcheck disable=SC2086
"$perfctl" speedup --workload unet --batches 8 --epochs 5 --out "$out/speedup" $unet || failed=1
# shellcheck disable=SC2086
"$perfctl" speedup --workload lstm --batches 32 --epochs 5 --out "$out/speedup" $lstm || failed=1
"$perfctl" infer --models resnet18 --batches 1,5 --images 50 --weights none --out "$out/inference" || failed=1
if [ -f "$out/perfctl.db" ]; then
    "$perfctl" report --store "$out/perfctl.db" --out "$out/report.html" || failed=1
fi

echo
for page in "$out"/*.html; do
    [ -f "$page" ] && echo "A page:    $(pwd)/$page"
done
echo "Notebooks: $venv/bin/python -m pip install jupyterlab, then $venv/bin/jupyter lab examples/notebooks"
exit "$failed"
