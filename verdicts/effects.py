"""What hardware, libraries and programs do to the FLOPs of a layer: one realisation for each effect, from its arithmetic.

An effect claims parts of layers ("conv2", "forward"), or acts on the whole run. Nothing here knows how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from random import Random
from typing import Any, TypeVar

from kernels import FITS, Family, Launch, depthwise, options, path_of, plain, tiled
from networks import Attention, Conv, Layer, Linear, Lstm, Network, Product

T = TypeVar("T")
Claim = tuple[str, str]
"""Layer and part: forward, dgrad (of recurrent layers and attention: all gradients of data), wgrad."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect with its drawn parameters."""

    name: str
    claims: frozenset[Claim] = frozenset()
    settings: dict[str, Any] = field(default_factory=dict)
    nameable: bool = True
    """Whether names, grids, flags or shapes show it; if not, only the open percent can be told."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything of a draw but its effects."""

    seed: int
    network: Network
    batches: tuple[int, ...]
    chip: str
    precision: str
    train: bool
    ncu: str
    cutting: bool
    """The half of parameters that is kept for a last check."""

    def random(self, *words: object) -> Random:
        return Random(":".join(map(str, (self.seed, *words))))  # noqa: S311 - reproducible draws, no secrets

    @property
    def path(self) -> str:
        return path_of(self.chip, self.precision)

    def layer(self, name: str) -> Layer:
        return next(layer for layer in self.network if layer.name == name)


def half(options_: Sequence[T], last: bool) -> list[T]:
    """Every second option; the others are kept for the last check. Of fewer than four, all."""
    return list(options_) if len(options_) < 4 else list(options_[int(last) :: 2])


def products(layer: Layer, part: str, batch: int) -> list[Product]:
    """The products of one part of a layer."""
    if part == "forward":
        return layer.forward(batch)
    wanted = layer.gradients(batch)
    if part == "wgrad":
        return [product for product in wanted if product.part == "wgrad"]
    return [product for product in wanted if product.part != "wgrad"]


def parts(layer: Layer, train: bool) -> list[str]:
    """The parts that paper has of a layer."""
    if not train:
        return ["forward"]
    if isinstance(layer, Attention):
        return ["forward", "dgrad"]
    if layer.first and not isinstance(layer, Lstm):
        return ["forward", "wgrad"]
    return ["forward", "dgrad", "wgrad"]


def usual(scene: Scene, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Without any effect."""
    random = scene.random(layer.name, part)
    state = random.getstate()
    found = []
    for product in products(layer, part, batch):
        random.setstate(state)  # equal products get equal kernels
        found.append(plain(scene.chip, scene.precision, layer, product, random))
    if isinstance(layer, Attention):
        found.insert(1, Launch("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>"
                               "(float*, float const*, int, int, int)", (ceil(batch * layer.heads / 4), 1, 1)))  # fmt: skip
    if isinstance(layer, Lstm):
        found.append(
            Launch(
                "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, int, 1>(int)",
                (32, 1, 1),
            )
        )
    return found


# Algorithms


def worst(
    scene: Scene, layer: Layer, product: Product, low: float, high: float
) -> list[tuple[Family, tuple[int, int], bool]]:
    """Kernels whose tiles execute between ``low`` and ``high`` times the product."""
    found = options(scene.chip, scene.precision, layer, product)
    return [(family, tile, flip) for factor, family, tile, flip in found if low < factor < high]


def padding(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Whole tiles for a shape that does not fill them; a batch may come in several calls."""
    family, tile, flip = effect.settings["kernel"]
    pieces = effect.settings.get("pieces", 1)
    found = []
    for product in products(layer, part, batch):
        if effect.settings.get("main", product.part) != product.part:
            found.append(plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part)))
            continue
        cut = "k" if product.part == "wgrad" else "m"
        whole = getattr(product, cut)
        for number in range(pieces):
            size = whole * (number + 1) // pieces - whole * number // pieces
            if size:
                found.append(tiled(family, tile, replace(product, **{cut: size}), flip))
    return found


def triton(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Inductor's template: the tile is in no name."""
    tile, step = effect.settings["tile"], effect.settings["step"]
    path = "ffma" if scene.path == "fp32" else scene.path
    kind = "convolution" if isinstance(layer, Conv) else "mm"
    family = Family(f"triton_tem_fused_{kind}_{effect.settings['number']}", (tile,), step, path,
                    2048 if path == "tf32" else 4096)  # fmt: skip
    found = []
    for product in products(layer, part, batch):
        launch = tiled(family, tile, product, False)
        launch.grid = (prod(launch.grid), 1, 1)
        found.append(launch)
    return found


def implicit_sgemm(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """cuDNN's generic kernel: the tile is 2^a rows by 2^b filters, by its template's arguments."""
    threads, a, b = effect.settings["template"]
    (product,) = products(layer, part, batch)
    rows, filters = ceil(product.m / 2**a), ceil(product.n / 2**b)
    depth = ceil(product.k / 8) * 8 if a == 5 else product.k
    name = (
        f"void implicit_convolve_sgemm<float, float, {threads}, {a}, {b}, 3, 3, {5 if a > 5 else 3}, 1, false, true, true>(int, "
        "int, int, float const*, int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float, int, "
        "float const*, float const*, bool, int, int)"
    )
    blocks = rows * filters * product.count
    return [Launch(name, (rows, filters, product.count), {"ffma": blocks * 2 ** (a + b) * depth})]


def winograd2(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """F(2x2, 3x3), fused: a block is 32 tiles x 32 filters x 16 multiplies x channels."""
    assert isinstance(layer, Conv)
    across, high, wide = effect.settings["tiles"]
    cin, cout = (layer.cin, layer.cout) if part == "forward" else (layer.cout, layer.cin)
    side = layer.out if part == "forward" else layer.size
    grid = (ceil(batch / across) * ceil(cout / 32), ceil(side / (2 * high)), ceil(side / (2 * wide)))
    blocks = prod(grid)
    adds = blocks * (32 * cin * 32 + 32 * 32 * 24)
    chip = "volta" if int(scene.chip) < 80 else "ampere"
    head = "volta_scudnn" if chip == "volta" else "cudnn_ampere_scudnn"
    order = "nt" if part == "forward" else "nn"
    return [
        Launch("void cudnn::winograd::generateWinogradTilesKernel<0, float, float>(cudnn::winograd::GenerateWinogradTiles"
               "Params<float, float>)", (4, 1, 1), {"fadd": 20 * cin * cout, "fmul": 8 * cin * cout}),
        Launch(f"{head}_winograd_128x128_ldg1_ldg4_relu_tile{across}{high}{wide}t_{order}_v1", grid,
               {"ffma": blocks * 32 * 32 * 16 * cin, "fadd": adds}),
    ]  # fmt: skip


def winograd4(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """F(4x4, 3x3), in parts: 36 matrix products between three transforms."""
    assert isinstance(layer, Conv)
    cin, cout = (layer.cin, layer.cout) if part == "forward" else (layer.cout, layer.cin)
    side = layer.out if part == "forward" else layer.size
    tiles = 16 * ceil(batch / 16) * ceil(side / 4) ** 2
    tile = effect.settings["tile"]
    grid = (ceil(tiles / tile[0]), ceil(cout / tile[1]), 36)
    head = "void cudnn::winograd_nonfused::winogradForward"
    chip = "volta" if int(scene.chip) < 80 else "ampere"
    return [
        Launch(f"{head}Data4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)", (64, 1, 1),
               {"fadd": 72 * tiles * cin, "ffma": 36 * tiles * cin}),
        Launch(f"{head}Filter4x4<float, float>(cudnn::winograd_nonfused::WinogradFilterParams<float, float>)", (4, 1, 1),
               {"fadd": 30 * cin * cout, "fmul": 24 * cin * cout}),
        Launch(f"{chip}_sgemm_{tile[0]}x{tile[1]}_nn", grid, {"ffma": prod(grid) * tile[0] * tile[1] * ceil(cin / 8) * 8}),
        Launch(f"{head}Output4x4<float, float>(cudnn::winograd_nonfused::WinogradOutputParams<float, float>)", (64, 1, 1),
               {"fadd": 60 * tiles * cout, "ffma": 20 * tiles * cout}),
    ]  # fmt: skip


def fourier(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Tiles of 32 x 32 points: 32 x 17 complex products of 4 multiply-adds each."""
    assert isinstance(layer, Conv)
    side = effect.settings["side"]
    cin, cout = (layer.cin, layer.cout) if part == "forward" else (layer.cout, layer.cin)
    span = layer.out if part == "forward" else layer.size
    tiles = batch * ceil(span / (side - layer.kernel + 1)) ** 2
    points = side * (side // 2 + 1)
    each = {"fadd": 15 * side * side, "ffma": 5 * side * side}
    chip = "volta" if int(scene.chip) < 80 else "ampere"

    def transform(name: str, number: int) -> Launch:
        return Launch(name, (number, 1, 1), {key: value * number for key, value in each.items()})

    return [
        transform(f"void fft2d_r2c_{side}x{side}<float, false, 0u, false>(float2*, float const*, int, int)", tiles * cin),
        transform(f"void fft2d_r2c_{side}x{side}<float, false, 1u, true>(float2*, float const*, int, int)", cin * cout),
        Launch(f"{chip}_gcgemm_32x32_nt", (ceil(tiles / 32), ceil(cout / 32), points),
               {"ffma": ceil(tiles / 32) * 32 * ceil(cout / 32) * 32 * cin * points * 4}),
        transform(f"void fft2d_c2r_{side}x{side}<float, false, false, 0u, false, false>(float*, float2 const*, int, int)",
                  tiles * cout),
    ]  # fmt: skip


def split_k(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """The depth in slices; their sums are added up by a second kernel."""
    family, tile, flip = effect.settings["kernel"]
    slices = effect.settings["slices"]
    (product,) = products(layer, part, batch)
    launch = tiled(family, tile, product, flip, slices)
    reduce = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(cublasSplitKParams<float>, "
        "float const*, float const*, float*)"
    )
    return [launch, Launch(reduce, (64, 1, 1), {"fadd": slices * product.m * product.n * product.count})]


def attention(scene: Scene, effects: Sequence[Effect], layer: Layer, part: str, batch: int) -> list[Launch]:
    """A fused kernel. Its backward works out the scores again; with a causal mask it may leave out blocks."""
    assert isinstance(layer, Attention)
    names = {effect.name for effect in effects}
    settings = next(effect.settings for effect in effects if "block" in effect.settings)
    block = settings["block"]
    count = ceil(layer.length / block)
    blocks = count * (count + 1) // 2 if "causal_skip" in names else count * count
    square = 2 * batch * layer.heads * blocks * block * block * layer.depth
    half_type = "cutlass::half_t" if scene.precision == "fp16" else "cutlass::bfloat16_t"
    traits = f"<{layer.depth}, {block}, {block}, 4, false, false, {half_type}>"
    flags = f"false, {str(layer.causal).lower()}, false, false, true, true, false"
    grid = (count, batch, layer.heads)

    def launch(name: str, squares: int) -> Launch:
        return Launch(name, grid, {"tensor": squares * square}, scene.path)

    if settings["kind"] == "efficient":
        word = {"fp16": "f16", "bf16": "bf16"}[scene.precision]
        if part == "forward":
            return [launch(f"fmha_cutlassF_{word}_aligned_{block}x{block}_rf_sm80(PyTorchMemEffAttention::AttentionKernel<{half_type}"
                           f", cutlass::arch::Sm80, true, {block}, {block}, 64, true, true>::Params)", 2)]  # fmt: skip
        squares = 5 if "flash_recompute" in names else 4
        return [
            launch(f"fmha_cutlassB_{word}_aligned_{block}x{block}_k{layer.depth}_sm80(PyTorchMemEffAttention::"
                   f"AttentionBackwardKernel<cutlass::arch::Sm80, {half_type}, true, false, true, {block}, {block}, {layer.depth}>"
                   "::Params)", squares)
        ]  # fmt: skip
    if part == "forward":
        return [launch(f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits{traits}, {flags}>"
                       "(pytorch_flash::Flash_fwd_params)", 2)]  # fmt: skip
    squares = 5 if "flash_recompute" in names else 4
    return [
        Launch(f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits{traits}>"
               "(pytorch_flash::Flash_bwd_params)", grid, {"ffma": layer.outputs(batch)}),
        launch(f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits{traits}, {flags}>"
               "(pytorch_flash::Flash_bwd_params)", squares),
        Launch(f"void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits{traits}>"
               "(pytorch_flash::Flash_bwd_params, int)", grid, {"fmul": layer.outputs(batch)}),
    ]  # fmt: skip


def sparsity(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """2:4: the tensor cores leave out every second product."""
    type_ = "f16" if scene.path == "fp16" else "bf16"
    m, n = effect.settings["tile"]
    found = []
    for product in products(layer, part, batch):
        grid = (ceil(product.m / m), ceil(product.n / n), product.count)
        work = prod(grid) * m * n * ceil(product.k / 64) * 64
        name = effect.settings["pattern"].format(t=type_, m=m, n=n)
        found.append(Launch(name, grid, {"tensor": work}, scene.path, 8192))
    return found


def tf32_three(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """An fp32 product from three TF32 products of high and low halves."""
    found = []
    for product in products(layer, part, batch):
        name = effect.settings["pattern"].format(o="nn" if part == "dgrad" else "tn")
        grid = (ceil(product.m / 128), ceil(product.n / 64), product.count)
        work = prod(grid) * 128 * 64 * ceil(product.k / 16) * 16
        found.append(Launch(name, grid, {"tensor": 3 * 2 * work}, "tf32", 2048))
    return found


def groups_dense(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """All groups in one product, zeros between them multiplied too."""
    assert isinstance(layer, Conv)
    whole, found = replace(layer, groups=1), []
    for product in products(layer, part, batch):
        dense = _dense(product)
        found.append(plain(scene.chip, scene.precision, whole, dense, scene.random(layer.name, part)))
    return found


def _dense(product: Product) -> Product:
    if product.part == "wgrad":
        return replace(product, count=1, m=product.m * product.count, n=product.n * product.count)
    return replace(product, count=1, n=product.n * product.count, k=product.k * product.count)


def depthwise_border(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Taps outside of the image are not multiplied."""
    assert isinstance(layer, Conv)
    share = inside(layer) / (layer.out * layer.kernel)
    found = []
    for product in products(layer, part, batch):
        launch = depthwise(layer, product)
        launch.counts["ffma"] = round(product.macs * share * share)
        found.append(launch)
    return found


def inside(layer: Conv) -> int:
    """Taps of one image line that lie inside of it, over all outputs of the line."""
    return sum(
        0 <= place * layer.stride - layer.padding + tap < layer.size
        for place in range(layer.out)
        for tap in range(layer.kernel)
    )


def persistent_lstm(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """One kernel for all steps, its weights in registers; samples in groups."""
    assert isinstance(layer, Lstm)
    group = effect.settings["group"]
    recurrent = [product for product in products(layer, part, batch) if product.m == batch and product.part != "wgrad"]
    rest = [product for product in products(layer, part, batch) if product not in recurrent]
    work = sum(ceil(product.m / group) * group * product.n * product.k for product in recurrent)
    way = "fp" if part == "forward" else "bp"
    found = [plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part)) for product in rest]
    counts = {"ffma": work} if scene.path == "fp32" else {"tensor": 2 * work}
    return [
        *found,
        Launch(f"void RNN_blockPersist_{way}_LSTM<float, float, float, {layer.hidden}, {group}>(RNN_blockPersist_params)",
               (effect.settings["blocks"], 1, 1), counts, "" if scene.path == "fp32" else scene.path,
               2048 if scene.path == "tf32" else {"70": 512, "75": 2048}.get(scene.chip, 4096)),
    ]  # fmt: skip


def zero_insertion(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """The input's gradient for every input place and every tap, zeros between strides multiplied too."""
    assert isinstance(layer, Conv)
    product = Product("dgrad", batch * layer.size**2, layer.cin, layer.cout * layer.kernel**2)
    launch = plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part))
    if (effect.settings["engine"] and scene.path == "fp32") or "grouped" in launch.name:
        type_ = {"fp16": "__half", "bf16": "__nv_bfloat16"}.get(scene.precision, "float")
        name = (
            f"void cudnn::detail::dgrad_engine<{type_}, 512, 6, 5, 3, 3, 3, false>(int, int, int, {type_} const*, int, {type_} "
            f"const*, int, {type_}*, kernel_grad_params, unsigned long long, int, unsigned long long, int, float, int, int, int)"
        )
        return [Launch(name, (ceil(product.m / 64), ceil(product.n / 32), 1), {"ffma": product.macs})]
    return [launch]


def half_tf32(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """This part on the CUDA cores, the others on the tensor cores: no change of the count."""
    return [
        plain(scene.chip, "fp32", layer, product, scene.random(layer.name, part))
        for product in products(layer, part, batch)
    ]


def half_gemm(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Half precision on the CUDA cores, two lanes an instruction: no change of the count."""
    chip = "volta" if int(scene.chip) < 80 else "ampere"
    found = []
    for product in products(layer, part, batch):
        grid = (ceil(product.n / 128), ceil(product.m / 64), product.count)
        order = "nt" if part == "wgrad" else "tn"
        work = prod(grid) * 128 * 64 * ceil(product.k / 8) * 8
        found.append(Launch(f"{chip}_hgemm_128x64_{order}", grid, {"hfma": work // 2}))
    return found


Realise = Callable[[Scene, Effect, Layer, str, int], list[Launch]]
ALGORITHMS: dict[str, Realise] = {
    "padding": padding, "padding_split": padding, "triton": triton, "implicit_sgemm": implicit_sgemm,
    "winograd2": winograd2, "winograd4": winograd4, "fft": fourier, "split_k": split_k, "sparsity": sparsity,
    "tf32_three": tf32_three, "groups_dense": groups_dense, "depthwise_border": depthwise_border,
    "persistent_lstm": persistent_lstm, "zero_insertion": zero_insertion, "half_tf32": half_tf32, "half_gemm": half_gemm,
}  # fmt: skip
FUSED = ("flash_recompute", "causal_skip")


# Drawing parameters: each gives an effect for the scene, or None where it cannot occur. ``taken`` are claimed parts.

Maker = Callable[[Scene, Random, frozenset[Claim]], Effect | None]
MAKERS: dict[str, Maker] = {}


def maker(function: Maker) -> Maker:
    """Register the function under its name."""
    MAKERS[function.__name__.removeprefix("draw_")] = function
    return function


def places(scene: Scene, taken: frozenset[Claim], fits: Callable[[Layer, str], bool]) -> list[Claim]:
    """Parts that are free and fit."""
    return [
        (layer.name, part)
        for layer in scene.network
        for part in parts(layer, scene.train)
        if (layer.name, part) not in taken and fits(layer, part)
    ]


def even(scene: Scene, effect: Effect, most: float) -> bool:
    """Whether the algorithm executes at most ``most`` times the product at every batch size: else it is not taken for it."""
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
    return _padding("padding_split", scene, random, taken, random.choice(half((2, 3, 4, 5, 8, 6), scene.cutting)))


def _padding(name: str, scene: Scene, random: Random, taken: frozenset[Claim], pieces: int) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: not isinstance(layer, Conv) or not layer.depthwise))
    if place is None:
        return None
    layer, batch = scene.layer(place[0]), max(scene.batches)
    product = max(products(layer, place[1], batch), key=lambda item: item.macs)
    smaller = replace(product, m=max(1, product.m // pieces)) if product.part != "wgrad" else product
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
    tiles = half(((64, 64), (128, 64), (64, 128), (128, 128), (32, 64), (128, 256), (16, 128), (64, 32)), scene.cutting)
    if place is None:
        return None
    return Effect("triton", frozenset([place]),
                  {"tile": random.choice(tiles), "step": random.choice((32, 64)), "number": random.randrange(20)}, False)  # fmt: skip


@maker
def draw_implicit_sgemm(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Conv) and part == "forward"))
    if place is None or scene.path != "fp32":
        return None
    templates = half(((1024, 5, 5), (128, 6, 7), (128, 5, 5), (512, 6, 8), (1024, 6, 7)), scene.cutting)
    return Effect("implicit_sgemm", frozenset([place]), {"template": random.choice(templates)})


def _three(kernels: tuple[int, ...]) -> Callable[[Layer, str], bool]:
    def fits(layer: Layer, part: str) -> bool:
        return (
            isinstance(layer, Conv) and layer.kernel in kernels and layer.stride == 1 and layer.groups == 1
            and part != "wgrad" and layer.cin >= 8 and layer.out == layer.size
        )  # fmt: skip

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
    place = one(random, places(scene, taken, _three((3, 5, 7))))
    if place is None or scene.path != "fp32":
        return None
    effect = Effect("fft", frozenset([place]), {"side": random.choice((32, 16))})
    return effect if even(scene, effect, 3) else None


@maker
def draw_split_k(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Linear)))
    if place is None:
        return None
    layer = scene.layer(place[0])
    (product,) = products(layer, place[1], max(scene.batches))
    kernels = [kernel for kernel in worst(scene, layer, product, 0.9, FITS) if kernel[0].grid == "tiles"]
    found = one(random, half(kernels, scene.cutting))
    if found is None or product.k < 64:
        return None
    slices = [
        number for number in half((2, 3, 4, 5, 8, 6, 16, 12), scene.cutting) if product.k // number >= found[0].step
    ]
    slices = [number for number in slices if product.k % (number * found[0].step) == 0]
    if not slices:
        return None
    for batch in scene.batches:
        (product,) = products(layer, place[1], batch)
        if tiled(*found[:2], product, found[2]).flops > FITS * 2 * product.macs:
            return None
    return Effect("split_k", frozenset([place]), {"kernel": found, "slices": random.choice(slices)})


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
    settings = {"block": random.choice((64, 128)), "kind": random.choice(("flash", "flash", "efficient"))}
    return Effect("flash_recompute", frozenset([(place[0], "forward"), (place[0], "dgrad")]), settings)


@maker
def draw_causal_skip(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = _fused(scene, random, taken, True)
    if place is None:
        return None
    claims = frozenset((place[0], part) for part in parts(scene.layer(place[0]), scene.train))
    settings = {"block": random.choice((64, 128)), "kind": random.choice(("flash", "flash", "efficient"))}
    return Effect("causal_skip", claims, settings)


@maker
def draw_sparsity(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return isinstance(layer, Linear) and part == "forward" and layer.cin % 64 == 0 and layer.cout % 128 == 0

    place = one(random, places(scene, taken, fits))
    if place is None or scene.path not in ("fp16", "bf16") or int(scene.chip) < 80:
        return None
    patterns = (
        "sm80_xmma_sparse_gemm_{t}{t}_{t}f32_f32_tn_n_tilesize{m}x{n}x64_stage3_warpsize2x2x1_sptensor16x8x32_execute_kernel"
        "__5x_cusparseLt",
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
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}_align4>(cutlass_80_tensorop_s1688gemm_128x64_16x6_{o}"
        "_align4::Params)",
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultistage<cutlass::gemm::GemmShape"
        "<128, 64, 16>, cutlass::arch::OpMultiplyAddFastF32, cutlass::layout::RowMajor>>>(int)",
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
    dense = [_dense(product) for batch in scene.batches for product in products(layer, place[1], batch)]
    fitting = all(
        any(option[0] <= FITS for option in options(scene.chip, scene.precision, layer, item)) for item in dense
    )
    return Effect("groups_dense", frozenset([place])) if fitting else None


@maker
def draw_depthwise_border(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Conv) and layer.depthwise))
    return Effect("depthwise_border", frozenset([place])) if place else None


@maker
def draw_persistent_lstm(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: isinstance(layer, Lstm) and part != "wgrad"))
    if place is None:
        return None
    settings = {"group": random.choice(half((8, 16, 32, 64), scene.cutting)), "blocks": random.choice((40, 80, 72, 54))}
    return Effect("persistent_lstm", frozenset([place]), settings, False)


@maker
def draw_zero_insertion(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    def fits(layer: Layer, part: str) -> bool:
        return isinstance(layer, Conv) and part == "dgrad" and layer.groups == 1 and layer.size > layer.out

    place = one(random, places(scene, taken, fits))
    return Effect("zero_insertion", frozenset([place]), {"engine": random.random() < 0.5}) if place else None


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
    return Effect("layout", settings={"place": place, "engine": random.choice((0, 1, 2))}) if place else None


@maker
def draw_elementwise(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    place = one(random, places(scene, taken, lambda layer, part: part == "forward"))
    words = half(("bias", "dropout", "batch_norm", "fake_quant", "gelu", "scale"), scene.cutting)
    return Effect("elementwise", settings={"place": place, "what": random.choice(words)}) if place else None


@maker
def draw_benchmark(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    layers = [layer for layer in scene.network if isinstance(layer, Conv)]
    if not layers:
        return None
    way = random.choice(("forward", "dgrad", "wgrad") if scene.train else ("forward",))
    settings = {"layers": {layer.name for layer in layers}, "part": way, "recorded": random.random() < 0.7,
                "trials": random.choice(half((1, 2, 3, 4, 5), scene.cutting)), "same": random.random() < 0.5}  # fmt: skip
    if all((layer.name, way) not in places(scene, frozenset(), lambda *_: True) for layer in layers):
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
def draw_needless_grad_input(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    first = scene.network[0]
    fits = scene.train and first.first and isinstance(first, Conv | Linear)
    return Effect("needless_grad_input", settings={"layer": first.name}) if fits else None


@maker
def draw_gradient_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    found = places(scene, frozenset(), lambda layer, part: part != "forward" and isinstance(layer, Conv | Linear))
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
        "extra_calls", settings={"layer": layer.name, "times": random.choice(half((2, 3, 4, 6), scene.cutting))}
    )


# The whole run


@maker
def draw_two_steps(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("two_steps", settings={"times": random.choice(half((2, 3, 5, 4), scene.cutting)),
                                         "numbered": random.random() < 0.5})  # fmt: skip


@maker
def draw_accumulation(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    times = random.choice(half((2, 4, 3, 8), scene.cutting))
    return Effect("accumulation", settings={"times": times}) if scene.train else None


@maker
def draw_larger_batch(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("larger_batch", settings={"times": random.choice(half((2, 4, 3, 8), scene.cutting))})


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
    found = places(scene, frozenset(), lambda layer, part: part == "dgrad" and isinstance(layer, Conv | Linear))
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
    return Effect("swapped", settings={"pair": (a.name, b.name), "way": random.choice(("forward", "all"))})


@maker
def draw_counters_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("counters_missing", settings={"share": random.choice(half((0.2, 0.3, 0.4, 0.6), scene.cutting))})


@maker
def draw_fp8_missing(scene: Scene, random: Random, taken: frozenset[Claim]) -> Effect | None:
    return Effect("fp8_missing") if scene.chip in ("89", "90") and scene.ncu >= "2023" else None
