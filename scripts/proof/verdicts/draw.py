"""One draw: a network, what happened to it, the records that a profiler would leave, and the truth
beside them."""

from __future__ import annotations

import re
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil
from random import Random

from choose import MAKERS
from effects import ALGORITHMS, FUSED, Claim, Effect, Scene, Set, attention, parts, products, usual
from kernels import Launch, direct, options, tiled
from networks import BACKWARD, FORWARD, Attention, Conv, Layer, Linear, Lstm, Network, paper
from records import CHIPS, run

from perfctl.records.run import Run

Place = tuple[int, str, str]
"""Batch size, layer, direction."""
VERSIONS = ("2022.3.0", "2023.3.1", "2024.1.0", "2025.1.1", "2025.3.0")
BATCHES = (1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 48, 50, 64, 96, 100, 128, 192, 200, 256)
CHANNELS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
SIDES = (2, 4, 7, 8, 13, 14, 16, 24, 26, 28, 32, 56)
WIDTHS = (10, 64, 100, 120, 128, 200, 256, 300, 512, 768, 1000, 1024, 2048, 4096, 9216)

PATIENCE = 300
"""Scenes to try before other effects are chosen."""

GROUPS = (
    {"flash_recompute", "causal_skip"},
    {"checkpoint_same", "checkpoint_other"},
    {"frozen", "gradient_missing"},
    {"two_steps", "accumulation", "larger_batch", "ddp_rank", "pads_batch"},
    {
        "eval_profiled",
        "frozen",
        "gradient_missing",
        "dgrad_loose",
        "double_backward",
        "gradients_again",
        "needless_grad_input",
        "checkpoint_same",
        "checkpoint_other",
    },
    {"cut_off", "two_steps", "accumulation", "eval_profiled"},
)
"""Effects of which a draw has one at most."""
ORDER = (
    *ALGORITHMS,
    *FUSED,
    "layout",
    "elementwise",
    "extra_calls",
    "benchmark",
    "checkpoint_same",
    "checkpoint_other",
    "needless_grad_input",
    "double_backward",
    "gradients_again",
    "gradient_missing",
    "frozen",
    "eval_profiled",
    "larger_batch",
    "pads_batch",
    "ddp_rank",
    "accumulation",
    "two_steps",
    "cut_off",
    "dgrad_loose",
    "swapped",
    "counters_missing",
    "fp8_missing",
)

IN_PARTS = ("winograd2", "winograd4", "fft", "split_k", "split_inside")
"""Algorithms of a product and small kernels around it; the factor of the product alone may be
told too."""

__all__ = ["Draw", "Place", "RowTruth", "describe", "draw", "draw_scene"]


@dataclass(frozen=True, slots=True)
class RowTruth:
    """The truth about one row."""

    paper: int
    executed: int
    """FLOPs of the launches that are attributed to the row, in a step as the records tell steps."""
    shown: int | None
    """What the counters show of it; None where no launch of the row has any."""
    factors: dict[str, float] = field(default_factory=dict)
    """Effect -> its factor, each on top of those before it; their product and ``usual`` are
    executed / paper."""
    alternatives: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Effect -> its factor on top of any of the others, which a tool may name as well."""
    usual: float = 1.0
    """Executed / paper without any effect: tiles that nearly fit."""
    paths: frozenset[str] = frozenset()
    """ffma, tf32, fp16, bf16, hfma, moves: what its launches really used."""
    scale: int = 0
    """FLOPs of epilogues inside of its products: the scale of the result, sums of slices."""
    fillings: frozenset[float] = frozenset()
    """What tiles execute / what was to be done: of each launch, and of all together."""
    unread: bool = False
    """Some launch counts tensor instructions whose shape neither a counter nor the name tells."""

    @property
    def ratio(self) -> float | None:
        return None if self.shown is None or not self.paper else self.shown / self.paper


@dataclass(frozen=True, slots=True)
class Draw:
    """Records and truth."""

    scene: Scene
    effects: tuple[Effect, ...]
    runs: tuple[Run, ...]
    rows: dict[Place, RowTruth]


def draw(seed: int, only: str | None = None, last: bool = False) -> Draw:
    """The draw of a seed; ``only``: this effect alone ("clean" for none), ``last``: parameters of
    the last check."""
    random = Random(f"{seed}:{only}:{last}")  # noqa: S311 - reproducible draws, no secrets
    number = (
        (0 if only == "clean" else 1) if only else random.choices((0, 1, 2, 3), (15, 40, 30, 15))[0]
    )
    while True:
        names = ([only] if only else random.sample(sorted(MAKERS), number)) if number else []
        for _ in range(PATIENCE):
            scene = draw_scene(random, seed, last)
            effects = _effects(scene, random, names)
            if effects is not None:
                rows = truth(scene, effects)
                runs = tuple(
                    run(scene, effects, batch, index, launches(scene, effects, batch))
                    for index, batch in enumerate(scene.batches)
                )
                return Draw(scene, effects, runs, rows)


def _effects(scene: Scene, random: Random, names: Sequence[str]) -> tuple[Effect, ...] | None:
    """These effects in this scene; None where one cannot occur."""
    found: list[Effect] = []
    for name in names:
        if any(_clash(name, other.name) for other in found):
            return None
        effect = MAKERS[name](
            scene, random, frozenset(claim for effect in found for claim in effect.claims)
        )
        if effect is None:
            return None
        found.append(effect)
        # a fused backward always works out its scores again
        if name == "causal_skip" and scene.train:
            found.append(Effect("flash_recompute", effect.claims, effect.settings))
    return tuple(sorted(found, key=lambda effect: ORDER.index(effect.name)))


def _clash(name: str, other: str) -> bool:
    return any(name in group and other in group for group in GROUPS)


def draw_scene(random: Random, seed: int, last: bool = False) -> Scene:
    """Network, batch sizes, chip and settings."""
    chip = random.choice(sorted(CHIPS))
    precisions = ["fp32"] + ["fp16"] + (["tf32", "tf32", "bf16"] if int(chip) >= 80 else ["fp32"])
    precision = random.choice(precisions)
    train = random.random() < 0.65
    batches = tuple(sorted(random.sample(BATCHES, random.randint(1, 3))))
    version = random.choice(VERSIONS[1:] if chip in ("89", "90") else VERSIONS)
    return Scene(seed, draw_network(random, train), batches, chip, precision, train, version, last)


def draw_network(random: Random, train: bool) -> Network:
    """One to five layers. They need not fit to each other: each is judged by itself."""
    layers: list[Layer] = []
    for number in range(random.randint(1, 5)):
        kind = random.choices(("conv", "linear", "lstm", "attention"), (50, 30, 8, 12))[0]
        first, bias = number == 0, random.random() < 0.6
        if kind == "conv":
            layers.append(_conv(random, f"conv{number + 1}", first, bias))
        elif kind == "linear":
            rows = random.choice((1, 1, 1, 4, 49, 128))
            name = f"fc{number + 1}" if random.random() < 0.7 else f"block.{number}.proj"
            layers.append(
                Linear(name, first, bias, random.choice(WIDTHS[1:]), random.choice(WIDTHS), rows)
            )
        elif kind == "lstm":
            sizes = (32, 64, 100, 128, 256)
            layers.append(
                Lstm(
                    f"lstm{number + 1}",
                    first,
                    True,
                    random.choice(sizes),
                    random.choice(sizes),
                    random.choice((3, 5, 8)),
                )
            )
        else:
            length = random.choice((50, 64, 128, 197, 256, 512, 1024))
            depth = random.choice((32, 64, 128))
            name = f"attn{number + 1}"
            layers.append(
                Attention(
                    name,
                    first,
                    False,
                    random.choice((4, 8, 12)),
                    length,
                    depth,
                    random.random() < 0.5,
                )
            )
    return tuple(layers)


def _conv(random: Random, name: str, first: bool, bias: bool) -> Conv:
    side, kernel = random.choice(SIDES), random.choice((1, 3, 3, 3, 5, 7))
    kernel = min(kernel, side)
    padding = random.choice((kernel // 2, kernel // 2, 0))
    stride = random.choice((1, 1, 1, 2)) if side >= 8 else 1
    cin = random.choice((1, 3)) if first and random.random() < 0.5 else random.choice(CHANNELS)
    cout, groups = random.choice(CHANNELS), 1
    if cin >= 8 and random.random() < 0.3:
        groups = random.choice((2, 4, 8, cin, cin))
        cout = cin if groups == cin else cout
    return Conv(name, first, bias, cin, cout, kernel, side, stride, padding, groups)


# What is launched


def launches(scene: Scene, effects: Iterable[Effect], batch: int) -> list[Launch]:
    """All launches of the capture, in order, attributed as the profiler sees it."""
    act = Set(effects)
    seen, micro, steps = batch, 1, 1
    if effect := act.get("larger_batch"):
        seen *= effect.settings["times"]
    if effect := act.get("ddp_rank"):
        seen //= effect.settings["ranks"]
    if effect := act.get("pads_batch"):
        seen = ceil(seen / effect.settings["unit"]) * effect.settings["unit"]
    if effect := act.get("accumulation"):
        micro = effect.settings["times"]
    if effect := act.get("two_steps"):
        steps = effect.settings["times"]
    step: list[Launch] = []
    for _ in range(micro):
        step += _forward(scene, act, seen)
        if scene.train and not act.get("eval_profiled"):
            step += _backward(scene, act, seen)
    if scene.train and not act.get("eval_profiled"):
        step += _optimizer(scene)
    found = [_copy(launch) for _ in range(steps) for launch in step]
    if effect := act.get("cut_off"):
        found = found[: max(1, round(len(found) * effect.settings["share"]))]
    if effect := act.get("swapped"):
        a, b = effect.settings["pair"]
        _swap(found, a, b, effect.settings["way"])
    if effect := act.get("dgrad_loose"):
        for launch in found:
            lost = launch.part == "dgrad" or (
                effect.settings["part"] == "both" and launch.part == "wgrad"
            )
            if launch.layer in effect.settings["layers"] and lost:
                launch.layer = launch.direction = None
    if effect := act.get("counters_missing"):
        random = scene.random("counters", batch)
        for launch in found:
            launch.counted = random.random() >= effect.settings["share"]
    return found


def _copy(launch: Launch) -> Launch:
    return replace(launch)


def _swap(found: list[Launch], a: str, b: str, way: str) -> None:
    other = {a: b, b: a}
    for launch in found:
        if launch.layer in other and (way == "all" or launch.direction == way):
            launch.layer = other[launch.layer]


def _mark(found: list[Launch], layer: Layer, direction: str, part: str) -> list[Launch]:
    return [replace(launch, layer=layer.name, direction=direction, part=part) for launch in found]


def _part(scene: Scene, act: Set, layer: Layer, part: str, batch: int) -> list[Launch]:
    mine = [effect for effect in act if (layer.name, part) in effect.claims]
    fused = [effect for effect in act if effect.name in FUSED]
    claimed = [effect for effect in mine if effect.name in FUSED]
    if claimed and isinstance(layer, Attention):
        return attention(scene, fused, layer, part, batch)
    for effect in mine:
        if effect.name in ALGORITHMS:
            return ALGORITHMS[effect.name](scene, effect, layer, part, batch)
    return usual(scene, layer, part, batch)


def _forward(scene: Scene, act: Set, batch: int) -> list[Launch]:
    found = []
    for layer in scene.network:
        times = 1
        if (effect := act.get("extra_calls")) and effect.settings["layer"] == layer.name:
            times = effect.settings["times"]
        one = _trials(scene, act, layer, "forward", batch)
        for _ in range(times):
            one += _part(scene, act, layer, "forward", batch) + _beside(
                act, layer, "forward", batch
            )
        found += _mark(one, layer, FORWARD, "forward")
        found.append(
            Launch(
                "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous "
                "namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, "
                "c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}>(int)",
                (ceil(layer.outputs(batch) / 1024), 1, 1),
                part="other",
            )
        )
    return found


def _backward(scene: Scene, act: Set, batch: int) -> list[Launch]:
    found = [
        Launch(
            "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, "
            "float, long>(float*)",
            (1, 1, 1),
            {"fadd": 32 * batch},
            part="other",
        )
    ]
    until = effect.settings["until"] if (effect := act.get("frozen")) else 0
    for number, layer in reversed(list(enumerate(scene.network))):
        if number < until:
            break
        one: list[Launch] = []
        for name in ("checkpoint_same", "checkpoint_other"):
            if (effect := act.get(name)) and layer.name in effect.settings["layers"]:
                again = _part(scene, act, layer, "forward", batch) + _beside(
                    act, layer, "forward", batch
                )
                one += _mark(
                    again if name == "checkpoint_same" else _other(scene, layer, batch),
                    layer,
                    BACKWARD,
                    "again",
                )
        wanted = [part for part in parts(layer, True) if part != "forward"]
        if until == number and until:
            wanted = [
                part for part in wanted if part != "dgrad" or isinstance(layer, Lstm | Attention)
            ]
        if (effect := act.get("needless_grad_input")) and effect.settings["layer"] == layer.name:
            wanted = ["dgrad", *wanted]
        if effect := act.get("gradient_missing"):
            wanted = [part for part in wanted if (layer.name, part) != effect.settings["place"]]
        times = 2 if act.get("double_backward") else 1
        if (effect := act.get("gradients_again")) and effect.settings["layer"] == layer.name:
            times = effect.settings["times"]
        for _ in range(times):
            for part in wanted:
                work = _trials(scene, act, layer, part, batch) + _part(
                    scene, act, layer, part, batch
                )
                one += _mark(work + _beside(act, layer, part, batch), layer, BACKWARD, part)
        found += one
    return found


def _optimizer(scene: Scene) -> list[Launch]:
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<2>, at::native::(anonymous "
        "namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)"
    )
    size = sum(
        op.parameters
        for number, layer in enumerate(scene.network)
        for op in layer.ops(1, number, False, False)
    )
    return [
        Launch(
            name,
            (ceil(max(size, 1) / 65536), 1, 1),
            {"ffma": size},
            direction="optimizer",
            part="other",
        )
    ]


def _other(scene: Scene, layer: Layer, batch: int) -> list[Launch]:
    """Forward by other kernels than the first time."""
    random, found = scene.random(layer.name, "again"), []
    for product in products(layer, "forward", batch):
        there = [
            option
            for option in options(scene.chip, scene.precision, layer, product)
            if option[0] < 1.6
        ]
        if there and random.random() < 0.7:
            _, family, tile, flip = random.choice(there)
            found.append(tiled(family, tile, product, flip))
        else:
            found.append(direct(layer, product, scene.precision))
    return found


def _trials(scene: Scene, act: Set, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Candidates that cuDNN tries before it takes one."""
    effect = act.get("benchmark")
    if (
        effect is None
        or effect.settings["part"] != part
        or layer.name not in effect.settings["layers"]
    ):
        return []
    found = []
    if effect.settings["same"]:
        found += _part(scene, act, layer, part, batch)
    for number in range(effect.settings["trials"]):
        random = scene.random(layer.name, part, "trial", number)
        for product in products(layer, part, batch):
            there = [
                option
                for option in options(scene.chip, scene.precision, layer, product)
                if option[0] < 3
            ]
            if there:
                _, family, tile, flip = random.choice(there)
                found.append(tiled(family, tile, product, flip))
            else:
                found.append(direct(layer, product, scene.precision))
    return found


def _beside(act: Set, layer: Layer, part: str, batch: int) -> list[Launch]:
    found = []
    place: Claim = (layer.name, part)
    if (effect := act.get("layout")) and effect.settings["place"] == place:
        space = ("cudnn::ops::", "", "cudnn::engines_precompiled::")[effect.settings["engine"]]
        for there, values in (
            ("nchwToNhwc", layer.inputs(batch)),
            ("nhwcToNchw", layer.outputs(batch)),
        ):
            name = (
                f"void {space}{there}Kernel<float, float, float, false, true, "
                f"(cudnnKernelDataType_t)2>({space}nchw2nhwc_params_t<float>, float const*, float*)"
            )
            found.append(Launch(name, (ceil(values / 1024), 1, 1), {"fmul": values}))
    if (effect := act.get("elementwise")) and effect.settings["place"] == place:
        values = layer.outputs(batch)
        head = "void at::native::"
        name, counts = {
            "bias": (
                (
                    f"{head}elementwise_kernel<128, 2, at::native::gpu_kernel_impl"
                    "<at::native::CUDAFunctor_add<float>>>(int, at::native::CUDAFunctor_add<float>)"
                ),
                {"ffma": values},
            ),
            "dropout": (
                (
                    f"{head}(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned "
                    "int, 1, 4, bool>(int)"
                ),
                {"fmul": 2 * values},
            ),
            "batch_norm": (
                (
                    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, "
                    "1>(cudnnTensorStruct, float const*)"
                ),
                {"fadd": 3 * values, "ffma": 2 * values},
            ),
            "fake_quant": (
                (
                    f"{head}vectorized_elementwise_kernel<4, "
                    "at::native::fake_quantize_tensor_cachemask_kernel_cuda(at::TensorIteratorBase&"
                    ")::{lambda()#1}>(int)"
                ),
                {"ffma": 2 * values, "fmul": values},
            ),
            "gelu": (
                (
                    f"{head}vectorized_elementwise_kernel<4, "
                    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
                    "at::native::GeluType)::{lambda()#2}>(int)"
                ),
                {"ffma": 9 * values, "fmul": 3 * values},
            ),
            "scale": (
                (
                    f"{head}vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, "
                    "float, float, at::native::binary_internal::MulFunctor<float>>, "
                    "at::detail::Array<char*, 2>>(int)"
                ),
                {"fmul": values},
            ),
        }[effect.settings["what"]]
        found.append(Launch(name, (ceil(values / 512), 1, 1), dict(counts)))
    return found


# The truth


def truth(scene: Scene, effects: Sequence[Effect]) -> dict[Place, RowTruth]:
    """Every row that paper has: what was executed, and each effect's factor."""
    rows: dict[Place, RowTruth] = {}
    subsets = [
        subset
        for size in range(len(effects) + 1)
        for subset in combinations(range(len(effects)), size)
    ]
    for batch in scene.batches:
        by_subset: dict[tuple[int, ...], dict[tuple[str, str], tuple[int, int | None]]] = {}
        paths: dict[tuple[str, str], set[str]] = defaultdict(set)
        scale: Counts[tuple[str, str]] = Counts()
        fillings: dict[tuple[str, str], set[float]] = defaultdict(set)
        needed: Counts[tuple[str, str]] = Counts()
        unread: set[tuple[str, str]] = set()
        for subset in subsets:
            found = launches(scene, [effects[number] for number in subset], batch)
            by_subset[subset] = _sums(found)
            if len(subset) == len(effects):
                for launch in found:
                    if launch.layer and launch.direction:
                        place = (launch.layer, launch.direction)
                        paths[place] |= _paths(launch)
                        scale[place] += launch.scale
                        fillings[place].add(launch.filling)
                        needed[place] += round(launch.flops / launch.filling)
                        unread |= {place} if _unread(scene, launch) else set()
        everything = by_subset[tuple(range(len(effects)))]
        for (layer, direction), flops in paper(scene.network, batch, scene.train).items():
            key = (layer, direction)

            works = {subset: sums.get(key, (0, 0))[1] or 0 for subset, sums in by_subset.items()}
            factors, alternatives = {}, {}
            for number, effect in enumerate(effects):
                before = tuple(range(number))
                factors[effect.name] = _over(works[*before, number], works[before])
                others = [subset for subset in subsets if number not in subset]
                found_factors = [
                    _over(works[tuple(sorted((*subset, number)))], works[subset])
                    for subset in others
                ]
                if effect.name in IN_PARTS:
                    alone, main = works[(number,)], _main_only(scene, effect, batch).get(key, 0)
                    found_factors += [_over(main, works[()]), _over(alone, main)]
                alternatives[effect.name] = tuple(found_factors)
            executed, shown = everything.get(key, (0, None))
            rows[batch, layer, direction] = RowTruth(
                flops,
                executed,
                shown,
                factors,
                alternatives,
                _over(works[()], flops),
                frozenset(paths[key]),
                scale[key],
                frozenset({*fillings[key], _over(executed, needed[key])}),
                key in unread,
            )
    return rows


def _main_only(scene: Scene, effect: Effect, batch: int) -> dict[tuple[str, str], int]:
    """(layer, direction) -> FLOPs with this effect alone and without the kernels around
    its product."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    found = launches(scene, [effect], batch)
    biggest = {
        claim: max(launch.flops for launch in found if (launch.layer, launch.part) == claim)
        for claim in effect.claims
    }
    for launch in found:
        if launch.layer and launch.direction:
            place = (launch.layer, launch.part)
            if place not in biggest or launch.flops == biggest[place]:
                sums[launch.layer, launch.direction] += launch.flops
    return sums


def _over(a: int, b: int) -> float:
    return a / b if b else 1.0 if not a else float("inf")


def _sums(found: Sequence[Launch]) -> dict[tuple[str, str], tuple[int, int | None]]:
    """(layer, direction) -> FLOPs executed, FLOPs that counters show (None without any)."""
    sums: dict[tuple[str, str], tuple[int, int | None]] = {}
    for launch in found:
        if launch.layer and launch.direction:
            key = (launch.layer, launch.direction)
            whole, shown = sums.get(key, (0, None))
            sums[key] = (
                whole + launch.flops,
                (shown or 0) + launch.flops if launch.counted else shown,
            )
    return sums


def _paths(launch: Launch) -> set[str]:
    return {
        (launch.kind if name == "tensor" else name)
        for name, value in launch.counts.items()
        if name in ("ffma", "tensor", "hfma", "moves") and value
    }


def _unread(scene: Scene, launch: Launch) -> bool:
    told = scene.chip == "70" or (scene.ncu >= "2023" and int(scene.chip) >= 80)
    shape = re.search("884|1688|16816|16832|tensor16x8x|sptensor", launch.name)
    return bool(launch.counts.get("tensor")) and not told and not shape


def describe(found: Draw) -> str:
    """One line: chip, precision, mode, batch sizes, layers and effects."""
    scene = found.scene
    layers = ", ".join(f"{layer.name}{_sizes(layer)}" for layer in scene.network)
    effects = "; ".join(_words(effect) for effect in found.effects)
    mode = "train" if scene.train else "infer"
    head = (
        f"seed {scene.seed}: sm_{scene.chip} {scene.precision} {mode} {scene.batches} ncu "
        f"{scene.ncu}"
    )
    return f"{head} | {layers} | {effects or 'clean'}"


def _words(effect: Effect) -> str:
    settings = dict(sorted(effect.settings.items()))
    if "kernel" in settings:
        family, (m, n), _ = settings["kernel"]
        settings["kernel"] = f"{family.pattern.split('(')[0]} {m}x{n} k{family.step}"
    for key, value in settings.items():
        settings[key] = sorted(value) if isinstance(value, set) else value
    where = " ".join(f"{name}:{part}" for name, part in sorted(effect.claims))
    return " ".join(
        filter(
            None,
            (effect.name, where, ", ".join(f"{key}={value}" for key, value in settings.items())),
        )
    )


def _sizes(layer: Layer) -> str:
    if isinstance(layer, Conv):
        shape = (
            f"k{layer.kernel} s{layer.stride} p{layer.padding} g{layer.groups} "
            f"{layer.size}x{layer.size}"
        )
        return f"({layer.cin}->{layer.cout} {shape})"
    if isinstance(layer, Linear):
        return f"({layer.cin}->{layer.cout} x{layer.rows})"
    if isinstance(layer, Lstm):
        return f"({layer.width}->{layer.hidden} T{layer.steps})"
    assert isinstance(layer, Attention)
    return f"(h{layer.heads} S{layer.length} D{layer.depth}{' causal' if layer.causal else ''})"
