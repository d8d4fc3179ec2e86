"""Which effect a draw has, and with which parameters: ``MAKERS`` has one function for each
effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from scripts.proof.verdicts.effects import ALGORITHMS, Effect, Task, join_groups
from scripts.proof.verdicts.kernels import FITS, Kernel, options, select, tiled
from scripts.proof.verdicts.networks import FORWARD, Attention, Claim, Conv, Linear, Lstm, Scene

T = TypeVar("T")
Fits = Callable[[Any, str], bool]
"""Whether an effect can act on a part of a layer."""
HALVES = ("fp16", "bf16")
F2_TILES = ((1, 4, 8), (2, 4, 4), (4, 2, 4), (8, 2, 2))
F4_TILES = ((128, 64), (64, 64), (128, 128), (32, 128), (128, 32))
TRITON_TILES = (
    (64, 64),
    (128, 64),
    (64, 128),
    (128, 128),
    (32, 64),
    (128, 256),
    (16, 128),
    (64, 32),
)
TEMPLATES = ((1024, 5, 5), (128, 6, 7), (128, 5, 5), (512, 6, 8), (1024, 6, 7))
"""Threads and tile, as powers of two, of implicit_convolve_sgemm."""
SPARSE_PATTERNS = (
    "sm80_xmma_sparse_gemm_{t}{t}_{t}f32_f32_tn_n_tilesize{m}x{n}x64_stage3_warpsize2x2x1"
    "_sptensor16x8x32_execute_kernel__5x_cusparseLt",
    "void cutlass::Kernel2<cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8>"
    "(cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8::Params)",
)
THREE_PATTERNS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4::Params)",
    "void cutlass::Kernel<cutlass::gemm::kernel::Gemm"
    "<cutlass::gemm::threadblock::MmaMultistage<cutlass::gemm::GemmShape<128, 64, 16>, "
    "cutlass::arch::OpMultiplyAddFastF32, cutlass::layout::RowMajor>>>(int)",
)


class CannotOccurError(Exception):
    """The effect cannot occur in this scene."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of one effect: its name, the scene, and the parts of layers that other effects
    have claimed."""

    name: str
    scene: Scene
    random: Random
    taken: frozenset[Claim]

    def require(self, can_occur: bool) -> None:
        if not can_occur:
            raise CannotOccurError(self.name)

    def pick(self, *values: T) -> T:
        self.require(len(values) > 0)
        return self.random.choice(values)

    def half(self, values: Sequence[T]) -> Sequence[T]:
        """Return every second value; the others are kept for the last check. Of fewer than four,
        all."""
        return values if len(values) < 4 else values[int(self.scene.cutting) :: 2]

    def pick_half(self, *values: T) -> T:
        return self.pick(*self.half(values))

    def is_likely(self, share: float) -> bool:
        return self.random.random() < share

    def claims(self, fits: Fits) -> list[Claim]:
        return [
            (name, part) for name, part in self.scene.claims() if fits(self.scene.layer(name), part)
        ]

    def claim(self, fits: Fits, can_occur: bool = True) -> Claim:
        """Return a free part that fits, which must not be drawn in vain where another condition
        does not hold."""
        claim = self.pick(*(claim for claim in self.claims(fits) if claim not in self.taken))
        self.require(can_occur)
        return claim

    def effect(self, *claims: Claim, **settings: Any) -> Effect:
        return Effect(self.name, frozenset(claims), settings)

    def effect_in_training(self, **settings: Any) -> Effect:
        self.require(self.scene.train)
        return self.effect(**settings)

    def task(self, claim: Claim, batch: int, **settings: Any) -> Task:
        name, part = claim
        return Task(self.scene, self.scene.layer(name), part, batch, settings)

    def below(self, share_max: float, claim: Claim, **settings: Any) -> Effect:
        """Return the effect if it executes at most this share of the product at every batch size;
        else a library does not take the algorithm."""
        for batch in self.scene.batches:
            task = self.task(claim, batch, **settings)
            executed = sum(launch.flops for launch in ALGORITHMS[self.name](task))
            required = 2 * sum(product.macs for product in task.products)
            self.require(executed <= share_max * required)
        return self.effect(claim, **settings)

    def tiles(self, claim: Claim, batch: int, share_max: float) -> tuple[int, Kernel]:
        """Return the depth of a part's one product, and a kernel whose grid shows its tiles."""
        task = self.task(claim, batch)
        (product,) = task.products
        kernels = select(self.scene, task.layer, product, 0.9, share_max)
        return product.k, self.pick_half(*(item for item in kernels if item.family.grid == "tiles"))


def is_linear(layer: object, part: str) -> bool:
    return isinstance(layer, Linear)


def is_conv(layer: object, part: str) -> bool:
    return isinstance(layer, Conv)


def is_dense(layer: object, part: str) -> bool:
    return isinstance(layer, Conv | Linear)


def is_wide_conv(layer: Any, part: str) -> bool:
    return is_conv(layer, part) and layer.stride == layer.groups == 1 and layer.cin >= 8


def draw_padding(choice: Choice) -> Effect:
    pieces = 1 if choice.name == "padding" else choice.pick_half(2, 3, 4, 5, 8, 6)
    claim = choice.claim(lambda layer, part: not (is_conv(layer, part) and layer.depthwise))
    task = choice.task(claim, max(choice.scene.batches))
    product = max(task.products, key=lambda product: product.macs)
    main = product.part
    if main != "wgrad":
        product = replace(product, m=max(1, product.m // pieces))
    kernel = choice.pick_half(*select(choice.scene, task.layer, product, 1.07, 9))
    return choice.effect(claim, kernel=kernel, pieces=pieces, main=main)


def draw_triton(choice: Choice) -> Effect:
    choice.require(int(choice.scene.chip) >= 75)
    return choice.effect(
        choice.claim(is_linear),
        tile=choice.pick_half(*TRITON_TILES),
        step=choice.pick(32, 64),
        number=choice.random.randrange(20),
        dynamic=choice.is_likely(0.3),
    )


def draw_implicit_sgemm(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: is_conv(layer, part) and part == FORWARD, choice.scene.path == "fp32"
    )
    return choice.effect(claim, template=choice.pick_half(*TEMPLATES))


def draw_winograd(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: (
            is_wide_conv(layer, part)
            and layer.kernel == 3
            and part != "wgrad"
            and layer.out == layer.size
        ),
        choice.scene.path == "fp32",
    )
    if choice.name == "winograd2":
        return choice.below(1.3, claim, tiles=choice.pick_half(*F2_TILES))
    return choice.below(1.3, claim, tile=choice.pick_half(*F4_TILES))


def draw_fft(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: is_wide_conv(layer, part) and layer.kernel in (3, 5, 7),
        choice.scene.path == "fp32",
    )
    return choice.below(3, claim, side=choice.pick(32, 16), flips=choice.is_likely(0.5))


def draw_split_k(choice: Choice) -> Effect:
    claim, batches = choice.claim(is_linear), choice.scene.batches
    depth, kernel = choice.tiles(claim, max(batches), FITS)
    numbers = choice.half((2, 3, 4, 5, 8, 6, 16, 12))
    slices = [number for number in numbers if depth % (number * kernel.family.step) == 0]
    choice.require(bool(slices) and depth >= 64)
    for batch in batches:
        (product,) = choice.task(claim, batch).products
        choice.require(tiled(kernel, product).flops <= FITS * 2 * product.macs)
    return choice.effect(claim, kernel=kernel, slices=choice.pick(*slices))


def draw_split_inside(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part)
            or (is_conv(layer, part) and part == "wgrad" and layer.groups == 1)
        )
    )
    depth, kernel = choice.tiles(claim, min(choice.scene.batches), 1.6)
    numbers = choice.half((2, 3, 4, 8, 16, 6, 12, 24))
    number = choice.pick(*[item for item in numbers if depth // item >= kernel.family.step])
    return choice.effect(claim, kernel=kernel, slices=number, adds=choice.is_likely(0.5))


def draw_fused(choice: Choice) -> Effect:
    scene, skips = choice.scene, choice.name == "causal_skip"
    choice.require(scene.precision in HALVES and scene.is_ampere and (skips or scene.train))
    name, _ = choice.claim(
        lambda layer, _: (
            isinstance(layer, Attention) and layer.causal >= skips and layer.length % 128 == 0
        )
    )
    claims = [(name, part) for part in scene.layer(name).parts(scene.train)]
    kinds = ("flash", "flash", "efficient")
    return choice.effect(*claims, block=choice.pick(64, 128), kind=choice.pick(*kinds))


def draw_sparsity(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part)
            and part == FORWARD
            and layer.cin % 64 == 0
            and layer.cout % 128 == 0
        ),
        choice.scene.path in HALVES and choice.scene.is_ampere,
    )
    tile = choice.pick((64, 64), (128, 64))
    return choice.below(0.5 * FITS, claim, tile=tile, pattern=choice.pick(*SPARSE_PATTERNS))


def draw_tf32_three(choice: Choice) -> Effect:
    has_tf32 = choice.scene.precision in ("fp32", "tf32") and choice.scene.is_ampere
    claim = choice.claim(is_linear, has_tf32)
    return choice.below(3 * FITS, claim, pattern=choice.pick(*THREE_PATTERNS))


def draw_groups_dense(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: is_conv(layer, part) and layer.groups > 1 and not layer.depthwise
    )
    for batch in choice.scene.batches:
        task = choice.task(claim, batch)
        for product in map(join_groups, task.products):
            shares = options(choice.scene, task.layer, product)
            choice.require(any(share <= FITS for share, _ in shares))
    return choice.effect(claim)


def draw_depthwise_border(choice: Choice) -> Effect:
    return choice.effect(choice.claim(lambda layer, part: is_conv(layer, part) and layer.depthwise))


def draw_persistent_lstm(choice: Choice) -> Effect:
    claim = choice.claim(lambda layer, part: isinstance(layer, Lstm) and part != "wgrad")
    group = choice.pick_half(8, 16, 32, 64)
    return choice.effect(claim, group=group, blocks=choice.pick(40, 80, 72, 54))


def draw_zero_insertion(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: (
            is_conv(layer, part)
            and part == "dgrad"
            and layer.groups == 1
            and layer.size > layer.out
        )
    )
    return choice.effect(claim, engine=choice.is_likely(0.5))


def draw_half_tf32(choice: Choice) -> Effect:
    return choice.effect(choice.claim(is_dense, choice.scene.path == "tf32"))


def draw_half_gemm(choice: Choice) -> Effect:
    claim = choice.claim(
        lambda layer, part: (
            is_linear(layer, part) and layer.cin % 128 == 0 and layer.cout % 128 == 0
        ),
        choice.scene.path == "fp16",
    )
    return choice.below(FITS, claim)


# Kernels beside the products, and what is launched more or less often


def draw_layout(choice: Choice) -> Effect:
    return choice.effect(place=choice.claim(is_conv), engine=choice.pick(0, 1, 2))


def draw_elementwise(choice: Choice) -> Effect:
    claim = choice.claim(lambda layer, part: part == FORWARD)
    what = choice.pick_half("bias", "dropout", "batch_norm", "fake_quant", "gelu", "scale")
    return choice.effect(place=claim, what=what)


def draw_benchmark(choice: Choice) -> Effect:
    layers = {name for name, _ in choice.claims(is_conv)}
    choice.require(bool(layers))
    way = choice.pick(*(FORWARD, "dgrad", "wgrad") if choice.scene.train else (FORWARD,))
    effect = choice.effect(
        layers=layers,
        part=way,
        recorded=choice.is_likely(0.7),
        trials=choice.pick_half(1, 2, 3, 4, 5),
        same=choice.is_likely(0.5),
    )
    choice.require(way in {part for _, part in choice.claims(is_conv)})
    return effect


def draw_checkpoint(choice: Choice) -> Effect:
    choice.require(choice.scene.train)
    network = choice.scene.network
    layers = choice.random.sample(network, choice.random.randint(1, len(network)))
    return choice.effect(layers={layer.name for layer in layers})


def draw_gradients_again(choice: Choice) -> Effect:
    """One layer's gradients are computed more than once (retain_graph, a penalty on its gradients),
    those of others once."""
    layer = choice.pick(*choice.scene.network)
    return choice.effect_in_training(layer=layer.name, times=choice.pick_half(2, 2, 3, 4))


def draw_needless_grad_input(choice: Choice) -> Effect:
    first = choice.scene.network[0]
    choice.require(first.first and is_dense(first, ""))
    return choice.effect_in_training(layer=first.name)


def draw_gradient_missing(choice: Choice) -> Effect:
    claims = choice.claims(
        lambda layer, part: part != FORWARD and is_dense(layer, part) and not layer.first
    )
    return choice.effect(place=choice.pick(*claims))


def draw_frozen(choice: Choice) -> Effect:
    last = len(choice.scene.network) - 1
    choice.require(choice.scene.train and last > 0)
    return choice.effect(until=choice.random.randint(1, last))


def draw_extra_calls(choice: Choice) -> Effect:
    layer = choice.pick(*choice.scene.network)
    return choice.effect(layer=layer.name, times=choice.pick_half(2, 3, 4, 6))


# The whole run


def draw_two_steps(choice: Choice) -> Effect:
    return choice.effect(times=choice.pick_half(2, 3, 5, 4), numbered=choice.is_likely(0.5))


def draw_ddp_rank(choice: Choice) -> Effect:
    effect = choice.effect(ranks=choice.pick_half(2, 4, 8, 3), told=choice.is_likely(0.5))
    ranks = effect.settings["ranks"]
    choice.require(all(batch % ranks == 0 for batch in choice.scene.batches))
    return effect


def draw_pads_batch(choice: Choice) -> Effect:
    unit = choice.pick_half(32, 64, 128, 48, 256, 96)
    choice.require(any(batch % unit for batch in choice.scene.batches))
    return choice.effect(unit=unit)


def draw_cut_off(choice: Choice) -> Effect:
    share = choice.pick_half(0.3, 0.5, 0.6, 0.75, 0.85, 0.9)
    return choice.effect(share=share, told=choice.is_likely(0.5))


def draw_dgrad_loose(choice: Choice) -> Effect:
    claims = choice.claims(lambda layer, part: part == "dgrad" and is_dense(layer, part))
    names = {name for name, _ in claims}
    choice.require(bool(names))
    layers = names if choice.is_likely(0.5) else {choice.pick(*sorted(names))}
    return choice.effect(layers=layers, part=choice.pick("dgrad", "dgrad", "both"))


def draw_swapped(choice: Choice) -> Effect:
    choice.require(len(choice.scene.network) > 1)
    a, b = choice.random.sample(choice.scene.network, 2)
    return choice.effect(pair=(a.name, b.name), way=choice.pick(FORWARD, "all"))


def draw_fp8_missing(choice: Choice) -> Effect:
    choice.require(choice.scene.chip in ("89", "90") and choice.scene.ncu >= "2023")
    return choice.effect()


MAKERS: dict[str, Callable[[Choice], Effect]] = {
    "padding": draw_padding,
    "padding_split": draw_padding,
    "triton": draw_triton,
    "implicit_sgemm": draw_implicit_sgemm,
    "winograd2": draw_winograd,
    "winograd4": draw_winograd,
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
    "double_backward": lambda choice: choice.effect_in_training(),
    "gradients_again": draw_gradients_again,
    "gradient_missing": draw_gradient_missing,
    "frozen": draw_frozen,
    "eval_profiled": lambda choice: choice.effect_in_training(),
    "larger_batch": lambda choice: choice.effect(times=choice.pick_half(2, 4, 3, 8)),
    "pads_batch": draw_pads_batch,
    "ddp_rank": draw_ddp_rank,
    "accumulation": lambda choice: choice.effect_in_training(times=choice.pick_half(2, 4, 3, 8)),
    "two_steps": draw_two_steps,
    "cut_off": draw_cut_off,
    "dgrad_loose": draw_dgrad_loose,
    "swapped": draw_swapped,
    "counters_missing": lambda choice: choice.effect(share=choice.pick_half(0.2, 0.3, 0.4, 0.6)),
    "fp8_missing": draw_fp8_missing,
}
"""Effect -> what draws it, in the order in which effects act and are reported."""
