"""What hardware, libraries and programs do to the FLOPs of a layer: one realisation for each
effect, from its arithmetic.

An effect claims parts of layers ("conv2", "forward"), or acts on the whole run. Nothing here knows
how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from random import Random
from typing import Any, TypeVar

from kernels import Family, Launch, depthwise, options, path_of, plain, tiled
from networks import Attention, Conv, Layer, Lstm, Network, Product

T = TypeVar("T")
Claim = tuple[str, str]
"""Layer and part: forward, dgrad (of recurrent layers and attention: all gradients of
data), wgrad."""
FUSED = ("flash_recompute", "causal_skip")


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect with its drawn parameters."""

    name: str
    claims: frozenset[Claim] = frozenset()
    settings: dict[str, Any] = field(default_factory=dict)
    nameable: bool = True
    """Whether names, grids, flags or shapes show it; if not, only the open percent can be told."""


class Set(tuple[Effect, ...]):
    """Effects, asked for by name."""

    def get(self, name: str) -> Effect | None:
        return next((effect for effect in self if effect.name == name), None)


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
        # reproducible draws, no secrets
        return Random(":".join(map(str, (self.seed, *words))))  # noqa: S311

    @property
    def path(self) -> str:
        return path_of(self.chip, self.precision)

    def layer(self, name: str) -> Layer:
        return next(layer for layer in self.network if layer.name == name)


Realise = Callable[[Scene, Effect, Layer, str, int], list[Launch]]


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
        found.insert(
            1,
            Launch(
                "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, "
                "false>(float*, float const*, int, int, int)",
                (ceil(batch * layer.heads / 4), 1, 1),
            ),
        )
    if isinstance(layer, Lstm):
        found.append(
            Launch(
                "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, "
                "int, 1>(int)",
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
            found.append(
                plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part))
            )
            continue
        cut = "k" if product.part == "wgrad" else "m"
        whole = getattr(product, cut)
        for number in range(pieces):
            size = whole * (number + 1) // pieces - whole * number // pieces
            if size:
                found.append(tiled(family, tile, replace(product, **{cut: size}), flip))
    return found


def triton(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Inductor's template: the tile is in no name. It shrinks to the next power of two of what it
    covers, 16 at least; compiled for dynamic shapes, once, for the largest batch."""
    path = "ffma" if scene.path == "fp32" else scene.path
    kind = "convolution" if isinstance(layer, Conv) else "mm"
    hints = products(layer, part, max(scene.batches) if effect.settings["dynamic"] else batch)
    found = []
    for product, hint in zip(products(layer, part, batch), hints, strict=True):
        m, n, step = (
            max(16, min(side, 1 << (size - 1).bit_length()))
            for side, size in zip(
                (*effect.settings["tile"], effect.settings["step"]),
                (hint.m, hint.n, hint.k),
                strict=True,
            )
        )
        family = Family(
            f"triton_tem_fused_{kind}_{effect.settings['number']}",
            ((m, n),),
            step,
            path,
            2048 if path == "tf32" else 4096,
        )
        launch = tiled(family, (m, n), product, False)
        launch.grid = (prod(launch.grid), 1, 1)
        found.append(launch)
    return found


def implicit_sgemm(
    scene: Scene, effect: Effect, layer: Layer, part: str, batch: int
) -> list[Launch]:
    """cuDNN's generic kernel: the tile is 2^a rows by 2^b filters, by its template's arguments."""
    threads, a, b = effect.settings["template"]
    (product,) = products(layer, part, batch)
    rows, filters = ceil(product.m / 2**a), ceil(product.n / 2**b)
    depth = ceil(product.k / 8) * 8 if a == 5 else product.k
    name = (
        f"void implicit_convolve_sgemm<float, float, {threads}, {a}, {b}, 3, 3, "
        f"{5 if a > 5 else 3}, 1, false, true, true>(int, int, int, float const*, int, float*, "
        "float const*, kernel_conv_params, unsigned long long, int, float, float, int, float "
        "const*, float const*, bool, int, int)"
    )
    blocks = rows * filters * product.count
    return [Launch(name, (rows, filters, product.count), {"ffma": blocks * 2 ** (a + b) * depth})]


def winograd2(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """F(2x2, 3x3), fused: a block is 32 tiles x 32 filters x 16 multiplies x channels."""
    assert isinstance(layer, Conv)
    across, high, wide = effect.settings["tiles"]
    cin, cout = (layer.cin, layer.cout) if part == "forward" else (layer.cout, layer.cin)
    side = layer.out if part == "forward" else layer.size
    grid = (
        ceil(batch / across) * ceil(cout / 32),
        ceil(side / (2 * high)),
        ceil(side / (2 * wide)),
    )
    blocks = prod(grid)
    adds = blocks * (32 * cin * 32 + 32 * 32 * 24)
    chip = "volta" if int(scene.chip) < 80 else "ampere"
    head = "volta_scudnn" if chip == "volta" else "cudnn_ampere_scudnn"
    order = "nt" if part == "forward" else "nn"
    return [
        Launch(
            "void cudnn::winograd::generateWinogradTilesKernel<0, float, "
            "float>(cudnn::winograd::GenerateWinogradTilesParams<float, float>)",
            (4, 1, 1),
            {"fadd": 20 * cin * cout, "fmul": 8 * cin * cout},
        ),
        Launch(
            f"{head}_winograd_128x128_ldg1_ldg4_relu_tile{across}{high}{wide}t_{order}_v1",
            grid,
            {"ffma": blocks * 32 * 32 * 16 * cin, "fadd": adds},
        ),
    ]


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
        Launch(
            f"{head}Data4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, "
            "float>)",
            (64, 1, 1),
            {"fadd": 72 * tiles * cin, "ffma": 36 * tiles * cin},
        ),
        Launch(
            f"{head}Filter4x4<float, float>(cudnn::winograd_nonfused::WinogradFilterParams<float, "
            "float>)",
            (4, 1, 1),
            {"fadd": 30 * cin * cout, "fmul": 24 * cin * cout},
        ),
        Launch(
            f"{chip}_sgemm_{tile[0]}x{tile[1]}_nn",
            grid,
            {"ffma": prod(grid) * tile[0] * tile[1] * ceil(cin / 8) * 8},
        ),
        Launch(
            f"{head}Output4x4<float, float>(cudnn::winograd_nonfused::WinogradOutputParams<float, "
            "float>)",
            (64, 1, 1),
            {"fadd": 60 * tiles * cout, "ffma": 20 * tiles * cout},
        ),
    ]


def fourier(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """Tiles of 32 x 32 points: 32 x 17 complex products of 4 multiply-adds each; the filter's
    gradient sums over the tiles."""
    assert isinstance(layer, Conv)
    side = effect.settings["side"]
    span = layer.size if part == "dgrad" else layer.out
    tiles = batch * ceil(span / (side - layer.kernel + 1)) ** 2
    rows, columns, deep = {
        "forward": (tiles, layer.cout, layer.cin),
        "dgrad": (tiles, layer.cin, layer.cout),
        "wgrad": (layer.cout, layer.cin, tiles),
    }[part]
    points = side * (side // 2 + 1)
    each = {"fadd": 15 * side * side, "ffma": 5 * side * side}
    chip = "volta" if int(scene.chip) < 80 else "ampere"
    grid = (ceil(rows / 32), ceil(columns / 32), points)

    def transform(name: str, number: int) -> Launch:
        return Launch(name, (number, 1, 1), {key: value * number for key, value in each.items()})

    flip = [
        Launch(
            "void flip_filter<float, float>(float*, float const*, int, int, int, int)", (4, 1, 1)
        )
    ]
    return [
        *(flip if part != "wgrad" and effect.settings["flips"] else []),
        transform(
            f"void fft2d_r2c_{side}x{side}<float, false, 0u, false>(float2*, float const*, int, "
            "int)",
            rows * deep,
        ),
        transform(
            f"void fft2d_r2c_{side}x{side}<float, false, 1u, true>(float2*, float const*, int, "
            "int)",
            columns * deep,
        ),
        Launch(
            f"{chip}_gcgemm_32x32_nt", grid, {"ffma": prod(grid) * 32 * 32 * ceil(deep / 8) * 8 * 4}
        ),
        transform(
            f"void fft2d_c2r_{side}x{side}<float, false, false, 0u, false, false>(float*, float2 "
            "const*, int, int)",
            rows * columns,
        ),
    ]


def split_k(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """The depth in slices; their sums are added up by a second kernel."""
    family, tile, flip = effect.settings["kernel"]
    slices = effect.settings["slices"]
    (product,) = products(layer, part, batch)
    launch = tiled(family, tile, product, flip, slices)
    reduce = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, "
        "false>(cublasSplitKParams<float>, float const*, float const*, float*)"
    )
    return [
        launch,
        Launch(reduce, (64, 1, 1), {"fadd": slices * product.m * product.n * product.count}),
    ]


def split_inside(scene: Scene, effect: Effect, layer: Layer, part: str, batch: int) -> list[Launch]:
    """The depth in slices, one for each block of the grid's z, whose sums the kernel itself adds
    up: in memory (atomic additions are no FADD), or by blocks that each add to what the one before
    them has left."""
    family, tile, flip = effect.settings["kernel"]
    slices = effect.settings["slices"]
    found = []
    for product in products(layer, part, batch):
        launch = tiled(family, tile, product, flip, slices)
        launch.name = launch.name.replace("stridedB_", "stridedB_splitK_")
        if effect.settings["adds"]:
            sums = (
                launch.grid[0] * launch.grid[1] * (slices - 1) * tile[0] * tile[1] * product.count
            )
            launch.counts["fadd"] = launch.counts.get("fadd", 0) + sums
            launch.scale += sums
        found.append(launch)
    return found


def attention(
    scene: Scene, effects: Sequence[Effect], layer: Layer, part: str, batch: int
) -> list[Launch]:
    """A fused kernel. Its backward works out the scores again; with a causal mask it may leave
    out blocks."""
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
            return [
                launch(
                    f"fmha_cutlassF_{word}_aligned_{block}x{block}_rf_sm80"
                    f"(PyTorchMemEffAttention::AttentionKernel<{half_type}, cutlass::arch::Sm80, "
                    f"true, {block}, {block}, 64, true, true>::Params)",
                    2,
                )
            ]
        squares = 5 if "flash_recompute" in names else 4
        return [
            launch(
                f"fmha_cutlassB_{word}_aligned_{block}x{block}_k{layer.depth}_sm80"
                "(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80, "
                f"{half_type}, true, false, true, {block}, {block}, {layer.depth}>::Params)",
                squares,
            )
        ]
    if part == "forward":
        return [
            launch(
                f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits{traits}, {flags}>"
                "(pytorch_flash::Flash_fwd_params)",
                2,
            )
        ]
    squares = 5 if "flash_recompute" in names else 4
    return [
        Launch(
            f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits{traits}>"
            "(pytorch_flash::Flash_bwd_params)",
            grid,
            {"ffma": layer.outputs(batch)},
        ),
        launch(
            "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel"
            f"_traits{traits}, {flags}>(pytorch_flash::Flash_bwd_params)",
            squares,
        ),
        Launch(
            f"void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits{traits}>"
            "(pytorch_flash::Flash_bwd_params, int)",
            grid,
            {"fmul": layer.outputs(batch)},
        ),
    ]


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
        found.append(
            plain(scene.chip, scene.precision, whole, dense, scene.random(layer.name, part))
        )
    return found


def _dense(product: Product) -> Product:
    if product.part == "wgrad":
        return replace(product, count=1, m=product.m * product.count, n=product.n * product.count)
    return replace(product, count=1, n=product.n * product.count, k=product.k * product.count)


def depthwise_border(
    scene: Scene, effect: Effect, layer: Layer, part: str, batch: int
) -> list[Launch]:
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


def persistent_lstm(
    scene: Scene, effect: Effect, layer: Layer, part: str, batch: int
) -> list[Launch]:
    """One kernel for all steps, its weights in registers; samples in groups."""
    assert isinstance(layer, Lstm)
    group = effect.settings["group"]
    recurrent = [
        product
        for product in products(layer, part, batch)
        if product.m == batch and product.part != "wgrad"
    ]
    rest = [product for product in products(layer, part, batch) if product not in recurrent]
    work = sum(ceil(product.m / group) * group * product.n * product.k for product in recurrent)
    way = "fp" if part == "forward" else "bp"
    found = [
        plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part))
        for product in rest
    ]
    counts = {"ffma": work} if scene.path == "fp32" else {"tensor": 2 * work}
    return [
        *found,
        Launch(
            f"void RNN_blockPersist_{way}_LSTM<float, float, float, {layer.hidden}, "
            f"{group}>(RNN_blockPersist_params)",
            (effect.settings["blocks"], 1, 1),
            counts,
            "" if scene.path == "fp32" else scene.path,
            2048 if scene.path == "tf32" else {"70": 512, "75": 2048}.get(scene.chip, 4096),
        ),
    ]


def zero_insertion(
    scene: Scene, effect: Effect, layer: Layer, part: str, batch: int
) -> list[Launch]:
    """The input's gradient for every input place and every tap, zeros between strides
    multiplied too."""
    assert isinstance(layer, Conv)
    product = Product("dgrad", batch * layer.size**2, layer.cin, layer.cout * layer.kernel**2)
    launch = plain(scene.chip, scene.precision, layer, product, scene.random(layer.name, part))
    if (effect.settings["engine"] and scene.path == "fp32") or "grouped" in launch.name:
        type_ = {"fp16": "__half", "bf16": "__nv_bfloat16"}.get(scene.precision, "float")
        name = (
            f"void cudnn::detail::dgrad_engine<{type_}, 512, 6, 5, 3, 3, 3, false>(int, int, int, "
            f"{type_} const*, int, {type_} const*, int, {type_}*, kernel_grad_params, unsigned "
            "long long, int, unsigned long long, int, float, int, int, int)"
        )
        return [
            Launch(name, (ceil(product.m / 64), ceil(product.n / 32), 1), {"ffma": product.macs})
        ]
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


ALGORITHMS: dict[str, Realise] = {
    "padding": padding,
    "padding_split": padding,
    "triton": triton,
    "implicit_sgemm": implicit_sgemm,
    "winograd2": winograd2,
    "winograd4": winograd4,
    "fft": fourier,
    "split_k": split_k,
    "split_inside": split_inside,
    "sparsity": sparsity,
    "tf32_three": tf32_three,
    "groups_dense": groups_dense,
    "depthwise_border": depthwise_border,
    "persistent_lstm": persistent_lstm,
    "zero_insertion": zero_insertion,
    "half_tf32": half_tf32,
    "half_gemm": half_gemm,
}
