"""The layers of a simulated network, and what a kernel of each algorithm executes for them, from
the hardware's rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

from perfctl.records.paper import OpShape


@dataclass(frozen=True, slots=True)
class Conv:
    """A 2-d convolution of square images."""

    name: str
    cin: int
    cout: int
    kernel: int
    size: int
    padding: int = 0
    first: bool = False

    @property
    def out(self) -> int:
        return self.size + 2 * self.padding - self.kernel + 1

    def outputs(self, batch: int) -> int:
        return batch * self.cout * self.out**2

    def inputs(self, batch: int) -> int:
        return batch * self.cin * self.size**2

    def macs(self, batch: int) -> int:
        return self.outputs(batch) * self.cin * self.kernel**2

    def ops(self, batch: int, position: int) -> tuple[OpShape, ...]:
        inside = (batch, self.cin, self.size, self.size)
        weight = (self.cout, self.cin, self.kernel, self.kernel)
        outside = (batch, self.cout, self.out, self.out)
        facts: dict[str, Any] = {
            "stride": [1, 1],
            "padding": [self.padding] * 2,
            "dilation": [1, 1],
            "transposed": False,
            "groups": 1,
        }
        count = prod(weight) + self.cout
        return (
            OpShape(
                self.name,
                "Conv2d",
                "aten.convolution",
                "forward",
                (inside, weight, (self.cout,)),
                (outside,),
                ("float32",) * 4,
                {**facts, "bias": True},
                count,
                1,
                position,
            ),
            OpShape(
                self.name,
                "Conv2d",
                "aten.convolution_backward",
                "backward",
                (outside, inside, weight),
                (None if self.first else inside, weight, (self.cout,)),
                ("float32",) * (5 if self.first else 6),
                {**facts, "output_mask": [not self.first, True, True], "role": "grad_input"},
                count,
                1,
                1000 - position,
            ),
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """A fully connected layer over ``rows`` rows a sample."""

    name: str
    cin: int
    cout: int
    rows: int = 1
    first: bool = False

    def outputs(self, batch: int) -> int:
        return batch * self.rows * self.cout

    def inputs(self, batch: int) -> int:
        return batch * self.rows * self.cin

    def macs(self, batch: int) -> int:
        return self.outputs(batch) * self.cin

    def ops(self, batch: int, position: int) -> tuple[OpShape, ...]:
        rows = batch * self.rows
        x, w, y = (rows, self.cin), (self.cin, self.cout), (rows, self.cout)
        count = self.cin * self.cout + self.cout
        back = (self.cout, self.cin)
        return (
            OpShape(
                self.name,
                "Linear",
                "aten.addmm",
                "forward",
                ((self.cout,), x, w),
                (y,),
                ("float32",) * 4,
                {},
                count,
                1,
                position,
            ),
            OpShape(
                self.name,
                "Linear",
                "aten.mm",
                "backward",
                (y, back),
                (x,),
                ("float32",) * 3,
                {"role": "grad_input"},
                count,
                1,
                1000 - position,
            ),
            OpShape(
                self.name,
                "Linear",
                "aten.mm",
                "backward",
                ((self.cout, rows), x),
                (back,),
                ("float32",) * 3,
                {"role": "grad_weight"},
                count,
                1,
                1001 - position,
            ),
        )


Layer = Conv | Linear
NETWORK: tuple[Layer, ...] = (
    Conv("conv1", 1, 32, 3, 28, first=True),
    Conv("conv2", 32, 64, 3, 26),
    Conv("block.conv_a", 64, 64, 3, 56, 1),
    Conv("block.conv_b", 64, 64, 3, 56, 1),
    Linear("proj", 512, 128, rows=4),
    Linear("fc1", 9216, 128),
    Linear("fc2", 128, 10),
)
NAMES = tuple(layer.name for layer in NETWORK)
BY_NAME: dict[str, Layer] = {layer.name: layer for layer in NETWORK}


@dataclass(slots=True)
class Work:
    """One launch: name, grid, and what it executed."""

    name: str
    grid: tuple[int, int, int] = (1, 1, 1)
    counts: dict[str, int] = field(default_factory=dict)


def gemm(name: str, grid: tuple[int, int, int], ffma: int, **others: int) -> Work:
    return Work(name, grid, {"ffma": ffma, **others})


def exact(layer: Layer, batch: int) -> list[Work]:
    name = (
        "void conv2d_direct_kernel<float>(float*)"
        if isinstance(layer, Conv)
        else "void gemm_v0<float>(float*)"
    )
    return [gemm(name, (ceil(layer.outputs(batch) / 256), 1, 1), layer.macs(batch))]


def padding(layer: Layer, batch: int) -> list[Work]:
    """A tile that the shape does not fill; a loop step takes 8 of the reduction."""
    if isinstance(layer, Conv):
        tm, tn, name = 128, 128, "volta_scudnn_128x128_relu_medium_nn_v1"
        rows, depth = batch * layer.out**2, layer.cin * layer.kernel**2
    else:
        tm, tn, name = 128, 64, "volta_sgemm_128x64_tn"
        rows, depth = batch * layer.rows, layer.cin
    grid = (ceil(rows / tm), ceil(layer.cout / tn), 1)
    return [gemm(name, grid, prod(grid) * tm * tn * ceil(depth / 8) * 8)]


def winograd2(layer: Conv, batch: int) -> list[Work]:
    """F(2x2, 3x3), fused: a CTA is 32 tiles x 32 filters x 16 multiplies x Cin."""
    grid = (batch * ceil(layer.cout / 32), ceil(layer.out / 8), ceil(layer.out / 16))
    ctas = prod(grid)
    adds = ctas * (32 * layer.cin * 32 + 32 * 32 * 24)
    filters = layer.cin * layer.cout
    return [
        Work(
            "void cudnn::winograd::generateWinogradTilesKernel<0, float, "
            "float>(cudnn::winograd::GenerateWinogradTilesParams<float, float>)",
            (4, 1, 1),
            {"fadd": 20 * filters, "fmul": 8 * filters},
        ),
        gemm(
            "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
            grid,
            ctas * 32 * 32 * 16 * layer.cin,
            fadd=adds,
        ),
    ]


def winograd4(layer: Conv, batch: int) -> list[Work]:
    """F(4x4, 3x3), not fused: 36 matrix products between three transforms."""
    tiles = 16 * ceil(batch / 16) * ceil(layer.out / 4) ** 2
    grid = (ceil(tiles / 128), ceil(layer.cout / 64), 36)
    data, filters, results = tiles * layer.cin, layer.cin * layer.cout, tiles * layer.cout
    head = "void cudnn::winograd_nonfused::winogradForward"
    return [
        Work(
            f"{head}Data4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, "
            "float>)",
            (64, 1, 1),
            {"fadd": 72 * data, "ffma": 36 * data},
        ),
        Work(
            f"{head}Filter4x4<float, float>(cudnn::winograd_nonfused::WinogradFilterParams<float, "
            "float>)",
            (4, 1, 1),
            {"fadd": 30 * filters, "fmul": 24 * filters},
        ),
        gemm("volta_sgemm_128x64_nn", grid, prod(grid) * 128 * 64 * layer.cin),
        Work(
            f"{head}Output4x4<float, float>(cudnn::winograd_nonfused::WinogradOutputParams<float, "
            "float>)",
            (64, 1, 1),
            {"fadd": 60 * results, "ffma": 20 * results},
        ),
    ]


def fft(layer: Conv, batch: int) -> list[Work]:
    """Tiles of 32 x 32 points: 32 x 17 complex products of 4 multiply-adds each."""
    tiles = batch * ceil(layer.out / (32 - layer.kernel + 1)) ** 2
    each = {"fadd": 15360, "ffma": 5120}

    def transform(name: str, number: int) -> Work:
        return Work(name, (number, 1, 1), {key: value * number for key, value in each.items()})

    return [
        transform(
            "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*)",
            tiles * layer.cin,
        ),
        transform(
            "void fft2d_r2c_32x32<float, false, 1u, true>(float2*, float const*)",
            layer.cin * layer.cout,
        ),
        gemm(
            "volta_gcgemm_32x32_nt",
            (ceil(tiles / 32), ceil(layer.cout / 32), 544),
            tiles * layer.cout * layer.cin * 544 * 4,
        ),
        transform(
            "void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*, float2 const*)",
            tiles * layer.cout,
        ),
    ]


def tf32(layer: Layer, batch: int) -> list[Work]:
    name = (
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16_stage4"
        "_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
    )
    assert isinstance(layer, Conv)
    grid = (ceil(batch * layer.out**2 / 128), ceil(layer.cout / 64), 1)
    operations = 2 * prod(grid) * 128 * 64 * ceil(layer.cin * layer.kernel**2 / 16) * 16
    return [Work(name, grid, {"tf32": operations, "pipe": operations // 2048})]


def fp16(layer: Layer, batch: int) -> list[Work]:
    """Volta's tensor cores: 512 FLOPs an instruction."""
    name = "volta_fp16_s884cudnn_fp16_128x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1"
    assert isinstance(layer, Conv)
    grid = (ceil(batch * layer.out**2 / 128), ceil(layer.cout / 64), 1)
    return [Work(name, grid, {"pipe": prod(grid) * 128 * 64 * layer.cin * layer.kernel**2 // 256})]


def splitk(layer: Layer, batch: int) -> list[Work]:
    """16 slices of the reduction, added up by a second kernel."""
    assert isinstance(layer, Linear)
    grid = (ceil(batch * layer.rows / 64), ceil(layer.cout / 64), 16)
    ffma = prod(grid) * 64 * 64 * layer.cin // 16
    reduce = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, "
        "false>(cublasSplitKParams)"
    )
    return [
        gemm("volta_sgemm_64x64_tn", grid, ffma),
        Work(reduce, (64, 1, 1), {"fadd": 16 * layer.outputs(batch)}),
    ]


def epilogue(layer: Layer, batch: int) -> list[Work]:
    name = (
        "void at::native::elementwise_kernel<128, 2, "
        "at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float>>>(int, "
        "at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float>>)"
    )
    return [*exact(layer, batch), Work(name, (64, 1, 1), {"fadd": layer.outputs(batch)})]


def layout(layer: Layer, batch: int) -> list[Work]:
    there = (
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, "
        "(cudnnKernelDataType_t)2>(int)"
    )
    back = (
        "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, "
        "(cudnnKernelDataType_t)0>(int)"
    )
    return [
        Work(there, (64, 1, 1), {"fmul": layer.inputs(batch)}),
        *exact(layer, batch),
        Work(back, (64, 1, 1), {"fmul": layer.outputs(batch)}),
    ]


def phantom(layer: Layer, batch: int) -> list[Work]:
    """Constants moved by HFMA2 on the tensor pipe: 4 a warp."""
    (work,) = exact(layer, batch)
    moves = 4 * work.grid[0] * 8
    return [
        replace(work, counts={**work.counts, "hfma": 32 * moves, "pipe": moves, "moves": moves})
    ]


ALGORITHMS = {
    "exact": exact,
    "padding": padding,
    "winograd2": winograd2,
    "winograd4": winograd4,
    "fft": fft,
    "tf32": tf32,
    "fp16": fp16,
    "splitk": splitk,
    "epilogue": epilogue,
    "layout": layout,
    "phantom": phantom,
}


def flops(works: list[Work]) -> int:
    """What a step executes, by the rules: FADD + FMUL + 2 FFMA, and the tensor
    cores' operations."""
    total = 0
    for work in works:
        found = work.counts
        tensor = found.get("tf32", 512 * (found.get("pipe", 0) - found.get("moves", 0)))
        total += found.get("fadd", 0) + found.get("fmul", 0) + 2 * found.get("ffma", 0) + tensor
    return total
