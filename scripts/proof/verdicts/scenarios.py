"""Sweeps of one known network, the quick form of the simulator: every scenario says what was done
to which layer, and ``find_rules`` says which rules must then find it, row by row and for the sweep,
and no other.

The network has the MNIST CNN's four layers, a residual block's two convolutions and a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from random import Random
from typing import Any

from perfctl.records.report import Summary
from perfctl.records.run import Run
from scripts.proof.verdicts import effects
from scripts.proof.verdicts.kernels import Family, Kernel, Launch, families
from scripts.proof.verdicts.launches import ELEMENTWISE, NATIVE
from scripts.proof.verdicts.networks import BACKWARD, FORWARD, Conv, Layer, Linear, Network, Scene
from scripts.proof.verdicts.records import count, make_run

Place = tuple[int, str, str]
"""Batch size, layer, direction."""
NETWORK: Network = (
    Conv("conv1", True, True, 1, 32, 3, 28),
    Conv("conv2", False, True, 32, 64, 3, 26),
    Conv("block.conv_a", False, True, 64, 64, 3, 56, padding=1),
    Conv("block.conv_b", False, True, 64, 64, 3, 56, padding=1),
    Linear("proj", False, True, 512, 128, rows=4),
    Linear("fc1", False, True, 9216, 128),
    Linear("fc2", False, True, 128, 10),
)
BY_NAME = {layer.name: layer for layer in NETWORK}
BATCHES = (16, 32, 64, 128, 256)
STEPS = 2
FACTOR_MIN = 0.005
"""A factor nearer to 1 than this is not worth a cause."""
SGEMM = Family("volta_sgemm_{m}x{n}_{o}", (), 8)
TF32 = Kernel(families("80", "tf32", "conv")[1], (128, 64))
FP16 = Kernel(replace(families("70", "fp16", "conv")[0], step=1), (128, 64))
SCUDNN = Family("volta_scudnn_{m}x{n}_relu_medium_nn_v1", (), 8)
RULES = {
    "winograd2": "Winograd",
    "winograd4": "Winograd",
    "fft": "FFT",
    "tf32": "TF32",
    "fp16": "tensor cores",
    "phantom": "constant moves",
}
"""Algorithm -> rule that finds it in any counters that tell it."""
EITHER = ("padding", "phantom")
CONVOLUTIONS = (*EITHER, "winograd2", "winograd4", "fft", "tf32", "fp16")
MIXES = {
    "conv1": (*EITHER, "epilogue", "layout"),
    "conv2": CONVOLUTIONS,
    "block.conv_a": (*CONVOLUTIONS, "layout"),
    "block.conv_b": CONVOLUTIONS,
    "proj": (*EITHER, "splitk"),
    "fc1": EITHER,
    "fc2": (*EITHER, "epilogue"),
}
"""Layer -> algorithms that a mix draws from."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is done. ``forward`` maps a layer to its forward algorithm; layers without one execute
    what the formula requires."""

    forward: dict[str, str] = field(default_factory=dict)
    """Names of ``ALGORITHMS``."""
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
    def scene(self) -> Scene:
        words = set(self.forward.values())
        chip = "80" if words & {"tf32", "phantom"} else "70"
        is_old = "phantom" in words or self.counters == "old ncu"
        precision, version = "fp16" if "fp16" in words else "fp32", "2022.3" if is_old else "2025.3"
        return Scene(0, NETWORK, self.batches, chip, precision, True, version, False)

    @property
    def collected(self) -> str:
        """Return what the names of all collected counters contain."""
        return {"fadd": "_op_fadd_", "no tensor": "smsp__"}.get(self.counters, "")

    def algorithm(self, layer: Layer, batch: int) -> str:
        if self.switch and self.switch[0] == layer.name and batch >= self.switch[2]:
            return self.switch[1]
        return self.forward.get(layer.name, "exact")

    def is_lost(self, layer: Layer) -> bool:
        """Return whether no range reached the layer's backward kernels."""
        return self.missing == "all" or (self.missing == "first" and layer.first)

    def is_second(self, layer: Layer) -> bool:
        """Return whether another layer's kernel does the layer's forward work."""
        return self.shared is not None and layer.name == self.shared[1]


def draw_scenario(seed: int) -> Scenario:
    """Return random algorithms for every layer, with every kind of trouble on top; one chip and one
    set of counters a sweep."""
    random = Random(seed)  # noqa: S311 - reproducible draws, no secrets
    forward = {name: random.choice((None, *algorithms)) for name, algorithms in MIXES.items()}
    words = set(forward.values())
    banned = {"tf32", "phantom"} if "fp16" in words else {"phantom"} if "tf32" in words else set()
    chosen = {name: word for name, word in forward.items() if word and word not in banned}
    scenario = Scenario(
        forward=chosen,
        recompute=tuple(random.sample(sorted(BY_NAME), random.randrange(3))),
        missing=random.choice((None, None, "all", "first")),
        window=random.choice((None, None, 1000, 64)),
        counters=random.choice(("all", "all", "fadd", "no tensor")),
        batches=tuple(sorted(random.sample(BATCHES, random.choice((2, 3))))),
    )
    if not {"block.conv_a", "block.conv_b"} & set(chosen) and random.random() < 0.5:
        scenario = replace(scenario, shared=("block.conv_a", "block.conv_b"))
    if "conv2" not in chosen and random.random() < 0.5:
        algorithm = random.choice(("winograd2", "winograd4", "fft", "padding"))
        scenario = replace(scenario, switch=("conv2", algorithm, random.choice(BATCHES[1:])))
    return scenario


# Algorithms


def realise(name: str, layer: Layer, batch: int, **settings: Any) -> list[Launch]:
    """Return the launches of an algorithm that the large simulator has too."""
    scene = Scenario().scene
    return effects.ALGORITHMS[name](effects.Task(scene, layer, FORWARD, batch, settings))


def exact(layer: Layer, batch: int) -> list[Launch]:
    word = "conv2d_direct_kernel" if isinstance(layer, Conv) else "gemm_v0"
    grid = (ceil(layer.outputs(batch) / 256), 1, 1)
    return [Launch(f"void {word}<float>(float*)", grid, {"ffma": layer.macs(batch)})]


def padding(layer: Layer, batch: int) -> list[Launch]:
    """A tile that the shape does not fill."""
    is_conv = isinstance(layer, Conv)
    kernel = Kernel(SCUDNN, (128, 128)) if is_conv else Kernel(SGEMM, (128, 64))
    return realise("padding", layer, batch, kernel=kernel)


def fft(layer: Any, batch: int) -> list[Launch]:
    """Tiles of 32 x 32 points, with complex products that need no padding."""
    launches = realise("fft", layer, batch, side=32, flips=False)
    products = layer.cin * layer.cout * (launches[0].grid[0] // layer.cin)
    launches[2].counts = {"ffma": products * 32 * 17 * 4}
    return launches


def epilogue(layer: Layer, batch: int) -> list[Launch]:
    name = NATIVE + ELEMENTWISE["bias"][0]
    return [*exact(layer, batch), Launch(name, (64, 1, 1), {"fadd": layer.outputs(batch)})]


def layout(layer: Layer, batch: int) -> list[Launch]:
    head, type_ = "void cudnn::ops::", "(cudnnKernelDataType_t)"
    there = f"{head}nchwToNhwcKernel<float, float, float, false, true, {type_}2>(int)"
    back = f"{head}nhwcToNchwKernel<float, float, float, true, false, {type_}0>(int)"
    return [
        Launch(there, (64, 1, 1), {"fmul": layer.inputs(batch)}),
        *exact(layer, batch),
        Launch(back, (64, 1, 1), {"fmul": layer.outputs(batch)}),
    ]


def phantom(layer: Layer, batch: int) -> list[Launch]:
    """Constants moved by HFMA2 on the tensor pipe: 4 a warp."""
    (launch,) = exact(layer, batch)
    launch.counts["moves"] = 4 * launch.grid[0] * 8
    return [launch]


ALGORITHMS: dict[str, Callable[[Any, int], list[Launch]]] = {
    "exact": exact,
    "padding": padding,
    "winograd2": partial(realise, "winograd2", tiles=(1, 4, 8)),
    "winograd4": partial(realise, "winograd4", tile=(128, 64)),
    "fft": fft,
    "tf32": partial(realise, "padding", kernel=TF32),
    "fp16": partial(realise, "padding", kernel=FP16),
    "splitk": partial(realise, "split_k", kernel=Kernel(SGEMM, (64, 64)), slices=16),
    "epilogue": epilogue,
    "layout": layout,
    "phantom": phantom,
}

# Launches and records


def run_forward(scenario: Scenario, layer: Layer, batch: int) -> list[Launch]:
    if scenario.is_second(layer):
        return []
    launches = ALGORITHMS[scenario.algorithm(layer, batch)](layer, batch)
    if scenario.shared and layer.name == scenario.shared[0]:
        launches[0].counts["ffma"] += BY_NAME[scenario.shared[1]].macs(batch)
    return launches


def run_backward(scenario: Scenario, layer: Layer, batch: int) -> list[Launch]:
    again = run_forward(scenario, layer, batch) if layer.name in scenario.recompute else []
    names = (
        ("dgrad2d_direct_kernel", "wgrad2d_direct_kernel")
        if isinstance(layer, Conv)
        else ("gemm_v0_nt", "gemm_v0_tn")
    )
    return again + [
        Launch(f"void {name}<float>(float*)", (64, 1, 1), {"ffma": layer.macs(batch)})
        for name in (names[1:] if layer.first else names)
    ]


def run_step(scenario: Scenario, batch: int) -> list[Launch]:
    """Return the launches of one step, in order; without a layer where no range reached them."""
    launches = []
    for layer in NETWORK:
        for launch in run_forward(scenario, layer, batch):
            launches.append(replace(launch, layer=layer.name, direction=FORWARD))
    for layer in reversed(NETWORK):
        for launch in run_backward(scenario, layer, batch):
            reached = (
                {} if scenario.is_lost(layer) else {"layer": layer.name, "direction": BACKWARD}
            )
            launches.append(replace(launch, **reached))
    return launches


def make_runs(scenario: Scenario) -> list[Run]:
    """Return an ncu run with counters and an nsys run with times for every batch size."""
    environment = {"tf32_conv": "on" if "tf32" in scenario.forward.values() else "off"}
    runs: list[Run] = []
    for batch in scenario.batches:
        once = run_step(scenario, scenario.window or batch)
        launches = [replace(launch, step=step) for step in range(STEPS) for launch in once]
        host = Summary("host_time:conv2:forward", 370_000 + 100 * batch, "ns")
        for profiler in ("ncu", "nsys"):
            runs.append(
                make_run(
                    scenario.scene,
                    batch,
                    len(runs) + 1,
                    launches,
                    environment,
                    profiler=profiler,
                    collected=scenario.collected,
                    summaries=(host,) if scenario.host_time else (),
                )
            )
    return runs


# The truth


def find_rules(scenario: Scenario) -> tuple[dict[Place, set[str]], set[str]]:
    """Return the rules that must be found, by ledger row and for the sweep; rows without any are
    left out."""
    rows: dict[Place, set[str]] = {}
    for batch in scenario.batches:
        for layer in NETWORK:
            rows[batch, layer.name, FORWARD] = find_forward_rules(scenario, layer, batch)
            if scenario.is_lost(layer):
                for direction in ("grad_input", "grad_weight")[layer.first :]:
                    rows[batch, layer.name, direction] = {"direction missing"}
            else:
                rows[batch, layer.name, BACKWARD] = find_backward_rules(scenario, layer, batch)
    return {place: rules for place, rules in rows.items() if rules}, find_sweep_rules(scenario)


def find_forward_rules(scenario: Scenario, layer: Layer, batch: int) -> set[str]:
    has_ffma = scenario.counters != "fadd"
    if scenario.is_second(layer):
        return {"shared kernel"} if has_ffma else {"direction missing"}
    seen = scenario.window or batch
    launches, algorithm = run_forward(scenario, layer, seen), scenario.algorithm(layer, seen)
    rules = find_capture_rules(scenario, launches, batch)
    is_tensor = algorithm in ("tf32", "fp16")
    if is_tensor and not has_ffma:  # FFMA would not have shown its multiply-adds either
        rules = rules - {"FADD alone"} | {"counter not collected"}
    if not has_ffma or (scenario.counters == "no tensor" and is_tensor):
        return rules | ({RULES[algorithm]} if has_ffma else set())
    if algorithm in RULES:
        rules.add(RULES[algorithm])
    if scenario.shared and layer.name == scenario.shared[0]:
        rules.add("shared kernel")
    estimated = 2 * layer.macs(seen)
    main = sum(
        2 * launch.counts.get("ffma", 0)
        for launch in launches
        if launch.name.startswith(("volta_s", "volta_g"))
    )
    beside = sum(launch.flops for launch in launches) - main
    # a matrix tile of 64 rows is not filled at small batches either
    if algorithm in ("padding", "splitk") and abs(main / estimated - 1) > FACTOR_MIN:
        rules.add("tile padding")
    if algorithm == "splitk" and beside / main > FACTOR_MIN:
        rules.add("split-K")
    if algorithm in ("epilogue", "layout") and beside / estimated - 1 > FACTOR_MIN:
        rules.add("layout and epilogue")
    return rules


def find_backward_rules(scenario: Scenario, layer: Layer, batch: int) -> set[str]:
    seen = scenario.window or batch
    rules = find_capture_rules(scenario, run_backward(scenario, layer, seen), batch)
    is_again = layer.name in scenario.recompute and not scenario.is_second(layer)
    if is_again and scenario.counters != "fadd":
        algorithm = scenario.algorithm(layer, seen)
        if not (scenario.counters == "no tensor" and algorithm in ("tf32", "fp16")):
            rules.add("recomputation")
        if algorithm == "phantom":
            rules.add("constant moves")
    return rules


def find_capture_rules(scenario: Scenario, launches: list[Launch], batch: int) -> set[str]:
    """Return the rules about the counters and the window that a row's launches show."""
    words = {"fadd": {"FADD alone"}, "no tensor": {"counter not collected"} if launches else set()}
    rules = set(words.get(scenario.counters, ()))
    # FFMA says which batch it was, one a multiply-add; FADD where a bias is added, one an output
    shows = scenario.counters != "fadd" or "epilogue" in scenario.forward.values()
    if scenario.window not in (None, batch) and shows and is_counted(scenario, launches):
        rules.add("wrong window")
    return rules


def is_counted(scenario: Scenario, launches: Iterable[Launch]) -> bool:
    scene, collected = scenario.scene, scenario.collected
    return any(
        counter.value for launch in launches for counter in count(scene, 0, launch, collected)
    )


def find_sweep_rules(scenario: Scenario) -> set[str]:
    has_ffma, last = scenario.counters != "fadd", scenario.batches[-1]
    rules = set()
    if scenario.missing or (scenario.shared and not has_ffma):
        rules.add("direction missing")
    seen = [launch for launch in run_step(scenario, scenario.window or last) if launch.layer]
    if scenario.window and is_counted(scenario, seen):
        rules |= {"wrong window", "time does not follow"}
    if scenario.host_time:
        rules.add("time does not follow")
    if scenario.switch and not scenario.window and scenario.batches[0] < scenario.switch[2] <= last:
        rules.add("algorithm switch")
    return rules
