"""Which effect a draw has, and with which parameters: one function for each, None where the effect
cannot occur.

``taken`` are the parts of layers that other effects have claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from effects import ALGORITHMS, Claim, Effect, Scene, T, _dense, half, parts, products, worst
from kernels import FITS, options, tiled
from networks import Attention, Conv, Layer, Linear, Lstm

Maker = Callable[[Scene, Random, frozenset[Claim]], Effect | None]
MAKERS: dict[str, Maker] = {}


def maker(function: Maker) -> Maker:
    """Register the function under its name."""
    MAKERS[function.__name__.removeprefix("draw_")] = function
    return function


def places(
    scene: Scene, taken: frozenset[Claim], fits: Callable[[Layer, str], bool]
) -> list[Claim]:
    """Parts that are free and fit."""
    return [
        (layer.name, part)
        for layer in scene.network
        for part in parts(layer, scene.train)
        if (layer.name, part) not in taken and fits(layer, part)
    ]


def even(scene: Scene, effect: Effect, most: float) -> bool:
    """Whether the algorithm executes at most ``most`` times the product at every batch size: else
    it is not taken for it."""
    ((name, part),) = effect.claims
    layer = scene.layer(name)
    realise = ALGORITHMS[effect.name]
    return all(
        sum(launch.flops for launch in realise(scene, effect, layer, part, batch))
        <= most * 2 * sum(product.macs for product in products(layer, part, batch))
        for batch in scene.batches
    )


def one(random: Random, found: Sequence[T]) -> T | None:
    return random.choice(found) if found else None


@maker
def draw_padding(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return _padding("padding", scene, random, taken, 1)


@maker
def draw_padding_split(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return _padding(
        "padding_split",
        scene,
        random,
        taken,
        random.choice(half((2, 3, 4, 5, 8, 6), scene.cutting)),
    )


def _padding(
    name: str, scene: Scene, random: Random, taken: frozenset[Claim], pieces: int
) -> Effect | None:
    place = one(
        random,
        places(
            scene, taken, lambda layer, part: not isinstance(layer, Conv) or not layer.depthwise
        ),
    )
    if place is None:
        return None
    layer, batch = scene.layer(place[0]), max(scene.batches)
    product = max(products(layer, place[1], batch), key=lambda item: item.macs)
    smaller = (
        replace(product, m=max(1, product.m // pieces)) if product.part != "wgrad" else product
    )
    kernels = half(worst(scene, layer, smaller, 1.07, 9), scene.cutting)
    if not kernels:
        return None
    kernel = random.choice(kernels)
    settings = {"kernel": kernel, "pieces": pieces, "main": product.part}
    return Effect(name, frozenset([place]), settings, kernel[0].named)


@maker
def draw_triton(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    if int(scene.chip) < 75:
        return None
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Linear)))
    tiles = half(
        ((64, 64), (128, 64), (64, 128), (128, 128), (32, 64), (128, 256), (16, 128), (64, 32)),
        scene.cutting,
    )
    if place is None:
        return None
    return Effect(
        "triton",
        frozenset([place]),
        {
            "tile": random.choice(tiles),
            "step": random.choice((32, 64)),
            "number": random.randrange(20),
            "dynamic": random.random() < 0.3,
        },
        False,
    )


@maker
def draw_implicit_sgemm(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(
        random,
        places(scene, taken, lambda layer, part: isinstance(layer, Conv) and part == "forward"),
    )
    if place is None or scene.path != "fp32":
        return None
    templates = half(
        ((1024, 5, 5), (128, 6, 7), (128, 5, 5), (512, 6, 8), (1024, 6, 7)), scene.cutting
    )
    return Effect("implicit_sgemm", frozenset([place]), {"template": random.choice(templates)})


def _three(kernels: tuple[int, ...]) -> Callable[[Layer, str], bool]:
    def fits(layer: Layer, part: str) -> bool:
        return (
            isinstance(layer, Conv)
            and layer.kernel in kernels
            and layer.stride == 1
            and layer.groups == 1
            and part != "wgrad"
            and layer.cin >= 8
            and layer.out == layer.size
        )

    return fits


@maker
def draw_winograd2(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, _three((3,))))
    if place is None or scene.path != "fp32":
        return None
    tiles = half(((1, 4, 8), (2, 4, 4), (4, 2, 4), (8, 2, 2)), scene.cutting)
    effect = Effect("winograd2", frozenset([place]), {"tiles": random.choice(tiles)})
    return effect if even(scene, effect, 1.3) else None


@maker
def draw_winograd4(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, _three((3,))))
    if place is None or scene.path != "fp32":
        return None
    tiles = half(((128, 64), (64, 64), (128, 128), (32, 128), (128, 32)), scene.cutting)
    effect = Effect("winograd4", frozenset([place]), {"tile": random.choice(tiles)})
    return effect if even(scene, effect, 1.3) else None


@maker
def draw_fft(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return (
            isinstance(layer, Conv)
            and layer.kernel in (3, 5, 7)
            and layer.stride == layer.groups == 1
            and layer.cin >= 8
        )

    place = one(random, places(scene, taken, fits))
    if place is None or scene.path != "fp32":
        return None
    effect = Effect(
        "fft", frozenset([place]), {"side": random.choice((32, 16)), "flips": random.random() < 0.5}
    )
    return effect if even(scene, effect, 3) else None


@maker
def draw_split_k(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Linear)))
    if place is None:
        return None
    layer = scene.layer(place[0])
    (product,) = products(layer, place[1], max(scene.batches))
    kernels = [
        kernel for kernel in worst(scene, layer, product, 0.9, FITS) if kernel[0].grid == "tiles"
    ]
    found = one(random, half(kernels, scene.cutting))
    if found is None or product.k < 64:
        return None
    slices = [
        number
        for number in half((2, 3, 4, 5, 8, 6, 16, 12), scene.cutting)
        if product.k // number >= found[0].step
    ]
    slices = [number for number in slices if product.k % (number * found[0].step) == 0]
    if not slices:
        return None
    for batch in scene.batches:
        (product,) = products(layer, place[1], batch)
        if tiled(*found[:2], product, found[2]).flops > FITS * 2 * product.macs:
            return None
    return Effect("split_k", frozenset([place]), {"kernel": found, "slices": random.choice(slices)})


@maker
def draw_split_inside(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return isinstance(layer, Linear) or (
            isinstance(layer, Conv) and part == "wgrad" and layer.groups == 1
        )

    place = one(random, places(scene, taken, fits))
    if place is None:
        return None
    layer = scene.layer(place[0])
    (product,) = products(layer, place[1], min(scene.batches))
    kernels = [
        kernel for kernel in worst(scene, layer, product, 0.9, 1.6) if kernel[0].grid == "tiles"
    ]
    found = one(random, half(kernels, scene.cutting))
    if found is None:
        return None
    slices = [
        number
        for number in half((2, 3, 4, 8, 16, 6, 12, 24), scene.cutting)
        if product.k // number >= found[0].step
    ]
    if not slices:
        return None
    settings = {"kernel": found, "slices": random.choice(slices), "adds": random.random() < 0.5}
    return Effect("split_inside", frozenset([place]), settings, found[0].named)


def _fused(scene: Scene, random: Random, taken: frozenset[Claim], causal: bool) -> Claim | None:
    def fits(layer: Layer, part: str) -> bool:
        fused = isinstance(layer, Attention) and layer.causal >= causal
        return fused and layer.length % 128 == 0  # type: ignore[attr-defined]

    if scene.precision not in ("fp16", "bf16") or int(scene.chip) < 80:
        return None
    return one(random, places(scene, taken, fits))


@maker
def draw_flash_recompute(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = _fused(scene, random, taken, False) if scene.train else None
    if place is None:
        return None
    settings = {
        "block": random.choice((64, 128)),
        "kind": random.choice(("flash", "flash", "efficient")),
    }
    return Effect(
        "flash_recompute", frozenset([(place[0], "forward"), (place[0], "dgrad")]), settings
    )


@maker
def draw_causal_skip(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = _fused(scene, random, taken, True)
    if place is None:
        return None
    claims = frozenset((place[0], part) for part in parts(scene.layer(place[0]), scene.train))
    settings = {
        "block": random.choice((64, 128)),
        "kind": random.choice(("flash", "flash", "efficient")),
    }
    return Effect("causal_skip", claims, settings)


@maker
def draw_sparsity(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return (
            isinstance(layer, Linear)
            and part == "forward"
            and layer.cin % 64 == 0
            and layer.cout % 128 == 0
        )

    place = one(random, places(scene, taken, fits))
    if place is None or scene.path not in ("fp16", "bf16") or int(scene.chip) < 80:
        return None
    patterns = (
        (
            "sm80_xmma_sparse_gemm_{t}{t}_{t}f32_f32_tn_n_tilesize{m}x{n}x64_stage3_warpsize2x2x1"
            "_sptensor16x8x32_execute_kernel__5x_cusparseLt"
        ),
        "void cutlass::Kernel2<cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8>"
        "(cutlass_80_tensorop_{t}_s16832spgemm_{t}_{m}x{n}_64x3_tn_align8::Params)",
    )
    settings = {"tile": random.choice(((64, 64), (128, 64))), "pattern": random.choice(patterns)}
    effect = Effect("sparsity", frozenset([place]), settings)
    return effect if even(scene, effect, 0.5 * FITS) else None


@maker
def draw_tf32_three(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Linear)))
    if place is None or scene.precision not in ("fp32", "tf32") or int(scene.chip) < 80:
        return None
    patterns = (
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4>"
            "(cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4::Params)"
        ),
        (
            "void cutlass::Kernel<cutlass::gemm::kernel::Gemm"
            "<cutlass::gemm::threadblock::MmaMultistage<cutlass::gemm::GemmShape<128, 64, 16>, "
            "cutlass::arch::OpMultiplyAddFastF32, cutlass::layout::RowMajor>>>(int)"
        ),
    )
    effect = Effect("tf32_three", frozenset([place]), {"pattern": random.choice(patterns)})
    return effect if even(scene, effect, 3 * FITS) else None


@maker
def draw_groups_dense(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return isinstance(layer, Conv) and layer.groups > 1 and not layer.depthwise

    place = one(random, places(scene, taken, fits))
    if place is None:
        return None
    layer = scene.layer(place[0])
    dense = [
        _dense(product) for batch in scene.batches for product in products(layer, place[1], batch)
    ]
    fitting = all(
        any(option[0] <= FITS for option in options(scene.chip, scene.precision, layer, item))
        for item in dense
    )
    return Effect("groups_dense", frozenset([place])) if fitting else None


@maker
def draw_depthwise_border(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(
        random,
        places(scene, taken, lambda layer, part: isinstance(layer, Conv) and layer.depthwise),
    )
    return Effect("depthwise_border", frozenset([place])) if place else None


@maker
def draw_persistent_lstm(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(
        random,
        places(scene, taken, lambda layer, part: isinstance(layer, Lstm) and part != "wgrad"),
    )
    if place is None:
        return None
    settings = {
        "group": random.choice(half((8, 16, 32, 64), scene.cutting)),
        "blocks": random.choice((40, 80, 72, 54)),
    }
    return Effect("persistent_lstm", frozenset([place]), settings, False)


@maker
def draw_zero_insertion(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return (
            isinstance(layer, Conv)
            and part == "dgrad"
            and layer.groups == 1
            and layer.size > layer.out
        )

    place = one(random, places(scene, taken, fits))
    return (
        Effect("zero_insertion", frozenset([place]), {"engine": random.random() < 0.5})
        if place
        else None
    )


@maker
def draw_half_tf32(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Conv | Linear)))
    return Effect("half_tf32", frozenset([place])) if place and scene.path == "tf32" else None


@maker
def draw_half_gemm(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return isinstance(layer, Linear) and layer.cin % 128 == 0 and layer.cout % 128 == 0

    place = one(random, places(scene, taken, fits))
    effect = Effect("half_gemm", frozenset([place])) if place and scene.path == "fp16" else None
    return effect if effect and even(scene, effect, FITS) else None


# Kernels beside the products, and what is launched more or less often


@maker
def draw_layout(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Conv)))
    return (
        Effect("layout", settings={"place": place, "engine": random.choice((0, 1, 2))})
        if place
        else None
    )


@maker
def draw_elementwise(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: part == "forward"))
    words = half(("bias", "dropout", "batch_norm", "fake_quant", "gelu", "scale"), scene.cutting)
    return (
        Effect("elementwise", settings={"place": place, "what": random.choice(words)})
        if place
        else None
    )


@maker
def draw_benchmark(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    layers = [layer for layer in scene.network if isinstance(layer, Conv)]
    if not layers:
        return None
    way = random.choice(("forward", "dgrad", "wgrad") if scene.train else ("forward",))
    settings = {
        "layers": {layer.name for layer in layers},
        "part": way,
        "recorded": random.random() < 0.7,
        "trials": random.choice(half((1, 2, 3, 4, 5), scene.cutting)),
        "same": random.random() < 0.5,
    }
    if all(
        (layer.name, way) not in places(scene, frozenset(), lambda *_: True) for layer in layers
    ):
        return None
    return Effect("benchmark", settings=settings)


@maker
def draw_checkpoint_same(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return _checkpoint("checkpoint_same", scene, random)


@maker
def draw_checkpoint_other(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return _checkpoint("checkpoint_other", scene, random)


def _checkpoint(name: str, scene: Scene, random: Random) -> Effect | None:
    if not scene.train:
        return None
    count = random.randint(1, len(scene.network))
    layers = {layer.name for layer in random.sample(scene.network, count)}
    return Effect(name, settings={"layers": layers}, nameable=name == "checkpoint_same")


@maker
def draw_double_backward(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("double_backward", nameable=False) if scene.train else None


@maker
def draw_gradients_again(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    """One layer's gradients are computed more than once (retain_graph, a penalty on its gradients),
    those of others once."""
    layer = random.choice(scene.network)
    settings = {"layer": layer.name, "times": random.choice(half((2, 2, 3, 4), scene.cutting))}
    return Effect("gradients_again", settings=settings) if scene.train else None


@maker
def draw_needless_grad_input(
    scene: Scene, random: Random, taken: frozenset[Claim]
) -> Effect | None:
    first = scene.network[0]
    fits = scene.train and first.first and isinstance(first, Conv | Linear)
    return Effect("needless_grad_input", settings={"layer": first.name}) if fits else None


@maker
def draw_gradient_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    found = places(
        scene,
        frozenset(),
        lambda layer, part: part != "forward" and isinstance(layer, Conv | Linear),
    )
    place = one(random, [claim for claim in found if not scene.layer(claim[0]).first])
    return Effect("gradient_missing", settings={"place": place}) if place else None


@maker
def draw_frozen(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    if not scene.train or len(scene.network) < 2:
        return None
    return Effect("frozen", settings={"until": random.randint(1, len(scene.network) - 1)})


@maker
def draw_extra_calls(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    layer = random.choice(scene.network)
    return Effect(
        "extra_calls",
        settings={"layer": layer.name, "times": random.choice(half((2, 3, 4, 6), scene.cutting))},
    )


# The whole run


@maker
def draw_two_steps(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect(
        "two_steps",
        settings={
            "times": random.choice(half((2, 3, 5, 4), scene.cutting)),
            "numbered": random.random() < 0.5,
        },
    )


@maker
def draw_accumulation(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    times = random.choice(half((2, 4, 3, 8), scene.cutting))
    return Effect("accumulation", settings={"times": times}) if scene.train else None


@maker
def draw_larger_batch(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect(
        "larger_batch", settings={"times": random.choice(half((2, 4, 3, 8), scene.cutting))}
    )


@maker
def draw_ddp_rank(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    ranks = random.choice(half((2, 4, 8, 3), scene.cutting))
    told = random.random() < 0.5
    fits = all(batch % ranks == 0 for batch in scene.batches)
    return Effect("ddp_rank", settings={"ranks": ranks, "told": told}) if fits else None


@maker
def draw_pads_batch(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    unit = random.choice(half((32, 64, 128, 48, 256, 96), scene.cutting))
    fits = any(batch % unit for batch in scene.batches)
    return Effect("pads_batch", settings={"unit": unit}) if fits else None


@maker
def draw_eval_profiled(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("eval_profiled") if scene.train else None


@maker
def draw_cut_off(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    share = random.choice(half((0.3, 0.5, 0.6, 0.75, 0.85, 0.9), scene.cutting))
    return Effect("cut_off", settings={"share": share, "told": random.random() < 0.5})


@maker
def draw_dgrad_loose(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    found = places(
        scene, frozenset(), lambda layer, part: part == "dgrad" and isinstance(layer, Conv | Linear)
    )
    names = {name for name, _ in found}
    if not names:
        return None
    chosen = names if random.random() < 0.5 else {random.choice(sorted(names))}
    part = random.choice(("dgrad", "dgrad", "both"))
    return Effect("dgrad_loose", settings={"layers": chosen, "part": part})


@maker
def draw_swapped(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    if len(scene.network) < 2:
        return None
    a, b = random.sample(scene.network, 2)
    return Effect(
        "swapped", settings={"pair": (a.name, b.name), "way": random.choice(("forward", "all"))}
    )


@maker
def draw_counters_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect(
        "counters_missing",
        settings={"share": random.choice(half((0.2, 0.3, 0.4, 0.6), scene.cutting))},
    )


@maker
def draw_fp8_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("fp8_missing") if scene.chip in ("89", "90") and scene.ncu >= "2023" else None
