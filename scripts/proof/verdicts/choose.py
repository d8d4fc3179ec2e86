"""Which effect a draw has, and with which parameters: one function for each kind, None where the
effect cannot occur."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from scripts.proof.verdicts.effects import ALGORITHMS, Effect, Task, join_groups
from scripts.proof.verdicts.kernels import FITS, options, select, tiled
from scripts.proof.verdicts.networks import FORWARD, Attention, Claim, Conv, Linear, Lstm, Scene

T = TypeVar("T")
Fits = Callable[[Any, str], bool]
"""Whether an effect can act on a part of a layer."""
F2_TILES = ((1, 4, 8), (2, 4, 4), (4, 2, 4), (8, 2, 2))
F4_TILES = ((128, 64), (64, 64), (128, 128), (32, 128), (128, 32))
SLICES = (2, 3, 4, 5, 8, 6, 16, 12)


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of one effect: its name, the scene, and the parts of layers that other effects
    have claimed."""

    name: str
    scene: Scene
    random: Random
    taken: frozenset[Claim]

    def half(self, values: Sequence[T]) -> list[T]:
        """Return every second value; the others are kept for the last check. Of fewer than four,
        all."""
        return list(values) if len(values) < 4 else list(values[int(self.scene.cutting) :: 2])

    def pick(self, *values: T) -> T:
        return self.random.choice(self.half(values))

    def is_likely(self, share: float) -> bool:
        return self.random.random() < share

    def claims(self, fits: Fits) -> list[Claim]:
        return [
            (name, part) for name, part in self.scene.claims() if fits(self.scene.layer(name), part)
        ]

    def claim(self, fits: Fits) -> Claim | None:
        """Return a free part that fits, None where there is none."""
        free = [claim for claim in self.claims(fits) if claim not in self.taken]
        return self.random.choice(free) if free else None

    def effect(self, *claims: Claim, **settings: Any) -> Effect:
        return Effect(self.name, frozenset(claims), settings)

    def task(self, claim: Claim, batch: int, **settings: Any) -> Task:
        name, part = claim
        return Task(self.scene, self.scene.layer(name), part, batch, settings)

    def below(self, share_max: float, claim: Claim, **settings: Any) -> Effect | None:
        """Return the effect if it executes at most this share of the product at every batch size;
        else a library does not take the algorithm."""
        for batch in self.scene.batches:
            task = self.task(claim, batch, **settings)
            executed = sum(launch.flops for launch in ALGORITHMS[self.name](task))
            if executed > share_max * 2 * sum(product.macs for product in task.products):
                return None
        return self.effect(claim, **settings)


def is_linear(layer: object, part: str) -> bool:
    return isinstance(layer, Linear)


def is_conv(layer: object, part: str) -> bool:
    return isinstance(layer, Conv)


def is_dense(layer: object, part: str) -> bool:
    return isinstance(layer, Conv | Linear)


def draw_padding(choice: Choice) -> Effect | None:
    pieces = 1 if choice.name == "padding" else choice.pick(2, 3, 4, 5, 8, 6)
    claim = choice.claim(lambda layer, part: not (is_conv(layer, part) and layer.depthwise))
    if claim is None:
        return None
    task = choice.task(claim, max(choice.scene.batches))
    product = max(task.products, key=lambda product: product.macs)
    main = product.part
    if main != "wgrad":
        product = replace(product, m=max(1, product.m // pieces))
    kernels = choice.half(select(choice.scene, task.layer, product, 1.07, 9))
    if not kernels:
        return None
    kernel = choice.random.choice(kernels)
    return choice.effect(claim, kernel=kernel, pieces=pieces, main=main)


def draw_triton(choice: Choice) -> Effect | None:
    claim = choice.claim(is_linear) if int(choice.scene.chip) >= 75 else None
    if claim is None:
        return None
    tiles = ((64, 64), (128, 64), (64, 128), (128, 128), (32, 64), (128, 256), (16, 128), (64, 32))
    return choice.effect(
        claim,
        tile=choice.pick(*tiles),
        step=choice.random.choice((32, 64)),
        number=choice.random.randrange(20),
        dynamic=choice.is_likely(0.3),
    )


def draw_implicit_sgemm(choice: Choice) -> Effect | None:
    claim = choice.claim(lambda layer, part: is_conv(layer, part) and part == FORWARD)
    if claim is None or choice.scene.path != "fp32":
        return None
    template = choice.pick((1024, 5, 5), (128, 6, 7), (128, 5, 5), (512, 6, 8), (1024, 6, 7))
    return choice.effect(claim, template=template)


def draw_winograd(choice: Choice, key: str, *tiles: tuple[int, ...]) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_conv(layer, part)
            and layer.kernel == 3
            and layer.stride == layer.groups == 1
            and part != "wgrad"
            and layer.cin >= 8
            and layer.out == layer.size
        )
    )
    if claim is None or choice.scene.path != "fp32":
        return None
    return choice.below(1.3, claim, **{key: choice.pick(*tiles)})


def draw_fft(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_conv(layer, part)
            and layer.kernel in (3, 5, 7)
            and layer.stride == layer.groups == 1
            and layer.cin >= 8
        )
    )
    if claim is None or choice.scene.path != "fp32":
        return None
    side = choice.random.choice((32, 16))
    return choice.below(3, claim, side=side, flips=choice.is_likely(0.5))


def draw_split_k(choice: Choice) -> Effect | None:
    scene, claim = choice.scene, choice.claim(is_linear)
    if claim is None:
        return None
    task = choice.task(claim, max(scene.batches))
    (product,) = task.products
    kernels = select(scene, task.layer, product, 0.9, FITS)
    kernels = choice.half([kernel for kernel in kernels if kernel.family.grid == "tiles"])
    if not kernels:
        return None
    kernel = choice.random.choice(kernels)
    step = kernel.family.step
    slices = [number for number in choice.half(SLICES) if product.k % (number * step) == 0]
    if not slices or product.k < 64:
        return None
    for batch in scene.batches:
        (product,) = choice.task(claim, batch).products
        if tiled(kernel, product).flops > FITS * 2 * product.macs:
            return None
    return choice.effect(claim, kernel=kernel, slices=choice.random.choice(slices))


def draw_split_inside(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part)
            or (is_conv(layer, part) and part == "wgrad" and layer.groups == 1)
        )
    )
    if claim is None:
        return None
    task = choice.task(claim, min(choice.scene.batches))
    (product,) = task.products
    kernels = select(choice.scene, task.layer, product, 0.9, 1.6)
    kernels = choice.half([kernel for kernel in kernels if kernel.family.grid == "tiles"])
    if not kernels:
        return None
    kernel = choice.random.choice(kernels)
    numbers = choice.half((2, 3, 4, 8, 16, 6, 12, 24))
    slices = [number for number in numbers if product.k // number >= kernel.family.step]
    if not slices:
        return None
    number = choice.random.choice(slices)
    return choice.effect(claim, kernel=kernel, slices=number, adds=choice.is_likely(0.5))


def draw_fused(choice: Choice) -> Effect | None:
    scene, skips = choice.scene, choice.name == "causal_skip"
    if scene.precision not in ("fp16", "bf16") or not scene.is_ampere:
        return None
    if not (skips or scene.train):
        return None
    claim = choice.claim(
        lambda layer, _: (
            isinstance(layer, Attention) and layer.causal >= skips and layer.length % 128 == 0
        )
    )
    if claim is None:
        return None
    claims = [(claim[0], part) for part in scene.layer(claim[0]).parts(scene.train)]
    block = choice.random.choice((64, 128))
    kind = choice.random.choice(("flash", "flash", "efficient"))
    return choice.effect(*claims, block=block, kind=kind)


def draw_sparsity(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part)
            and part == FORWARD
            and layer.cin % 64 == 0
            and layer.cout % 128 == 0
        )
    )
    if claim is None or choice.scene.path not in ("fp16", "bf16") or not choice.scene.is_ampere:
        return None
    patterns = (
        "sm80_xmma_sparse_gemm_{t}{t}_{t}f32_f32_tn_n_tilesize{m}x{n}x64_stage3_warpsize2x2x1"
        "_sptensor16x8x32_execute_kernel__5x_cusparseLt",
        "void cutlass::Kernel2<cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8>"
        "(cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8::Params)",
    )
    tile = choice.random.choice(((64, 64), (128, 64)))
    return choice.below(0.5 * FITS, claim, tile=tile, pattern=choice.random.choice(patterns))


def draw_tf32_three(choice: Choice) -> Effect | None:
    claim, scene = choice.claim(is_linear), choice.scene
    if claim is None or scene.precision not in ("fp32", "tf32") or not scene.is_ampere:
        return None
    patterns = (
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4>"
        "(cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4::Params)",
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm"
        "<cutlass::gemm::threadblock::MmaMultistage<cutlass::gemm::GemmShape<128, 64, 16>, "
        "cutlass::arch::OpMultiplyAddFastF32, cutlass::layout::RowMajor>>>(int)",
    )
    return choice.below(3 * FITS, claim, pattern=choice.random.choice(patterns))


def draw_groups_dense(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: is_conv(layer, part) and layer.groups > 1 and not layer.depthwise
    )
    if claim is None:
        return None
    for batch in choice.scene.batches:
        task = choice.task(claim, batch)
        for product in map(join_groups, task.products):
            if all(share > FITS for share, _ in options(choice.scene, task.layer, product)):
                return None
    return choice.effect(claim)


def draw_depthwise_border(choice: Choice) -> Effect | None:
    claim = choice.claim(lambda layer, part: is_conv(layer, part) and layer.depthwise)
    return choice.effect(claim) if claim else None


def draw_persistent_lstm(choice: Choice) -> Effect | None:
    claim = choice.claim(lambda layer, part: isinstance(layer, Lstm) and part != "wgrad")
    if claim is None:
        return None
    group = choice.pick(8, 16, 32, 64)
    return choice.effect(claim, group=group, blocks=choice.random.choice((40, 80, 72, 54)))


def draw_zero_insertion(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_conv(layer, part)
            and part == "dgrad"
            and layer.groups == 1
            and layer.size > layer.out
        )
    )
    return choice.effect(claim, engine=choice.is_likely(0.5)) if claim else None


def draw_half_tf32(choice: Choice) -> Effect | None:
    claim = choice.claim(is_dense)
    return choice.effect(claim) if claim and choice.scene.path == "tf32" else None


def draw_half_gemm(choice: Choice) -> Effect | None:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part) and layer.cin % 128 == 0 and layer.cout % 128 == 0
        )
    )
    return choice.below(FITS, claim) if claim and choice.scene.path == "fp16" else None


# Kernels beside the products, and what is launched more or less often


def draw_layout(choice: Choice) -> Effect | None:
    claim = choice.claim(is_conv)
    return choice.effect(place=claim, engine=choice.random.choice((0, 1, 2))) if claim else None


def draw_elementwise(choice: Choice) -> Effect | None:
    claim = choice.claim(lambda layer, part: part == FORWARD)
    kinds = ("bias", "dropout", "batch_norm", "fake_quant", "gelu", "scale")
    return choice.effect(place=claim, what=choice.pick(*kinds)) if claim else None


def draw_benchmark(choice: Choice) -> Effect | None:
    layers = {layer.name for layer in choice.scene.network if is_conv(layer, "")}
    if not layers:
        return None
    way = choice.random.choice(("forward", "dgrad", "wgrad") if choice.scene.train else (FORWARD,))
    effect = choice.effect(
        layers=layers,
        part=way,
        recorded=choice.is_likely(0.7),
        trials=choice.pick(1, 2, 3, 4, 5),
        same=choice.is_likely(0.5),
    )
    return effect if choice.claims(lambda layer, part: is_conv(layer, "") and part == way) else None


def draw_checkpoint(choice: Choice) -> Effect | None:
    network = choice.scene.network
    if not choice.scene.train:
        return None
    layers = choice.random.sample(network, choice.random.randint(1, len(network)))
    return choice.effect(layers={layer.name for layer in layers})


def draw_in_training(choice: Choice) -> Effect | None:
    return choice.effect() if choice.scene.train else None


def draw_gradients_again(choice: Choice) -> Effect | None:
    """One layer's gradients are computed more than once (retain_graph, a penalty on its gradients),
    those of others once."""
    layer = choice.random.choice(choice.scene.network)
    effect = choice.effect(layer=layer.name, times=choice.pick(2, 2, 3, 4))
    return effect if choice.scene.train else None


def draw_needless_grad_input(choice: Choice) -> Effect | None:
    first = choice.scene.network[0]
    fits = choice.scene.train and first.first and is_dense(first, "")
    return choice.effect(layer=first.name) if fits else None


def draw_gradient_missing(choice: Choice) -> Effect | None:
    claims = choice.claims(
        lambda layer, part: part != FORWARD and is_dense(layer, part) and not layer.first
    )
    return choice.effect(place=choice.random.choice(claims)) if claims else None


def draw_frozen(choice: Choice) -> Effect | None:
    last = len(choice.scene.network) - 1
    if not choice.scene.train or last < 1:
        return None
    return choice.effect(until=choice.random.randint(1, last))


def draw_extra_calls(choice: Choice) -> Effect:
    layer = choice.random.choice(choice.scene.network)
    return choice.effect(layer=layer.name, times=choice.pick(2, 3, 4, 6))


# The whole run


def draw_two_steps(choice: Choice) -> Effect:
    return choice.effect(times=choice.pick(2, 3, 5, 4), numbered=choice.is_likely(0.5))


def draw_accumulation(choice: Choice) -> Effect | None:
    times = choice.pick(2, 4, 3, 8)
    return choice.effect(times=times) if choice.scene.train else None


def draw_larger_batch(choice: Choice) -> Effect:
    return choice.effect(times=choice.pick(2, 4, 3, 8))


def draw_ddp_rank(choice: Choice) -> Effect | None:
    effect = choice.effect(ranks=choice.pick(2, 4, 8, 3), told=choice.is_likely(0.5))
    fits = all(batch % effect.settings["ranks"] == 0 for batch in choice.scene.batches)
    return effect if fits else None


def draw_pads_batch(choice: Choice) -> Effect | None:
    unit = choice.pick(32, 64, 128, 48, 256, 96)
    fits = any(batch % unit for batch in choice.scene.batches)
    return choice.effect(unit=unit) if fits else None


def draw_cut_off(choice: Choice) -> Effect:
    share = choice.pick(0.3, 0.5, 0.6, 0.75, 0.85, 0.9)
    return choice.effect(share=share, told=choice.is_likely(0.5))


def draw_dgrad_loose(choice: Choice) -> Effect | None:
    claims = choice.claims(lambda layer, part: part == "dgrad" and is_dense(layer, part))
    names = {name for name, _ in claims}
    if not names:
        return None
    layers = names if choice.is_likely(0.5) else {choice.random.choice(sorted(names))}
    return choice.effect(layers=layers, part=choice.random.choice(("dgrad", "dgrad", "both")))


def draw_swapped(choice: Choice) -> Effect | None:
    if len(choice.scene.network) < 2:
        return None
    a, b = choice.random.sample(choice.scene.network, 2)
    return choice.effect(pair=(a.name, b.name), way=choice.random.choice((FORWARD, "all")))


def draw_counters_missing(choice: Choice) -> Effect:
    return choice.effect(share=choice.pick(0.2, 0.3, 0.4, 0.6))


def draw_fp8_missing(choice: Choice) -> Effect | None:
    scene = choice.scene
    return choice.effect() if scene.chip in ("89", "90") and scene.ncu >= "2023" else None


MAKERS: dict[str, Callable[[Choice], Effect | None]] = {
    "padding": draw_padding,
    "padding_split": draw_padding,
    "triton": draw_triton,
    "implicit_sgemm": draw_implicit_sgemm,
    "winograd2": lambda choice: draw_winograd(choice, "tiles", *F2_TILES),
    "winograd4": lambda choice: draw_winograd(choice, "tile", *F4_TILES),
    "fft": draw_fft,
    "split_k": draw_split_k,
    "split_inside": draw_split_inside,
    "sparsity": draw_sparsity,
    "tf32_three": draw_tf32_three,
    "groups_dense": draw_groups_dense,
    "depthwise_border": draw_depthwise_border,
    "persistent_lstm": draw_persistent_lstm,
    "zero_insertion": draw_zero_insertion,
    "half_tf32": draw_half_tf32,
    "half_gemm": draw_half_gemm,
    "flash_recompute": draw_fused,
    "causal_skip": draw_fused,
    "layout": draw_layout,
    "elementwise": draw_elementwise,
    "extra_calls": draw_extra_calls,
    "benchmark": draw_benchmark,
    "checkpoint_same": draw_checkpoint,
    "checkpoint_other": draw_checkpoint,
    "needless_grad_input": draw_needless_grad_input,
    "double_backward": draw_in_training,
    "gradients_again": draw_gradients_again,
    "gradient_missing": draw_gradient_missing,
    "frozen": draw_frozen,
    "eval_profiled": draw_in_training,
    "larger_batch": draw_larger_batch,
    "pads_batch": draw_pads_batch,
    "ddp_rank": draw_ddp_rank,
    "accumulation": draw_accumulation,
    "two_steps": draw_two_steps,
    "cut_off": draw_cut_off,
    "dgrad_loose": draw_dgrad_loose,
    "swapped": draw_swapped,
    "counters_missing": draw_counters_missing,
    "fp8_missing": draw_fp8_missing,
}
"""Effect -> what draws it, in the order in which effects act and are reported."""
