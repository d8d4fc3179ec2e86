"""What is launched in a capture: forward, backward and optimizer of every step, as the effects
change them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from scripts.proof.verdicts.conflicts import (
    find_claim,
    imitate,
    list_places,
    narrow,
    run_sizes,
    scale,
)
from scripts.proof.verdicts.effects import ALGORITHMS, FUSED, Effect, Task, attention, usual
from scripts.proof.verdicts.kernels import Launch, direct, select, tiled
from scripts.proof.verdicts.networks import (
    BACKWARD,
    FORWARD,
    Attention,
    Claim,
    Conv,
    Layer,
    Lstm,
    Scene,
)

ONCE = {"times": 1}
NATIVE = "void at::native::"
ELEMENTWISE: dict[str, tuple[str, dict[str, int]]] = {
    "bias": (
        "elementwise_kernel<128, 2, at::native::gpu_kernel_impl"
        "<at::native::CUDAFunctor_add<float>>>(int, at::native::CUDAFunctor_add<float>)",
        {"ffma": 1},
    ),
    "dropout": (
        "(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, "
        "bool>(int)",
        {"fmul": 2},
    ),
    "batch_norm": (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, "
        "1>(cudnnTensorStruct, float const*)",
        {"fadd": 3, "ffma": 2},
    ),
    "fake_quant": (
        "vectorized_elementwise_kernel<4, at::native::fake_quantize_tensor_cachemask_kernel_cuda"
        "(at::TensorIteratorBase&)::{lambda()#1}>(int)",
        {"ffma": 2, "fmul": 1},
    ),
    "gelu": (
        "vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
        "(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}>(int)",
        {"ffma": 9, "fmul": 3},
    ),
    "scale": (
        "vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
        "at::native::binary_internal::MulFunctor<float>>, at::detail::Array<char*, 2>>(int)",
        {"fmul": 1},
    ),
}
"""Elementwise kernel -> its name, and what it executes for each value."""


def capture(scene: Scene, effects: Iterable[Effect], batch: int) -> list[Launch]:
    """Return all launches of the capture, in order, attributed as the profiler sees it."""
    effects = tuple(effects)
    acting = {effect.name: effect.settings for effect in effects}
    steps = acting.get("two_steps", ONCE)["times"]
    micro_batches = acting.get("accumulation", ONCE)["times"]
    seen = batch * acting.get("larger_batch", ONCE)["times"]
    if settings := acting.get("ddp_rank"):
        seen //= settings["ranks"]
    if settings := acting.get("pads_batch"):
        seen = ceil(seen / settings["unit"]) * settings["unit"]
    if settings := acting.get("tensor_parallel"):
        scene = narrow(scene, settings["number"])
    if settings := acting.get("halves"):
        seen //= settings["number"]
    trains = scene.train and "eval_profiled" not in acting
    launches = []
    sizes, places = run_sizes(effects) or (1,), list_places(effects)
    for number, share in enumerate(sizes):
        step = Step(scene, effects, acting, round(seen * share), number)
        once = step.forward() + (step.backward() if trains else [])
        once = once * micro_batches + (optimize(scene) if trains else [])
        for device, process in places:
            launches += [
                replace(launch, step=number, device=launch.device or device, process=process)
                for launch in once * steps
            ]
    if settings := acting.get("scaled"):
        launches = [scale(launch, settings["number"]) for launch in launches]
    if settings := acting.get("cut_off"):
        launches = launches[: max(1, round(len(launches) * settings["share"]))]
    attribute(launches, acting)
    if settings := acting.get("counters_missing"):
        random = scene.random("counters", batch)
        for launch in launches:
            launch.counted = random.random() >= settings["share"]
    return launches


def attribute(launches: list[Launch], acting: dict[str, dict[str, Any]]) -> None:
    """Change which layer the launches are attributed to where an effect confuses it."""
    if settings := acting.get("swapped"):
        a, b = settings["pair"]
        other = {a: b, b: a}
        for launch in launches:
            if launch.layer in other and settings["way"] in ("all", launch.direction):
                launch.layer = other[launch.layer]
    if settings := acting.get("dgrad_loose"):
        lost = ("dgrad", "wgrad") if settings["part"] == "both" else ("dgrad",)
        for launch in launches:
            if launch.layer in settings["layers"] and launch.part in lost:
                launch.layer = launch.direction = None


def optimize(scene: Scene) -> list[Launch]:
    name = (
        f"{NATIVE}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<2>, at::native::(anonymous "
        "namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)"
    )
    size = sum(layer.parameters for layer in scene.network)
    grid = (ceil(max(size, 1) / 65536), 1, 1)
    return [Launch(name, grid, {"ffma": size}, direction="optimizer", part="other")]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward and backward of a batch."""

    scene: Scene
    effects: tuple[Effect, ...]
    acting: dict[str, dict[str, Any]]
    """Effect -> its settings."""
    batch: int
    number: int = 0
    """Of the recorded steps."""

    def times(self, name: str, layer: Layer) -> int:
        """Return how often the layer runs by an effect that repeats one layer."""
        settings = self.acting.get(name, {})
        return settings["times"] if settings.get("layer") == layer.name else 1

    def forward(self) -> list[Launch]:
        activation = (
            f"{NATIVE}vectorized_elementwise_kernel<4, at::native::(anonymous "
            "namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, "
            "c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}>(int)"
        )
        launches = []
        for layer in self.scene.network:
            work = self.try_candidates(layer, FORWARD)
            work += self.run(layer, FORWARD) * self.times("extra_calls", layer)
            launches += mark(work, layer, FORWARD, FORWARD)
            grid = (ceil(layer.outputs(self.batch) / 1024), 1, 1)
            launches.append(Launch(activation, grid, part="other"))
        return launches

    def backward(self) -> list[Launch]:
        loss = (
            f"{NATIVE}(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, "
            "float, long>(float*)"
        )
        launches = [Launch(loss, (1, 1, 1), {"fadd": 32 * self.batch}, part="other")]
        first = self.acting.get("frozen", {"until": 0})["until"]
        for layer in reversed(self.scene.network[first:]):
            for name in ("checkpoint_same", "checkpoint_other"):
                if (settings := self.acting.get(name)) and layer.name in settings["layers"]:
                    is_same = name == "checkpoint_same"
                    again = self.run(layer, FORWARD) if is_same else self.run_otherwise(layer)
                    launches += mark(again, layer, BACKWARD, "again")
            times = 2 if "double_backward" in self.acting else 1
            times = max(times, self.times("gradients_again", layer))
            is_last = bool(first) and layer is self.scene.network[first]
            once: list[Launch] = []
            for part in self.gradients(layer, is_last):
                work = self.try_candidates(layer, part) + self.run(layer, part)
                once += mark(work, layer, BACKWARD, part)
            launches += once * times
        return launches

    def gradients(self, layer: Layer, is_last: bool) -> list[str]:
        """Return the parts of backward that run; ``is_last`` where only frozen layers are below."""
        parts = layer.parts(True)[1:]
        if is_last and not isinstance(layer, Lstm | Attention):
            parts = [part for part in parts if part != "dgrad"]
        if self.acting.get("needless_grad_input", {}).get("layer") == layer.name:
            parts = ["dgrad", *parts]
        missing = self.acting.get("gradient_missing", {}).get("place")
        return [part for part in parts if (layer.name, part) != missing]

    def run(self, layer: Layer, part: str) -> list[Launch]:
        """Return the launches of a part of a layer, and those beside them."""
        return self.run_part(layer, part) + self.run_beside(layer, (layer.name, part))

    def run_part(self, layer: Layer, part: str) -> list[Launch]:
        claim, task = (layer.name, part), Task(self.scene, layer, part, self.batch)
        if conflict := find_claim(self.effects, claim):
            return imitate(replace(task, settings=conflict.settings), self.number)
        claiming = {effect.name: effect for effect in self.effects if claim in effect.claims}
        # a fused kernel leaves no product to the other algorithms
        for name in FUSED:
            if name in claiming:
                task = replace(task, settings=claiming[name].settings)
                skips, recomputes = "causal_skip" in self.acting, "flash_recompute" in self.acting
                return attention(task, skips, recomputes)
        for name, effect in claiming.items():
            return ALGORITHMS[name](replace(task, settings=effect.settings))
        return usual(task)

    def run_otherwise(self, layer: Layer) -> list[Launch]:
        """Return forward by other kernels than the first time."""
        random, launches = self.scene.random(layer.name, "again"), []
        for product in layer.forward(self.batch):
            kernels = select(self.scene, layer, product, 0, 1.6)
            if kernels and random.random() < 0.7:
                launches.append(tiled(random.choice(kernels), product))
            else:
                launches.append(direct(layer, product, self.scene.precision))
        return launches

    def try_candidates(self, layer: Layer, part: str) -> list[Launch]:
        """Return the candidates that cuDNN tries before it takes one."""
        settings = self.acting.get("benchmark", {"part": None})
        if settings["part"] != part or layer.name not in settings["layers"]:
            return []
        launches = self.run_part(layer, part) if settings["same"] else []
        for number in range(settings["trials"]):
            random = self.scene.random(layer.name, part, "trial", number)
            for product in layer.products(part, self.batch):
                kernels = select(self.scene, layer, product, 0, 3)
                launches.append(
                    tiled(random.choice(kernels), product)
                    if kernels
                    else direct(layer, product, self.scene.precision)
                )
        return launches

    def run_beside(self, layer: Layer, claim: Claim) -> list[Launch]:
        launches = []
        outputs = layer.outputs(self.batch)
        if (settings := self.acting.get("layout")) and settings["place"] == claim:
            space = ("cudnn::ops::", "", "cudnn::engines_precompiled::")[settings["engine"]]
            assert isinstance(layer, Conv)
            inputs = layer.inputs(self.batch)
            for way, values in (("nchwToNhwc", inputs), ("nhwcToNchw", outputs)):
                name = (
                    f"void {space}{way}Kernel<float, float, float, false, true, "
                    f"(cudnnKernelDataType_t)2>({space}nchw2nhwc_params_t<float>, float const*, "
                    "float*)"
                )
                launches.append(Launch(name, (ceil(values / 1024), 1, 1), {"fmul": values}))
        if (settings := self.acting.get("elementwise")) and settings["place"] == claim:
            name, shares = ELEMENTWISE[settings["what"]]
            counts = {key: share * outputs for key, share in shares.items()}
            head = "" if name.startswith("void") else NATIVE
            launches.append(Launch(head + name, (ceil(outputs / 512), 1, 1), counts))
        return launches


def mark(launches: list[Launch], layer: Layer, direction: str, part: str) -> list[Launch]:
    return [
        replace(launch, layer=layer.name, direction=direction, part=part) for launch in launches
    ]
