"""Simulated sweeps with known truth: kernels, grids and counters as the hardware's rules say,
worked out from dimensions.

The network is the MNIST CNN's four layers, a residual block's two convolutions and a projection.
Every scenario says what was done to which layer; ``truth`` says which rules must then be found, row
by row and for the sweep, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfctl.orchestrator.estimate.flops.engine import estimate
from perfctl.records.report import Counter, Device, Kernel, Report, Step, Summary
from perfctl.records.run import Run
from tests.make import simulated_kernels as kernels
from tests.make.simulated_kernels import BY_NAME, NAMES, NETWORK, Layer, Work, flops

BATCHES = (16, 32, 64, 128, 256)
STEPS = 2
V100 = Device("Tesla V100-SXM2-16GB", "gpu", compute_capability="7.0", sm_count=80)
A100 = Device("NVIDIA A100-SXM4-40GB", "gpu", compute_capability="8.0", sm_count=108)
NEWS = 0.005
"""A factor nearer to 1 than this is not worth a verdict."""
Place = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is done. ``forward`` maps a layer to its forward algorithm; layers without one execute
    paper exactly."""

    forward: dict[str, str] = field(default_factory=dict)
    """padding, winograd2, winograd4, fft, tf32, fp16, splitk, epilogue, layout, phantom."""
    recompute: tuple[str, ...] = ()
    """Layers whose forward kernels run again in backward."""
    shared: tuple[str, str] | None = None
    """(a, b): b's forward work is done in a's kernel."""
    switch: tuple[str, str, int] | None = None
    """(layer, algorithm, N): from batch N on."""
    window: int | None = None
    """The profiler saw this batch size whatever was asked for."""
    missing: str | None = None
    """Backward kernels that no range reached: "all", or "first" (layer)."""
    counters: str = "all"
    """all, "fadd" alone, "no tensor", or "old ncu", which counts tensor instructions and not
    their operations."""
    host_time: bool = False
    """conv2 was also timed with the host's clock, without a synchronise."""
    batches: tuple[int, ...] = BATCHES

    @property
    def device(self) -> Device:
        return A100 if {"tf32", "phantom"} & set(self.forward.values()) else V100


def forward_algorithm(scenario: Scenario, layer: Layer, batch: int) -> str:
    if (
        scenario.switch
        and scenario.switch[0] == layer.name
        and (scenario.window or batch) >= scenario.switch[2]
    ):
        return scenario.switch[1]
    return scenario.forward.get(layer.name, "exact")


def forward_works(scenario: Scenario, layer: Layer, batch: int, seen: int) -> list[Work]:
    if scenario.shared and layer.name == scenario.shared[1]:
        return []
    works: list[Work] = kernels.ALGORITHMS[forward_algorithm(scenario, layer, batch)](layer, seen)
    if scenario.shared and layer.name == scenario.shared[0]:
        (work,) = works
        other = BY_NAME[scenario.shared[1]].macs(seen)
        works = [replace(work, counts={**work.counts, "ffma": work.counts["ffma"] + other})]
    return works


def backward_works(scenario: Scenario, layer: Layer, batch: int, seen: int) -> list[Work]:
    again = forward_works(scenario, layer, batch, seen) if layer.name in scenario.recompute else []
    names = (
        ("dgrad2d_direct_kernel", "wgrad2d_direct_kernel")
        if isinstance(layer, kernels.Conv)
        else ("gemm_v0_nt", "gemm_v0_tn")
    )
    kept = names[1:] if layer.first else names
    return again + [
        kernels.gemm(f"void {name}<float>(float*)", (64, 1, 1), layer.macs(seen)) for name in kept
    ]


def step_works(scenario: Scenario, batch: int) -> Iterator[tuple[str | None, str | None, Work]]:
    """(layer, direction, launch) of one step, in order; without a layer where no range
    reached it."""
    seen = scenario.window or batch
    for layer in NETWORK:
        for work in forward_works(scenario, layer, batch, seen):
            yield layer.name, "forward", work
    for layer in reversed(NETWORK):
        lost = scenario.missing == "all" or (scenario.missing == "first" and layer.first)
        for work in backward_works(scenario, layer, batch, seen):
            yield (None, None, work) if lost else (layer.name, "backward", work)


def counters(scenario: Scenario, launch: int, counts: dict[str, int]) -> Iterator[Counter]:
    def op(name: str, value: int) -> Counter:
        return Counter(
            launch, f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum", value, "inst"
        )

    if scenario.counters == "fadd":
        yield op("fadd", counts.get("fadd", 0))
        return
    for name in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma"):
        yield op(name, counts.get(name, 0))
    if scenario.counters == "no tensor":
        return
    if (
        scenario.counters != "old ncu"
        and "tf32" in scenario.forward.values()
        and "phantom" not in scenario.forward.values()
    ):
        yield Counter(
            launch, "sm__ops_path_tensor_src_tf32_dst_fp32.sum", counts.get("tf32", 0), None
        )
        yield Counter(launch, "sm__ops_path_tensor_src_fp16_dst_fp32.sum", 0, None)
        yield Counter(launch, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", 0, None)
    yield Counter(launch, "sm__inst_executed_pipe_tensor.sum", counts.get("pipe", 0), "inst")


def make_runs(scenario: Scenario) -> list[Run]:
    """An ncu run with counters and an nsys run with times for every batch size."""
    runs = []
    for batch in scenario.batches:
        runs += [
            _run(scenario, batch, "ncu", len(runs) + 1),
            _run(scenario, batch, "nsys", len(runs) + 2),
        ]
    return runs


def _run(scenario: Scenario, batch: int, profiler: str, number: int) -> Run:
    launches: list[Kernel] = []
    found: list[Counter] = []
    for step in range(STEPS):
        for layer, direction, work in step_works(scenario, batch):
            launch = len(launches)
            took = 3000 + flops([work]) // 5000
            launches.append(
                Kernel(
                    launch,
                    work.name,
                    None,
                    layer,
                    direction,
                    step,
                    "range" if layer else None,
                    None,
                    0,
                    7,
                    *work.grid,
                    128,
                    1,
                    1,
                    64,
                    0,
                    0,
                    1000 * launch,
                    took,
                )
            )
            if profiler == "ncu":
                found += counters(scenario, launch, work.counts)
    ops = tuple(op for position, layer in enumerate(NETWORK) for op in layer.ops(batch, position))
    words = set(scenario.forward.values())
    precision = "fp16" if "fp16" in words else "fp32"
    environment = {"tf32_conv": "on" if "tf32" in words else "off", "torch": "2.8"}
    report = Report(
        profiler,
        Path(f"b{batch}/report"),
        "simulated",
        devices=(scenario.device,),
        environment=environment,
        kernels=launches,
        counters=found,
        ops=ops,
        steps=tuple(Step(step, "step", None, None) for step in range(STEPS)),
        summaries=(Summary("host_time:conv2:forward", 370_000 + 100 * batch, "ns"),)
        if scenario.host_time
        else (),
    )
    return Run(
        id=number,
        sweep_id=1,
        sweep_name="simulated",
        sweep_command="perfctl ncu simulated",
        host="node1",
        profiler=profiler,
        profiler_version="2025.3",
        workload="simulated",
        batch_size=batch,
        mode="train",
        precision=precision,
        device=scenario.device,
        status="ok",
        origin="synthetic",
        exit_code=0,
        reason=None,
        started_at=None,
        duration_ns=None,
        artifact=f"b{batch}/report",
        artifact_sha256=None,
        report=report,
        layer_calls=estimate(ops),
    )


def truth(scenario: Scenario) -> tuple[dict[Place, set[str]], set[str]]:
    """Rules that must be found, by ledger row and for the sweep; rows without any are left out."""
    rows: dict[Place, set[str]] = {}
    for batch in scenario.batches:
        for layer in NETWORK:
            rows[batch, layer.name, "forward"] = _forward_truth(scenario, layer, batch)
            lost = scenario.missing == "all" or (scenario.missing == "first" and layer.first)
            if lost:
                directions = ("grad_weight",) if layer.first else ("grad_input", "grad_weight")
                rows |= {
                    (batch, layer.name, direction): {"direction missing"}
                    for direction in directions
                }
            else:
                rows[batch, layer.name, "backward"] = _backward_truth(scenario, layer, batch)
    return {place: rules for place, rules in rows.items() if rules}, _sweep_truth(scenario)


def _forward_truth(scenario: Scenario, layer: Layer, batch: int) -> set[str]:
    seen = scenario.window or batch
    works = forward_works(scenario, layer, batch, seen)
    if scenario.shared and layer.name == scenario.shared[1]:
        return {"shared kernel"} if scenario.counters != "fadd" else {"direction missing"}
    said = _of_counters(scenario, works) | _of_window(scenario, works, batch)
    algorithm = forward_algorithm(scenario, layer, batch)
    if algorithm in ("tf32", "fp16") and scenario.counters != "fadd":
        said.add({"tf32": "TF32", "fp16": "tensor cores"}[algorithm])
    if algorithm == "phantom" and scenario.counters != "fadd":
        said.add("constant moves")
    if scenario.counters == "fadd" or (
        scenario.counters == "no tensor" and algorithm in ("tf32", "fp16")
    ):
        return said
    if scenario.shared and layer.name == scenario.shared[0]:
        said.add("shared kernel")
    paper = 2 * layer.macs(seen)
    main = sum(
        2 * work.counts.get("ffma", 0)
        for work in works
        if work.name.startswith(("volta_s", "volta_g"))
    )
    if algorithm == "padding" and abs(main / paper - 1) > NEWS:
        said.add("tile padding")
    if algorithm in ("winograd2", "winograd4"):
        said.add("Winograd")
    if algorithm == "fft":
        said.add("FFT")
    if algorithm == "splitk" and main / paper - 1 > NEWS:
        said.add("tile padding")  # a matrix tile of 64 rows at small batches
    beside = flops(works) - main
    if algorithm == "splitk" and beside / main > NEWS:
        said.add("split-K")
    if algorithm in ("epilogue", "layout") and (flops(works) - paper) / paper > NEWS:
        said.add("layout and epilogue")
    return said


def _backward_truth(scenario: Scenario, layer: Layer, batch: int) -> set[str]:
    seen = scenario.window or batch
    works = backward_works(scenario, layer, batch, seen)
    said = _of_counters(scenario, works) | _of_window(scenario, works, batch)
    again = forward_works(scenario, layer, batch, seen) if layer.name in scenario.recompute else []
    if again and scenario.counters != "fadd":
        algorithm = forward_algorithm(scenario, layer, batch)
        if not (scenario.counters == "no tensor" and algorithm in ("tf32", "fp16")):
            said.add("recomputation")
        if algorithm == "phantom":
            said.add("constant moves")
    return said


def _of_counters(scenario: Scenario, works: list[Work]) -> set[str]:
    if scenario.counters == "fadd":
        return {"FADD alone"}
    return {"counter not collected"} if scenario.counters == "no tensor" and works else set()


def _of_window(scenario: Scenario, works: list[Work], batch: int) -> set[str]:
    wrong = scenario.window not in (None, batch) and _batch_shows(scenario)
    return {"wrong window"} if wrong and _collected(scenario, works) else set()


def _collected(scenario: Scenario, works: list[Work]) -> int:
    """Sum of the counts that were collected."""
    names = {
        "all": None,
        "old ncu": None,
        "fadd": ("fadd",),
        "no tensor": ("fadd", "fmul", "ffma", "hfma"),
    }[scenario.counters]
    return sum(
        value
        for work in works
        for count, value in work.counts.items()
        if names is None or count in names
    )


def _batch_shows(scenario: Scenario) -> bool:
    """Whether counts say which batch it was: FFMA does, one a multiply-add; FADD where a bias is
    added, one an output."""
    if scenario.counters != "fadd":
        return True
    return any(scenario.forward.get(name) == "epilogue" for name in NAMES)


def _sweep_truth(scenario: Scenario) -> set[str]:
    said = set()
    if scenario.missing:
        said.add("direction missing")
    batch = scenario.batches[-1]
    works = [work for layer, _, work in step_works(scenario, batch) if layer]
    if scenario.window and _collected(scenario, works):
        said |= {"wrong window", "time does not follow"}
    if scenario.host_time:
        said.add("time does not follow")
    if scenario.shared and scenario.counters == "fadd":
        said.add("direction missing")
    if (
        scenario.switch
        and not scenario.window
        and scenario.batches[0] < scenario.switch[2] <= batch
    ):
        said.add("algorithm switch")
    return said
