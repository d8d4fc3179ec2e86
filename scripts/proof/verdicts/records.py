"""The records that a profiler would leave of a draw's launches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops
from perfctl.records.report import Counter, Device, Gap, Kernel, Report, Step, Summary
from perfctl.records.run import Run
from scripts.proof.verdicts.effects import FUSED, Effect
from scripts.proof.verdicts.kernels import Launch
from scripts.proof.verdicts.networks import FORWARD, Scene

CHIPS = {
    "70": ("Tesla V100-SXM2-16GB", 80),
    "75": ("Tesla T4", 40),
    "80": ("NVIDIA A100-SXM4-40GB", 108),
    "86": ("NVIDIA GeForce RTX 3090", 82),
    "89": ("NVIDIA GeForce RTX 4090", 128),
    "90": ("NVIDIA H100 80GB HBM3", 132),
}
"""Compute capability without the point -> device and number of its SMs."""


def record(
    scene: Scene, effects: Sequence[Effect], batch: int, index: int, launches: Sequence[Launch]
) -> Run:
    """Return the run of one batch size as perfctl would have stored it."""
    acting = {effect.name: effect.settings for effect in effects}
    fused = {name for effect in effects if effect.name in FUSED for name, _ in effect.claims}
    environment = {
        "torch": "2.8.0",
        "cuda": "12.8",
        "tf32_conv": "on" if scene.precision == "tf32" else "off",
        "tf32_matmul": "on" if scene.precision == "tf32" else "off",
    }
    benchmark = acting.get("benchmark")
    if benchmark is None or benchmark["recorded"]:
        environment["cudnn_benchmark"] = "on" if benchmark else "off"
    command: tuple[str, ...] = ("python", "train.py", "--batch-size", str(batch))
    if (ddp := acting.get("ddp_rank")) and ddp["told"]:
        environment["world_size"] = str(ddp["ranks"])
        command = ("torchrun", f"--nproc-per-node={ddp['ranks']}", *command[1:])
    if (parallel := acting.get("tensor_parallel")) and parallel["told"]:
        environment["world_size"] = str(parallel["number"])
    limit: tuple[str, ...] = ()
    if (cut := acting.get("cut_off")) and cut["told"]:
        # the stored command is ncu's own, options included
        limit = ("--launch-count", str(len(launches)))
        command = ("ncu", *limit, *command)
        environment["ncu:left_out"] = limit[0]
    gaps = []
    if "fp8_missing" in acting:
        metric = "sm__ops_path_tensor_src_fp8_e4m3_dst_fp32.sum"
        gaps.append(
            Gap(f"counter:{metric}", "not_available", "this chip's ncu does not know the metric")
        )
    if not acting.get("two_steps", {}).get("numbered", True):
        launches = [replace(launch, step=None) for launch in launches]
    return make_run(
        scene,
        batch,
        index + 1,
        launches,
        environment,
        fused=fused,
        gaps=tuple(gaps),
        command=command,
        sweep_command=" ".join(("perfctl ncu simulated", *limit)),
    )


def make_run(
    scene: Scene,
    batch: int,
    number: int,
    launches: Sequence[Launch],
    environment: dict[str, str],
    *,
    profiler: str = "ncu",
    collected: str = "",
    fused: Set[str] = frozenset(),
    gaps: tuple[Gap, ...] = (),
    summaries: tuple[Summary, ...] = (),
    command: tuple[str, ...] = (),
    sweep_command: str = "perfctl ncu simulated",
) -> Run:
    """Return a run with one kernel for each launch, with counters where ncu took it; ``collected``:
    what the names of all collected counters contain."""
    kernels, counters = [], []
    for index, launch in enumerate(launches):
        kernels.append(
            Kernel(
                index,
                launch.name,
                None,
                launch.layer,
                launch.direction,
                launch.step,
                "range" if launch.layer else None,
                None,
                launch.device,
                7,
                *launch.grid,
                128,
                1,
                1,
                64,
                0,
                0,
                1000 * index,
                2000 + launch.flops // 5000,
                launch.process,
            )
        )
        if profiler == "ncu" and launch.counted:
            counters += count(scene, index, launch, collected)
    ops = tuple(
        op
        for position, layer in enumerate(scene.network)
        for op in layer.ops(batch, position, layer.name in fused)
        if scene.train or op.direction == FORWARD
    )
    name, processors = CHIPS[scene.chip]
    device = Device(name, "gpu", compute_capability=".".join(scene.chip), sm_count=processors)
    steps = sorted({launch.step or 0 for launch in launches})
    mode = "train" if scene.train else "infer"
    artifact = f"b{batch}/{profiler}.csv"
    report = Report(
        profiler,
        Path(artifact),
        "ncu CSV, long",
        tool_version=scene.ncu,
        devices=(device,),
        environment=environment,
        kernels=kernels,
        counters=counters,
        ops=ops,
        steps=tuple(Step(step, "step", None, None) for step in steps),
        gaps=gaps,
        summaries=summaries,
        workload="simulated",
        batch_size=batch,
        mode=mode,
        precision=scene.precision,
    )
    return Run(
        id=number,
        sweep_id=1,
        sweep_name="simulated",
        sweep_command=sweep_command,
        host="node1",
        profiler=profiler,
        profiler_version=scene.ncu,
        workload="simulated",
        batch_size=batch,
        mode=mode,
        precision=scene.precision,
        device=device,
        status="ok",
        origin="synthetic",
        exit_code=0,
        reason=None,
        started_at=None,
        duration_ns=None,
        artifact=artifact,
        artifact_sha256=None,
        report=report,
        layer_calls=build_layer_calls_with_flops(ops),
        command=command,
    )


def count(scene: Scene, index: int, launch: Launch, collected: str = "") -> list[Counter]:
    """Return what the chip's counters show of a launch."""
    warps, tensor = launch.counts.get("moves", 0), launch.counts.get("tensor", 0)
    values = launch.counts | {"hfma": launch.counts.get("hfma", 0) + 32 * warps}
    counters = [
        Counter(
            index,
            f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum",
            values.get(name, 0),
            "inst",
        )
        for name in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma")
    ]
    if scene.ncu >= "2023" and scene.is_ampere:
        for kind in ("tf32", "fp16", "bf16"):
            operations, metric = tensor * (kind == launch.kind), f"sm__ops_path_tensor_src_{kind}"
            counters.append(Counter(index, f"{metric}_dst_fp32.sum", operations, None))
    instructions = tensor // launch.each + warps
    counters.append(Counter(index, "sm__inst_executed_pipe_tensor.sum", instructions, "inst"))
    return [counter for counter in counters if collected in counter.name]
