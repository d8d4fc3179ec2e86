"""Measure this machine's peaks: FLOP/s of large matrix products and bytes/s of a triad.

``python -m perfctl.workloads.run.peaks --device cpu|cuda [--json]``. Reports the best of several
rounds' medians: a peak is what can be reached, and the median excludes single lucky readings. 1
multiply-add = 2 FLOPs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from perfctl.workloads.run import setup as run_setup
from perfctl.workloads.run.options import replace_fields_by_flags
from perfctl.workloads.spec import WorkloadError

CPU_SIDES, CUDA_SIDES = (1024, 2048), (4096, 8192)
"""Sizes of the matrices; the better one counts."""
CPU_ELEMENTS, CUDA_ELEMENTS = 2**25, 2**28
"""fp32 elements of each of the triad's three arrays: 128 MiB on a CPU, 1 GiB on a GPU, beyond
any cache."""
ROUNDS, REPEATS = 3, 5


def measure_device_peaks(device: str) -> dict[str, Any]:
    """FLOP/s by path, bytes/s, and the device. Takes seconds. Raises WorkloadError without
    the device."""
    run_setup.raise_if_device_unavailable(device)
    described = run_setup.describe_device(device)
    sides, elements = (CUDA_SIDES, CUDA_ELEMENTS) if device == "cuda" else (CPU_SIDES, CPU_ELEMENTS)
    flops: dict[str, float] = {}
    for path, (dtype, precision) in _list_supported_matmul_precisions(device).items():
        run_setup.set_tf32_for_precision(precision)
        flops[path] = max(_measure_matmul_flops_per_second(device, side, dtype) for side in sides)
    return {
        "device": described.name or described.kind,
        "kind": described.kind,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "torch": torch.__version__,
        "flops": flops,
        "bandwidth_bps": _measure_triad_bandwidth(device, elements),
        "rounds": ROUNDS,
    }


def _list_supported_matmul_precisions(device: str) -> dict[str, tuple[torch.dtype, str]]:
    """Return path -> type and precision, of those that the device has."""
    paths = {"fp32": (torch.float32, "fp32"), "fp64": (torch.float64, "fp32")}
    major = torch.cuda.get_device_capability()[0] if device == "cuda" else 0
    if major >= 7:
        paths["tensor fp16"] = torch.float16, "fp16"
    if major >= 8:
        # cuBLAS uses the tensor cores for fp64 there, so the other fp64 units cannot be measured
        # with it.
        del paths["fp64"]
        paths["tensor bf16"] = torch.bfloat16, "bf16"
        paths["tensor tf32"] = torch.float32, "tf32"
    return paths


def _measure_matmul_flops_per_second(device: str, side: int, dtype: torch.dtype) -> float:
    """FLOP/s of a product of side x side matrices, 2 x side^3 FLOPs."""
    first, second = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    result = torch.empty_like(first)
    return (
        2
        * side**3
        / _measure_best_median_seconds(device, lambda: torch.matmul(first, second, out=result))
    )


def _measure_triad_bandwidth(device: str, elements: int) -> float:
    """Bytes/s of a = b + s c: two reads and a write of 4 bytes per element."""
    result, first, second = (torch.ones(elements, device=device) for _ in range(3))
    return (
        12
        * elements
        / _measure_best_median_seconds(
            device, lambda: torch.add(first, second, alpha=3.0, out=result)
        )
    )


def _measure_best_median_seconds(device: str, call: Callable[[], object]) -> float:
    """Return the smallest of the rounds' medians, waiting for each call; the first call is not
    timed."""

    def time_once() -> float:
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    time_once()
    return min(statistics.median([time_once() for _ in range(REPEATS)]) for _ in range(ROUNDS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m perfctl.workloads.run.peaks", description=__doc__
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--threads", type=int, help="CPU threads (default: chosen by torch)")
    options = parser.parse_args(arguments)
    try:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        measured = measure_device_peaks(options.device)
    except (WorkloadError, RuntimeError) as error:  # torch says "out of memory" as a RuntimeError
        print(f"peaks: {replace_fields_by_flags(str(error).splitlines()[0])}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(measured))
        return 0
    for path, value in measured["flops"].items():
        print(f"{path:<12} {value / 1e9:10.1f} GFLOP/s")
    print(f"{'memory':<12} {measured['bandwidth_bps'] / 1e9:10.1f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
