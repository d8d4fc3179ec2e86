"""The records that a profiler would leave of a draw's launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from effects import FUSED, Effect, Scene, Set
from kernels import Launch

from perfctl.orchestrator.estimate.flops.engine import estimate
from perfctl.records.report import Counter, Device, Gap, Kernel, Report, Step
from perfctl.records.run import Run

CHIPS = {
    "70": ("Tesla V100-SXM2-16GB", 80),
    "75": ("Tesla T4", 40),
    "80": ("NVIDIA A100-SXM4-40GB", 108),
    "86": ("NVIDIA GeForce RTX 3090", 82),
    "89": ("NVIDIA GeForce RTX 4090", 128),
    "90": ("NVIDIA H100 80GB HBM3", 132),
}


def run(
    scene: Scene, effects: Sequence[Effect], batch: int, index: int, found: Sequence[Launch]
) -> Run:
    """The run of one batch size as perfctl would have stored it."""
    act = Set(effects)
    numbered = (
        True if (effect := act.get("two_steps")) is None else bool(effect.settings["numbered"])
    )
    kernels = [
        Kernel(
            number,
            launch.name,
            None,
            launch.layer,
            launch.direction,
            0 if numbered else None,
            "range" if launch.layer else None,
            None,
            0,
            7,
            *launch.grid,
            128,
            1,
            1,
            64,
            0,
            0,
            1000 * number,
            2000 + launch.flops // 5000,
        )
        for number, launch in enumerate(found)
    ]
    counters = [
        counter
        for number, launch in enumerate(found)
        for counter in _counters(scene, number, launch)
    ]
    fused = {name for effect in effects if effect.name in FUSED for name, _ in effect.claims}
    ops = tuple(
        op
        for position, layer in enumerate(scene.network)
        for op in layer.ops(batch, position, scene.train, layer.name in fused)
    )
    name, processors = CHIPS[scene.chip]
    capability = f"{scene.chip[0]}.{scene.chip[1]}"
    device = Device(name, "gpu", compute_capability=capability, sm_count=processors)
    benchmark = act.get("benchmark")
    environment = {
        "torch": "2.8.0",
        "cuda": "12.8",
        "tf32_conv": "on" if scene.precision == "tf32" else "off",
        "tf32_matmul": "on" if scene.precision == "tf32" else "off",
        "cudnn_benchmark": "on" if benchmark and benchmark.settings["recorded"] else "off",
    }
    if benchmark and not benchmark.settings["recorded"]:
        del environment["cudnn_benchmark"]
    command: tuple[str, ...] = ("python", "train.py", "--batch-size", str(batch))
    if (effect := act.get("ddp_rank")) and effect.settings["told"]:
        environment["world_size"] = str(effect.settings["ranks"])
        command = ("torchrun", f"--nproc-per-node={effect.settings['ranks']}", *command[1:])
    if _told(act):  # the stored command is ncu's own, options included
        command = ("ncu", "--launch-count", str(len(found)), *command)
    gaps = []
    if act.get("fp8_missing"):
        metric = "sm__ops_path_tensor_src_fp8_e4m3_dst_fp32.sum"
        gaps.append(
            Gap(f"counter:{metric}", "not_available", "this chip's ncu does not know the metric")
        )
    mode = "train" if scene.train else "infer"
    tool = f"perfctl ncu simulated{' --launch-count ' + str(len(found)) if _told(act) else ''}"
    report = Report(
        "ncu",
        Path(f"b{batch}/ncu.csv"),
        "ncu CSV, long",
        tool_version=scene.ncu,
        devices=(device,),
        environment=environment,
        kernels=kernels,
        counters=counters,
        ops=ops,
        steps=(Step(0, "step", None, None),),
        gaps=tuple(gaps),
        workload="simulated",
        batch_size=batch,
        mode=mode,
        precision=scene.precision,
    )
    return Run(
        id=index + 1,
        sweep_id=1,
        sweep_name="simulated",
        sweep_command=tool,
        host="node1",
        profiler="ncu",
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
        artifact=f"b{batch}/ncu.csv",
        artifact_sha256=None,
        report=report,
        layer_calls=estimate(ops),
        command=command,
    )


def _told(act: Set) -> bool:
    effect = act.get("cut_off")
    return bool(effect and effect.settings["told"])


def _counters(scene: Scene, number: int, launch: Launch) -> Iterator[Counter]:
    if not launch.counted:
        return
    found, warps = launch.counts, launch.counts.get("moves", 0)
    values = {name: found.get(name, 0) for name in ("fadd", "fmul", "ffma", "hfma")}
    values["hfma"] += 32 * warps
    for name in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma"):
        yield Counter(
            number,
            f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum",
            values.get(name, 0),
            "inst",
        )
    tensor = found.get("tensor", 0)
    if scene.ncu >= "2023" and int(scene.chip) >= 80:
        for kind in ("tf32", "fp16", "bf16"):
            amount = tensor if kind == launch.kind else 0
            yield Counter(number, f"sm__ops_path_tensor_src_{kind}_dst_fp32.sum", amount, None)
    yield Counter(
        number, "sm__inst_executed_pipe_tensor.sum", tensor // launch.each + warps, "inst"
    )
