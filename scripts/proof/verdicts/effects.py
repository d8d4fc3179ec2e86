"""What hardware, libraries and programs do to the FLOPs of a layer: one realisation for each
effect, from its arithmetic.

An effect claims parts of layers ("conv2", "forward"), or acts on the whole run. Nothing here knows
how it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

from scripts.proof.verdicts.kernels import (
    CORE_TYPES,
    Family,
    Kernel,
    Launch,
    Tile,
    plain,
    tiled,
)
from scripts.proof.verdicts.networks import (
    FORWARD,
    Attention,
    Claim,
    Layer,
    Lstm,
    Product,
    Scene,
)

FUSED = ("flash_recompute", "causal_skip")


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect with its drawn parameters."""

    name: str
    claims: frozenset[Claim] = frozenset()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A part of a layer to work out at one batch size, with the settings of the effect that claims
    it."""

    scene: Scene
    layer: Any
    """One of the kinds of ``Layer``; an effect claims only the kinds that it can act on."""
    part: str
    batch: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def products(self) -> list[Product]:
        products: list[Product] = self.layer.products(self.part, self.batch)
        return products

    @property
    def generation(self) -> str:
        """Return the word for the chip in the names of kernels."""
        return "ampere" if self.scene.is_ampere else "volta"

    def sides(self) -> tuple[int, int, int]:
        """Return the channels that a convolution reads and writes, and the side of its result."""
        layer = self.layer
        if self.part == FORWARD:
            return layer.cin, layer.cout, layer.out
        return layer.cout, layer.cin, layer.size

    def plain(
        self, product: Product, layer: Layer | None = None, precision: str | None = None
    ) -> Launch:
        """Return the usual kernel of a product; equal products get equal kernels."""
        scene = replace(self.scene, precision=precision or self.scene.precision)
        random = scene.random(self.layer.name, self.part)
        return plain(scene, layer or self.layer, product, random)


def usual(task: Task) -> list[Launch]:
    """Return the launches without any effect."""
    launches = [task.plain(product) for product in task.products]
    if isinstance(task.layer, Attention):
        softmax = (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, "
            "false>(float*, float const*, int, int, int)"
        )
        launches.insert(1, Launch(softmax, (ceil(task.batch * task.layer.heads / 4), 1, 1)))
    if isinstance(task.layer, Lstm):
        cell = (
            "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, "
            "int, 1>(int)"
        )
        launches.append(Launch(cell, (32, 1, 1)))
    return launches


# Algorithms


def padding(task: Task) -> list[Launch]:
    """Complete tiles for a shape that does not fill them; a batch may come in several calls."""
    pieces = task.settings.get("pieces", 1)
    launches = []
    for product in task.products:
        if task.settings.get("main", product.part) != product.part:
            launches.append(task.plain(product))
            continue
        is_deep = product.part == "wgrad"
        whole = product.k if is_deep else product.m
        for number in range(pieces):
            size = whole * (number + 1) // pieces - whole * number // pieces
            if size:
                piece = replace(product, k=size) if is_deep else replace(product, m=size)
                launches.append(tiled(task.settings["kernel"], piece))
    return launches


def triton(task: Task) -> list[Launch]:
    """Inductor's template: the tile is in no name. It shrinks to the next power of two of what it
    covers, 16 at least; compiled for dynamic shapes, once, for the largest batch."""
    scene, settings = task.scene, task.settings
    hints = replace(task, batch=max(scene.batches)) if settings["dynamic"] else task
    launches = []
    for product, hint in zip(task.products, hints.products, strict=True):
        m, n, step = (
            max(16, min(side, 1 << (size - 1).bit_length()))
            for side, size in zip(
                (*settings["tile"], settings["step"]), (hint.m, hint.n, hint.k), strict=True
            )
        )
        family = Family(
            f"triton_tem_fused_mm_{settings['number']}",
            ((m, n),),
            step,
            path=scene.path,
            each=2048 if scene.path == "tf32" else 4096,
        )
        launch = tiled(Kernel(family, (m, n)), product)
        launches.append(replace(launch, grid=(prod(launch.grid), 1, 1)))
    return launches


def implicit_sgemm(task: Task) -> list[Launch]:
    """cuDNN's generic kernel: the tile is 2^a rows by 2^b filters, by its template's arguments."""
    threads, a, b = task.settings["template"]
    (product,) = task.products
    grid = (ceil(product.m / 2**a), ceil(product.n / 2**b), product.count)
    depth = ceil(product.k / 8) * 8 if a == 5 else product.k
    name = (
        f"void implicit_convolve_sgemm<float, float, {threads}, {a}, {b}, 3, 3, "
        f"{5 if a > 5 else 3}, 1, false, true, true>(int, int, int, float const*, int, float*, "
        "float const*, kernel_conv_params, unsigned long long, int, float, float, int, float "
        "const*, float const*, bool, int, int)"
    )
    return [Launch(name, grid, {"ffma": prod(grid) * 2 ** (a + b) * depth})]


def winograd2(task: Task) -> list[Launch]:
    """F(2x2, 3x3), fused: a block is 32 tiles x 32 filters x 16 multiplies x channels."""
    across, high, wide = task.settings["tiles"]
    cin, cout, side = task.sides()
    grid = (
        ceil(task.batch / across) * ceil(cout / 32),
        ceil(side / (2 * high)),
        ceil(side / (2 * wide)),
    )
    blocks = prod(grid)
    head = "cudnn_ampere_scudnn" if task.scene.is_ampere else "volta_scudnn"
    order = "nt" if task.part == FORWARD else "nn"
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
            {
                "ffma": blocks * 32 * 32 * 16 * cin,
                "fadd": blocks * (32 * cin * 32 + 32 * 32 * 24),
            },
        ),
    ]


def winograd4(task: Task) -> list[Launch]:
    """F(4x4, 3x3), in parts: 36 matrix products between three transforms."""
    cin, cout, side = task.sides()
    m, n = task.settings["tile"]
    tiles = 16 * ceil(task.batch / 16) * ceil(side / 4) ** 2
    grid = (ceil(tiles / m), ceil(cout / n), 36)

    def transform(what: str, blocks: int, counts: dict[str, int]) -> Launch:
        name = (
            f"void cudnn::winograd_nonfused::winogradForward{what}4x4<float, float>"
            f"(cudnn::winograd_nonfused::Winograd{what}Params<float, float>)"
        )
        return Launch(name, (blocks, 1, 1), counts)

    return [
        transform("Data", 64, {"fadd": 72 * tiles * cin, "ffma": 36 * tiles * cin}),
        transform("Filter", 4, {"fadd": 30 * cin * cout, "fmul": 24 * cin * cout}),
        Launch(
            f"{task.generation}_sgemm_{m}x{n}_nn",
            grid,
            {"ffma": prod(grid) * m * n * ceil(cin / 8) * 8},
        ),
        transform("Output", 64, {"fadd": 60 * tiles * cout, "ffma": 20 * tiles * cout}),
    ]


def fourier(task: Task) -> list[Launch]:
    """Tiles of 32 x 32 points: 32 x 17 complex products of 4 multiply-adds each; the filter's
    gradient sums over the tiles."""
    side = task.settings["side"]
    inputs, outputs, span = task.sides()
    if task.part == "wgrad":
        span = task.layer.out
    tiles = task.batch * ceil(span / (side - task.layer.kernel + 1)) ** 2
    rows, columns, depth = tiles, outputs, inputs
    if task.part == "wgrad":
        rows, columns, depth = inputs, outputs, tiles
    grid = (ceil(rows / 32), ceil(columns / 32), side * (side // 2 + 1))

    def transform(name: str, number: int) -> Launch:
        counts = {"fadd": 15 * side * side * number, "ffma": 5 * side * side * number}
        return Launch(f"void fft2d_{name}, int, int)", (number, 1, 1), counts)

    inward = f"r2c_{side}x{side}<float, false, "
    launches = [
        transform(f"{inward}0u, false>(float2*, float const*", rows * depth),
        transform(f"{inward}1u, true>(float2*, float const*", columns * depth),
        Launch(
            f"{task.generation}_gcgemm_32x32_nt",
            grid,
            {"ffma": prod(grid) * 32 * 32 * ceil(depth / 8) * 8 * 4},
        ),
        transform(
            f"c2r_{side}x{side}<float, false, false, 0u, false, false>(float*, float2 const*",
            rows * columns,
        ),
    ]
    if task.part != "wgrad" and task.settings["flips"]:
        flip = "void flip_filter<float, float>(float*, float const*, int, int, int, int)"
        launches.insert(0, Launch(flip, (4, 1, 1)))
    return launches


def split_k(task: Task) -> list[Launch]:
    """The depth in slices; their sums are added up by a second kernel."""
    slices = task.settings["slices"]
    (product,) = task.products
    reduce = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, "
        "false>(cublasSplitKParams<float>, float const*, float const*, float*)"
    )
    return [
        tiled(task.settings["kernel"], product, slices),
        Launch(reduce, (64, 1, 1), {"fadd": slices * product.m * product.n * product.count}),
    ]


def split_inside(task: Task) -> list[Launch]:
    """The depth in slices, one for each block of the grid's z, whose sums the kernel itself adds
    up: in memory (atomic additions are no FADD), or by blocks that each add to what the one before
    them has left."""
    kernel, slices = task.settings["kernel"], task.settings["slices"]
    launches = []
    for product in task.products:
        launch = tiled(kernel, product, slices)
        launch.name = launch.name.replace("stridedB_", "stridedB_splitK_")
        if task.settings["adds"]:
            sums = prod(launch.grid[:2]) * (slices - 1) * prod(kernel.tile) * product.count
            launch.counts["fadd"] = launch.counts.get("fadd", 0) + sums
            launch.scale += sums
        launches.append(launch)
    return launches


def attention(task: Task, is_causal: bool, recomputes: bool) -> list[Launch]:
    """A fused kernel. Its backward works out the scores again; with a causal mask it may leave
    out blocks."""
    scene, layer, block = task.scene, task.layer, task.settings["block"]
    count = ceil(layer.length / block)
    blocks = count * (count + 1) // 2 if is_causal else count * count
    square = 2 * task.batch * layer.heads * blocks * block * block * layer.depth
    half_type = "cutlass::half_t" if scene.precision == "fp16" else "cutlass::bfloat16_t"
    traits = f"traits<{layer.depth}, {block}, {block}, 4, false, false, {half_type}>"
    flags = f"false, {str(layer.causal).lower()}, false, false, true, true, false"
    grid = (count, task.batch, layer.heads)

    def fused(name: str) -> Launch:
        squares = 2 if task.part == FORWARD else 5 if recomputes else 4
        return Launch(name, grid, {"tensor": squares * square}, scene.path)

    if task.settings["kind"] == "efficient":
        way = "F" if task.part == FORWARD else "B"
        word = {"fp16": "f16", "bf16": "bf16"}[scene.precision]
        head = f"fmha_cutlass{way}_{word}_aligned_{block}x{block}_"
        if task.part == FORWARD:
            return [
                fused(
                    f"{head}rf_sm80(PyTorchMemEffAttention::AttentionKernel<{half_type}, "
                    f"cutlass::arch::Sm80, true, {block}, {block}, 64, true, true>::Params)"
                )
            ]
        return [
            fused(
                f"{head}k{layer.depth}_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass"
                f"::arch::Sm80, {half_type}, true, false, true, {block}, {block}, {layer.depth}>"
                "::Params)"
            )
        ]
    head = "void pytorch_flash::flash_"
    if task.part == FORWARD:
        name = f"{head}fwd_kernel<Flash_fwd_kernel_{traits}, {flags}>"
        return [fused(f"{name}(pytorch_flash::Flash_fwd_params)")]
    traits, values = f"Flash_bwd_kernel_{traits}", layer.outputs(task.batch)
    parameters = "(pytorch_flash::Flash_bwd_params"
    return [
        Launch(f"{head}bwd_dot_do_o_kernel<true, {traits}>{parameters})", grid, {"ffma": values}),
        fused(f"{head}bwd_dq_dk_dv_loop_seqk_parallel_kernel<{traits}, {flags}>{parameters})"),
        Launch(f"{head}bwd_convert_dq_kernel<{traits}>{parameters}, int)", grid, {"fmul": values}),
    ]


def sparsity(task: Task) -> list[Launch]:
    """2:4: the tensor cores leave out every second product."""
    family = Family(task.settings["pattern"], (), 64, path=task.scene.path, each=8192)
    return run_alone(task, family, task.settings["tile"], 0.5)


def tf32_three(task: Task) -> list[Launch]:
    """An fp32 product from three TF32 products of high and low halves."""
    name = task.settings["pattern"].format(o="nn" if task.part == "dgrad" else "tn")
    return run_alone(task, Family(name, (), 16, path="tf32", each=2048), (128, 64), 3)


def run_alone(task: Task, family: Family, tile: Tile, share: float) -> list[Launch]:
    """Return the launch of a tensor core kernel that executes this share of its tiles."""
    (product,) = task.products
    launch = tiled(Kernel(family, tile), product)
    counts = {"tensor": round(launch.counts["tensor"] * share)}
    return [replace(launch, counts=counts, filling=1.0)]


def groups_dense(task: Task) -> list[Launch]:
    """All groups in one product, zeros between them multiplied too."""
    dense = replace(task.layer, groups=1)
    return [task.plain(join_groups(product), dense) for product in task.products]


def join_groups(product: Product) -> Product:
    """Return the product of all groups, with the zeros between them."""
    if product.part == "wgrad":
        return replace(product, count=1, m=product.m * product.count, n=product.n * product.count)
    return replace(product, count=1, n=product.n * product.count, k=product.k * product.count)


def depthwise_border(task: Task) -> list[Launch]:
    """PyTorch's own kernels, which leave out taps outside of the image."""
    layer = task.layer
    inside = sum(
        0 <= place * layer.stride - layer.padding + tap < layer.size
        for place in range(layer.out)
        for tap in range(layer.kernel)
    )
    share = inside / (layer.out * layer.kernel)
    (product,) = task.products
    kernel = {"forward": "forward", "dgrad": "backward", "wgrad": "grad_weight"}[product.part]
    size = f"{layer.kernel}, " if product.part != "wgrad" else ""
    name = (
        f"void at::native::(anonymous namespace)::conv_depthwise2d_{kernel}_kernel<{size}float, "
        "int>(at::GenericPackedTensorAccessor<float const, 4ul, at::DefaultPtrTraits, int>)"
    )
    grid = (ceil(product.m * product.n * product.count / 1024), 1, 1)
    return [Launch(name, grid, {"ffma": round(product.macs * share * share)})]


def persistent_lstm(task: Task) -> list[Launch]:
    """One kernel for all steps, its weights in registers; samples in groups."""
    group, path, products = task.settings["group"], task.scene.path, task.products
    recurrent = [product for product in products if product.m == task.batch]
    work = sum(ceil(product.m / group) * group * product.n * product.k for product in recurrent)
    name = (
        f"void RNN_blockPersist_{'fp' if task.part == FORWARD else 'bp'}_LSTM<float, float, float, "
        f"{task.layer.hidden}, {group}>(RNN_blockPersist_params)"
    )
    grid = (task.settings["blocks"], 1, 1)
    persistent = Launch(name, grid, {"ffma": work})
    if path != "fp32":
        each = 2048 if path == "tf32" else {"70": 512, "75": 2048}.get(task.scene.chip, 4096)
        persistent = Launch(name, grid, {"tensor": 2 * work}, path, each)
    return [
        *(task.plain(product) for product in products if product not in recurrent),
        persistent,
    ]


def zero_insertion(task: Task) -> list[Launch]:
    """The input's gradient for every input value and every tap, zeros between strides
    multiplied too."""
    layer, scene = task.layer, task.scene
    product = Product("dgrad", task.batch * layer.size**2, layer.cin, layer.cout * layer.kernel**2)
    launch = task.plain(product)
    if (task.settings["engine"] and scene.path == "fp32") or "grouped" in launch.name:
        type_ = CORE_TYPES.get(scene.precision, "float")
        name = (
            f"void cudnn::detail::dgrad_engine<{type_}, 512, 6, 5, 3, 3, 3, false>(int, int, int, "
            f"{type_} const*, int, {type_} const*, int, {type_}*, kernel_grad_params, unsigned "
            "long long, int, unsigned long long, int, float, int, int, int)"
        )
        grid = (ceil(product.m / 64), ceil(product.n / 32), 1)
        return [Launch(name, grid, {"ffma": product.macs})]
    return [launch]


def half_tf32(task: Task) -> list[Launch]:
    """This part on the CUDA cores, the others on the tensor cores: no change of the count."""
    return [task.plain(product, precision="fp32") for product in task.products]


def half_gemm(task: Task) -> list[Launch]:
    """Half precision on the CUDA cores, two lanes an instruction: no change of the count."""
    order = "nt" if task.part == "wgrad" else "tn"
    (product,) = task.products
    grid = (ceil(product.n / 128), ceil(product.m / 64), product.count)
    work = prod(grid) * 128 * 64 * ceil(product.k / 8) * 8
    return [Launch(f"{task.generation}_hgemm_128x64_{order}", grid, {"hfma": work // 2})]


ALGORITHMS: dict[str, Callable[[Task], list[Launch]]] = {
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
