"""Runs of a sweep with known changes, for comparisons. Synthetic."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from perfctl.orchestrator.compare.compare import ComparisonSide
from perfctl.records.report import Device, Kernel, Step
from perfctl.records.run import Run
from tests.make.synthetic import gpu_pair, make_run, with_kernels

STEPS = 4
TIMES = {
    ("conv1", "conv_a"): 20_000.0,
    ("conv1", "bias"): 4_000.0,
    ("conv2", "conv_b"): 80_000.0,
    ("fc", "gemm"): 30_000.0,
}
ENVIRONMENT = {
    "torch": "2.8.0",
    "cuda": "12.8",
    "cudnn": "9.10",
    "tf32_conv": "off",
    "tf32_matmul": "off",
    "cudnn_benchmark": "off",
    "threads": "4",
    "python": "3.11.7",
}
H200 = Device(
    "NVIDIA H200",
    "gpu",
    compute_capability="9.0",
    sm_count=132,
    clock_hz=1_980_000_000,
    driver_version="570.10",
)


def make_repeat(
    number: int,
    dice: random.Random,
    noise: float = 0.01,
    slower: Mapping[str, float] = MappingProxyType({}),
    times: Mapping[tuple[str, str], float] = TIMES,
    grid: int = 4,
    **changes: Any,
) -> Run:
    """A run whose kernels take TIMES x their factor of ``slower`` x noise."""
    kernels: list[Kernel] = []
    own = {kernel: 1 + dice.gauss(0, noise) for _, kernel in times}
    for step in range(STEPS):
        for (layer, kernel), took in times.items():
            factor = slower.get(kernel, 1.0) * own[kernel] * (1 + dice.gauss(0, noise / 10))
            kernels.append(
                Kernel(
                    len(kernels),
                    f"void {kernel}<float>()",
                    kernel,
                    layer,
                    "forward",
                    step,
                    "range",
                    stream=7,
                    grid_x=grid,
                    grid_y=1,
                    grid_z=1,
                    duration_ns=took * factor,
                )
            )
    whole = [sum(k.duration_ns or 0 for k in kernels if k.step == step) for step in range(STEPS)]
    fields: dict[str, Any] = {
        "profiler": "nsys",
        "device": H200,
        "kernels": kernels,
        "steps": tuple(
            Step(step, "step", None, int(1.2 * total)) for step, total in enumerate(whole)
        ),
        "environment": ENVIRONMENT,
    }
    return make_run(number, **(fields | changes))


def make_side(label: str, count: int, dice: random.Random, **changes: Any) -> ComparisonSide:
    """A side of so many repeats."""
    return ComparisonSide(
        label, tuple(make_repeat(number, dice, **changes) for number in range(1, count + 1))
    )


def map_runs(
    side: ComparisonSide, change: Callable[[Run], Run], label: str = "B"
) -> ComparisonSide:
    """The side with each of its runs changed."""
    return ComparisonSide(label, tuple(map(change, side.runs)))


def map_kernels(
    side: ComparisonSide, change: Callable[[Kernel], Kernel], label: str = "B"
) -> ComparisonSide:
    """The side with each of its kernels changed."""
    return map_runs(side, lambda run: with_kernels(run, change), label)


WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
GPU_STEP, GPU_STEPS = 1_000_000, 12
"""Nanoseconds of a step of ``gpu_side``, and its steps."""
QUIET = (1.0, 1.002, 0.998, 1.001, 0.999)
"""Factors of repeats that hardly differ."""


def gpu_side(
    label: str,
    factors: tuple[float, ...],
    *,
    conv2: float = 1.0,
    winograd: bool = False,
    batch: int = 64,
    steps: int = GPU_STEPS,
    profiler: str = "nsys",
    **environment: str,
) -> ComparisonSide:
    """A run for each factor of a step of 1 ms; conv2's kernels take ``conv2`` times as long, by
    Winograd or implicit GEMM."""
    runs: list[Run] = []
    for number, factor in enumerate(factors, 1):
        run = next(one for one in gpu_pair(number, batch) if one.profiler == profiler)
        dice = random.Random(number)
        kernels = [
            kernel._replace(
                name=WINOGRAD if winograd and kernel.layer == "conv2" else kernel.name,
                duration_ns=round(
                    factor * (kernel.duration_ns or 0) * (conv2 if kernel.layer == "conv2" else 1)
                ),
            )
            for kernel in run.report.kernels
        ]
        timed = tuple(
            Step(at, "step", None, round(GPU_STEP * factor * (1 + dice.gauss(0, 0.001))))
            for at in range(steps)
        )
        facts = {"torch": "2.8.0", "cudnn": "9.10"} | environment
        report = replace(
            run.report, kernels=kernels, steps=timed if profiler != "ncu" else (), environment=facts
        )
        runs.append(replace(run, report=report))
    return ComparisonSide(label, tuple(runs))
