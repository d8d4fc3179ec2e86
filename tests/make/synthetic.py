"""Synthetic runs of the MNIST CNN, every number worked out from the network's dimensions.

conv1 1->32 k3 (26x26), conv2 32->64 k3 (24x24), pool 2, fc1 9216->128, fc2 128->10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator.ledger.prepared import Study, group_into_studies
from perfctl.records.paper import LayerCall
from perfctl.records.ranges import parse_range_name
from perfctl.records.report import (
    Counter,
    Device,
    Gap,
    Kernel,
    MemoryFigure,
    Operation,
    Range,
    Report,
    Step,
)
from perfctl.records.run import Run

BATCHES = (16, 32, 64, 128, 256)
V100 = Device("Tesla V100-SXM2-16GB", "gpu", compute_capability="7.0", sm_count=80)
CPU = Device("synthetic CPU", "cpu")
STEPS = 3
PARAMETERS = {"conv1": 320, "conv2": 18496, "fc1": 1179776, "fc2": 1290}
LAYERS = ("conv1", "conv2", "fc1", "fc2")


def macs(layer: str, batch: int) -> int:
    """Multiply-adds of one forward pass, from the dimensions."""
    per_sample = {
        "conv1": 26 * 26 * 32 * 9,
        "conv2": 24 * 24 * 64 * 288,
        "fc1": 9216 * 128,
        "fc2": 128 * 10,
    }
    return batch * per_sample[layer]


def layer_calls(batch: int) -> tuple[LayerCall, ...]:
    """Pen and paper for one training step; the first layer needs no input gradient."""
    calls = []
    for position, layer in enumerate(LAYERS):
        kind = "Conv2d" if layer.startswith("conv") else "Linear"
        for direction in ("forward", "grad_input", "grad_weight"):
            count = 0 if (layer, direction) == ("conv1", "grad_input") else macs(layer, batch)
            calls.append(
                LayerCall(
                    layer,
                    kind,
                    direction,
                    count,
                    2 * count,
                    PARAMETERS[layer],
                    4 * 9 * batch,
                    4 * batch,
                    batch,
                    f"2 x {count:,} = {2 * count:,} FLOP",
                    elementwise_flops=batch,
                    position=position,
                )
            )
    return tuple(calls)


def make_run(number: int = 1, **changes: Any) -> Run:
    """An empty, ok run of mnist_cnn at batch 64 on the CPU; ``changes`` are fields of Run or
    of Report."""
    report_fields = {
        name: changes.pop(name)
        for name in list(changes)
        if name in Report.__dataclass_fields__ and name not in Run.__dataclass_fields__
    }
    report = Report("torch", Path("report.json"), "synthetic", **report_fields)
    run = Run(
        id=number,
        sweep_id=1,
        sweep_name="torch-mnist",
        sweep_command="perfctl torch mnist_cnn --batches 16 32 64",
        host="node1",
        profiler="torch",
        profiler_version="2.8",
        workload="mnist_cnn",
        batch_size=64,
        mode="train",
        precision="fp32",
        device=CPU,
        status="ok",
        origin="synthetic",
        exit_code=0,
        reason=None,
        started_at="2026-11-20T10:00:00Z",
        duration_ns=2_000_000_000,
        artifact="perfctl-runs/b64/report.json",
        artifact_sha256="ab" * 32,
        report=report,
    )
    return replace(run, **changes)


def with_report(run: Run, **changes: Any) -> Run:
    """The run with other fields of its report."""
    return replace(run, report=replace(run.report, **changes))


def with_kernels(run: Run, change: Callable[[Kernel], Kernel]) -> Run:
    """The run with each of its kernels changed."""
    return with_report(run, kernels=[change(kernel) for kernel in run.report.kernels])


def study_of(*runs: Run) -> Study:
    """The one study that these runs make."""
    (study,) = group_into_studies(runs)
    return study


def cpu_run(number: int, batch: int) -> Run:
    """Three steps on the CPU: conv2 takes 2000 ns a sample each way, and block holds conv2 (self
    time 100 ns)."""
    ranges: list[Range] = []

    def put(name: str, start: int, duration: int, parent: int | None, step: int | None) -> int:
        facts = parse_range_name(name)._replace(step=step)._asdict()
        ranges.append(Range(len(ranges), name, None, start, duration, 7, None, parent, **facts))
        return len(ranges) - 1

    # warm-up, before the first step
    put("conv2:forward", 0, 999_999_999, None, None)
    for step in range(STEPS):
        start = 2_000_000_000 + step * 1_000_000_000
        duration = batch * (10_000 + 100 * step) + 1000
        whole = put(f"perfctl:step:{step}", start, duration, None, step)
        forward = put("perfctl:phase:forward", start + 1, batch * 3000, whole, step)
        put("conv1:forward", start + 2, batch * 500, forward, step)
        inside = start + 3 + batch * 500
        block = put("block:forward", inside, batch * 2000 + 100, forward, step)
        put("conv2:forward", inside + 1, batch * 2000, block, step)
        begin = start + batch * 3100
        backward = put("perfctl:phase:backward", begin, batch * 5000, whole, step)
        put("conv2:backward", start + batch * 3101, batch * 4000, backward, step)
        put("perfctl:phase:optimizer", start + batch * 9000, batch * 300, whole, step)
    steps = tuple(
        Step(step, "step", None, batch * (10_000 + 100 * step) + 1000) for step in range(STEPS)
    )
    operations = [
        Operation(
            "aten::convolution",
            "cpu_op",
            4 * STEPS,
            batch * 6000,
            batch * 200,
            None,
            None,
            None,
            "conv2",
            "forward",
        ),
        Operation(
            "aten::addmm",
            "cpu_op",
            2 * STEPS,
            batch * 600,
            batch * 500,
            None,
            4096,
            2 * macs("fc1", batch),
        ),
    ]
    return make_run(
        number,
        batch_size=batch,
        ranges=ranges,
        steps=steps,
        layer_calls=layer_calls(batch),
        operations=operations,
        memory=(
            MemoryFigure("peak", "host_resident", 500_000_000 + batch * 1_000_000),
            MemoryFigure("before", "host_resident", 400_000_000),
        ),
        environment={"torch": "2.8", "threads": "2"},
        artifact=f"perfctl-runs/b{batch}/report.json",
        gaps=(Gap("kernel", "not_collected", "the run was on a CPU"),),
        command=("python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", str(batch)),
    )


def gpu_kernels(batch: int, *, clock: float) -> list[Kernel]:
    """Per step: conv and gemm kernels of every layer, and one copy kernel that belongs to none."""
    kernels: list[Kernel] = []
    for step in range(STEPS):
        for layer in LAYERS:
            for direction in ("forward", "backward"):
                name = (
                    "volta_scudnn_128x64_relu_xregs_large_nn_v1"
                    if "conv" in layer
                    else "volta_sgemm_128x64_tn"
                )
                took = clock * (
                    2000 + macs(layer, batch) / 5000 * (2 if direction == "backward" else 1)
                )
                kernels.append(
                    Kernel(
                        len(kernels),
                        name,
                        name,
                        layer,
                        direction,
                        step,
                        "range",
                        None,
                        0,
                        7,
                        batch,
                        4,
                        1,
                        128,
                        1,
                        1,
                        128,
                        0,
                        0,
                        1000 * len(kernels),
                        int(took),
                    )
                )
        kernels.append(
            Kernel(
                len(kernels),
                "void copy_kernel<float>(float*)",
                "copy_kernel",
                step=step,
                duration_ns=int(500 * clock),
            )
        )
    return kernels


def fp_counters(
    launch: int, fadd: float, fmul: float, ffma: float, *, pipe: float | None = 0
) -> list[Counter]:
    """The counters of one launch that make its FLOPs: fp32 as given, fp64 and fp16 zero."""
    ops: dict[str, float] = {"fadd": fadd, "fmul": fmul, "ffma": ffma}
    ops |= dict.fromkeys(("dadd", "dmul", "dfma", "hadd", "hmul", "hfma"), 0)
    found = [
        Counter(launch, f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum", value, "inst")
        for op, value in ops.items()
    ]
    if pipe is not None:
        found.append(Counter(launch, "sm__inst_executed_pipe_tensor.sum", pipe, "inst"))
    return found


def gpu_pair(number: int, batch: int) -> list[Run]:
    """An nsys run and an ncu run: conv2 forward executes 0.5 of the paper's multiply-adds, all else
    exactly 1."""
    gpu = {
        "device": V100,
        "batch_size": batch,
        "layer_calls": layer_calls(batch),
        "origin": "recorded",
    }
    timed = gpu_kernels(batch, clock=1.0)
    steps = tuple(Step(step, "step", None, 20_000 + 900 * batch) for step in range(STEPS))
    nsys = make_run(
        number,
        profiler="nsys",
        profiler_version="2025.1",
        sweep_name="nsys-mnist",
        kernels=timed,
        steps=steps,
        memory=(
            MemoryFigure("peak", "allocated", 18_000_000 + batch * 500_000),
            MemoryFigure("peak", "reserved", 30_000_000 + batch * 600_000),
        ),
        **gpu,
    )
    slow = gpu_kernels(batch, clock=3.0)
    counters: list[Counter] = []
    for kernel in slow:
        if kernel.layer is None:
            counters += fp_counters(kernel.launch, 0, 0, 0)
            continue
        passes = 1 if kernel.direction == "forward" or kernel.layer == "conv1" else 2
        share = 0.5 if (kernel.layer, kernel.direction) == ("conv2", "forward") else 1
        counters += fp_counters(
            kernel.launch, 0, 0, int(passes * share * macs(kernel.layer, batch))
        )
    ncu = make_run(
        number + 100,
        profiler="ncu",
        profiler_version="2025.3",
        sweep_name="ncu-mnist",
        kernels=slow,
        counters=counters,
        **gpu,
    )
    return [nsys, ncu]


def gpu_sweep(*batches: int) -> list[Run]:
    """Return a run under nsys and one under ncu for each batch size."""
    return [run for number, batch in enumerate(batches, 1) for run in gpu_pair(number, batch)]


def failed_run(number: int, batch: int) -> Run:
    """A run that ran out of memory before anything was known."""
    return make_run(
        number,
        batch_size=batch,
        status="failed",
        exit_code=1,
        device=None,
        precision=None,
        artifact=None,
        artifact_sha256=None,
        reason="CUDA out of memory at batch 256; use a smaller batch",
    )


def foreign_run(number: int, **changes: Any) -> Run:
    """An ingested nsys file without layers: three kernels, a user's range, nothing on paper."""
    kernels = [
        Kernel(
            0, "gemm_v0<float>(float*, float*)", "gemm_v0", grid_x=8, start_ns=0, duration_ns=900
        ),
        Kernel(
            1,
            "gemm_v0<float>(float*, float*)",
            "gemm_v0",
            grid_x=8,
            start_ns=1000,
            duration_ns=1100,
        ),
        Kernel(2, "relu", None, start_ns=3000, duration_ns=500),
    ]
    fields: dict[str, Any] = {
        "profiler": "nsys",
        "workload": None,
        "batch_size": None,
        "mode": None,
        "precision": None,
        "origin": "ingested",
        "device": Device("NVIDIA A40", "gpu", compute_capability="8.6"),
        "kernels": kernels,
        "sweep_name": "ingest",
        "ranges": [Range(0, "my loop", None, -5, 4000, 1, 0, None)],
        "artifact": f"reports/foreign{number}.sqlite",
        "sweep_command": "perfctl ingest reports",
        "command": (),
    }
    return make_run(number, **(fields | changes))
