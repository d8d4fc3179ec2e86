"""Rows with kernels made by hand: which causes all rules together find, with their factors."""

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel
from perfctl.orchestrator.ledger.causes.breakdown import count_winograd_multiplies
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import (
    BOTH,
    DGRAD,
    FPROP,
    GEMM,
    HALF,
    PAPER,
    WGRAD,
    backward,
    call,
    case,
    causes_of,
    convolution,
    gemm,
    linear,
    measured,
    partly_counted,
    product,
    work,
)
from tests.make.tables import table

SEEN, MATCHED, PLAUSIBLE = "observed", "predicted and matched", "plausible"
ON, OFF = {"cudnn_benchmark": "on"}, {"cudnn_benchmark": "off"}
MACS = PAPER // 2
TILE = Algorithm("gemm", "gemm", (128, 64, None))


def scene(claim, row, *others, loose=(), phrase="", **causes):
    """``causes``: rule (with _ for a space) -> factor and confidence."""
    expected = {rule.replace("_", " "): cause for rule, cause in causes.items()}
    return pytest.param(row, others, loose, expected, phrase, id=claim)


FORWARD = measured(32, gemm("f"))
FORWARD_CONV = measured(32, product(FPROP, "first", grid=(9, 9, 1)), kind="Conv2d")
AGAIN = backward(product(FPROP, "second"), product(WGRAD), product(DGRAD))

GRADIENTS = [
    scene(
        "one kernel computes one of two gradients",
        backward(product(WGRAD)),
        gradient_missing=(0.5, MATCHED),
        phrase="the gradient of its input has no kernel",
    ),
    scene(
        "a kernel of unknown direction lacks one of two",
        backward(product(GEMM)),
        loose=[product(DGRAD)],
        gradient_missing=(0.5, PLAUSIBLE),
        phrase="1 of the kernels outside of layers may compute it",
    ),
    scene("a kernel with the work of both gradients", backward(product(WGRAD, share=2))),
    scene("a kernel for each gradient", backward(product(WGRAD), product(DGRAD))),
    scene(
        "a gradient is missing and forward has the estimate",
        backward(product(WGRAD, share=0.889)),
        measured(32, product(FPROP)),
        gradient_missing=(0.5, MATCHED),
    ),
    scene(
        "forward deviates as its gradient does",
        backward(product(WGRAD, share=0.889)),
        measured(32, product(FPROP, share=0.889)),
    ),
    scene(
        "the input's gradient, which the estimate lacks",
        backward(product(WGRAD), product(DGRAD), calls=BOTH[1:]),
        needless_gradient=(2, MATCHED),
    ),
    scene(
        "a second kernel of unknown direction",
        backward(product(WGRAD), product(Algorithm("conv")), calls=BOTH[1:]),
    ),
    scene(
        "forward is as far off as both gradients",
        backward(product(DGRAD, share=1.1), product(WGRAD, share=1.1), calls=BOTH[1:]),
        measured(32, product(FPROP, share=1.1), kind="Conv2d"),
    ),
    scene(
        "forward again by another kernel",
        AGAIN,
        FORWARD_CONV,
        recomputation=(1.5, PLAUSIBLE),
        phrase="cuDNN may also have tried",
    ),
    scene(
        "forward's kernel, or the input's gradient",
        backward(
            gemm("f"), gemm("g"), calls=BOTH[1:], kind="Linear", forward=GemmShape(32, 10, 100)
        ),
        FORWARD,
        recomputation=(2, PLAUSIBLE),
        phrase="the gradient of its input",
    ),
    scene(
        "forward's kernel twice among two gradients",
        measured(32, gemm("f", 2, launches=2), gemm("h"), direction="backward", calls=BOTH),
        FORWARD,
        recomputation=(1.5, PLAUSIBLE),
    ),
    scene(
        "forward's kernel at a ratio of 1",
        measured(32, gemm("f"), gemm("g", 0.25), gemm("h", 0.75), direction="backward", calls=BOTH),
        FORWARD,
    ),
]


def sgemm(ffma, **more):
    return work("void gemm_any<float>(float*)", more.pop("algorithm", GEMM), ffma=ffma, **more)


HALF_FILLED = linear(GemmShape(64, 64, 100), work("k", TILE, (1, 1, 1), ffma=128 * 64 * 100))
EXACT = measured(64, work("e", ffma=64_000), layer="other")
TWICE = [measured(64, work("e", ffma=128_000), layer=layer) for layer in "abc"]
SPARSE = replace(EXACT, kernels=(replace(EXACT.kernels[0], name="s16832spgemm"),))
GROUPS = ConvShape(4, 64, 64, 8, 8, 3, 3, groups=4)
DENSE = work("k", Algorithm("conv", "implicit gemm"), (7, 1, 1), ffma=4 * GROUPS.macs)
DENSE_TILES = work(
    "k", Algorithm("conv", "implicit gemm", (128, 64, None)), (2, 1, 1), ffma=4 * GROUPS.macs
)
GROUP_TILES = work(
    "k", Algorithm("conv", "implicit gemm", (64, 64, 16)), (4, 1, 4), ffma=4 * GROUPS.macs
)
IN_PARTS = ConvShape(8, 32, 32, 16, 16, 3, 3, groups=4)
SMALL = work("small", TILE, (1, 1, 1), ffma=128 * 64 * 100)
TRIED = linear(GemmShape(128, 64, 100), SMALL, replace(SMALL, name="large", grid=(1, 1, 2)))

EXACT_TILE = (
    work("k", replace(HALF, tile=(128, 64, None)), (1, 1, 1), tensor=2 * 128 * 64 * 100, ffma=0),
    measured(32, work("e", ffma=MACS), layer="other"),
)
WIDE_TILE = Algorithm("conv", "implicit gemm", (128, 128, None))
SAME_SIZE = ConvShape(8, 64, 64, 8, 8, 3, 3, same_size=True)
SAME_CALLS = tuple(call(1, way, macs=SAME_SIZE.macs) for way in ("grad_input", "grad_weight"))

TILES = [
    scene(
        "a tile that a larger batch fills as well",
        HALF_FILLED,
        tile_padding=(2, PLAUSIBLE),
        phrase="A batch of 128 may have run instead",
    ),
    scene(
        "a tile while another row shows the batch", HALF_FILLED, EXACT, tile_padding=(2, MATCHED)
    ),
    scene(
        "a tile while one row shows the batch, and three show twice the batch",
        HALF_FILLED,
        EXACT,
        *TWICE,
        phrase="A batch of 128 may have run instead",
        tile_padding=(2, PLAUSIBLE),
    ),
    scene(
        "a tile while two of three rows show the batch",
        HALF_FILLED,
        EXACT,
        replace(EXACT, row=replace(EXACT.row, layer="third")),
        TWICE[0],
        tile_padding=(2, MATCHED),
    ),
    scene(
        "a tile next to a sparse row, of twice the batch too",
        HALF_FILLED,
        SPARSE,
        phrase="A batch of 128 may have run instead",
        tile_padding=(2, PLAUSIBLE),
    ),
    scene(
        "parts of a grouped convolution in tiles of 32",
        convolution(
            IN_PARTS,
            work(
                "k",
                Algorithm("conv", "implicit gemm", (128, 32, 8)),
                (4, 1, 4),
                ffma=4 * IN_PARTS.macs,
                launches=4,
            ),
        ),
        tile_padding=(4, MATCHED),
        phrase="in 4 launches",
    ),
    scene(
        "groups with tiles of their own, in the grid's z",
        convolution(GROUPS, GROUP_TILES),
        tile_padding=(4, MATCHED),
    ),
    scene(
        "all groups as one product, by its tiles",
        convolution(GROUPS, DENSE_TILES),
        groups_run_as_dense=(4, MATCHED),
    ),
    scene(
        "all groups as one product, by its count",
        convolution(GROUPS, DENSE),
        groups_run_as_dense=(4, PLAUSIBLE),
    ),
    scene("blocks for each group", convolution(GROUPS, replace(DENSE, grid=(7, 1, 4)))),
    scene(
        "groups with the estimated count",
        convolution(GROUPS, work("k", DENSE_TILES.algorithm, (2, 1, 1), ffma=GROUPS.macs)),
    ),
    scene("trials with a count", TRIED, several_algorithms=(2, PLAUSIBLE)),
    scene(
        "trials of which some were not counted",
        partly_counted(TRIED),
        several_algorithms=(None, PLAUSIBLE),
        counter_not_collected=(None, SEEN),
    ),
    scene(
        "two launches of one product",
        measured(32, sgemm(PAPER, launches=2)),
        extra_calls=(2, PLAUSIBLE),
    ),
    scene(
        "two launches while ncu left some out",
        measured(32, sgemm(PAPER, launches=2), left_out="ncu was asked to leave launches out"),
    ),
    scene("a batch split over two launches", measured(32, sgemm(MACS, launches=2))),
    scene(
        "a product, or parts of a small one",
        measured(32, sgemm(PAPER, launches=2), forward=GemmShape(16, 100, 20)),
        extra_calls=(None, SEEN),
        phrase="split over the launches",
    ),
    scene(
        "a product too large for parts of it",
        measured(32, sgemm(PAPER, launches=2), forward=GemmShape(1024, 1000, 256)),
        extra_calls=(2, PLAUSIBLE),
    ),
    scene(
        "half-filled columns, or halves of the rows",
        linear(
            GemmShape(512, 128, 64),
            sgemm(
                2 * 512 * 128 * 64,
                algorithm=Algorithm("gemm", "gemm", (128, 256, 16)),
                grid=(4, 1, 1),
                launches=2,
            ),
        ),
        extra_calls=(None, SEEN),
    ),
    scene(
        "a partly filled tile on tensor cores",
        linear(GemmShape(32, 10, 100), EXACT_TILE[0]),
        EXACT_TILE[1],
        tile_padding=(128 * 64 / (32 * 10), MATCHED),
        tensor_cores=(1, SEEN),
    ),
    scene(
        "padding that a neighbor without kernels would explain too",
        HALF_FILLED,
        case(64, layer="b", position=1, calls=(call(64, macs=6400, layer="b"),)),
        phrase="A batch of 128 may have run instead",
        tile_padding=(2, PLAUSIBLE),
    ),
    scene(
        "an input gradient of 64 channels in a tile of 128",
        backward(
            work("d", WIDE_TILE, (4, 1, 1), ffma=2 * SAME_SIZE.macs),
            work("w", WGRAD, (7, 1, 1), ffma=SAME_SIZE.macs),
            calls=SAME_CALLS,
            forward=SAME_SIZE,
        ),
        tile_padding=(1.5, MATCHED),
    ),
    scene(
        "an input gradient of another size",
        backward(
            work("d", WIDE_TILE, (4, 1, 1), ffma=2 * SAME_SIZE.macs),
            work("w", WGRAD, (7, 1, 1), ffma=SAME_SIZE.macs),
            calls=SAME_CALLS,
            forward=replace(SAME_SIZE, same_size=False),
        ),
    ),
    scene(
        "HFMA2 that counts 2 has no epilogue",
        measured(
            32, replace(work("hgemm", hfma=MACS // 2), flops=Figure(MACS, "estimated", "HFMA"))
        ),
    ),
    scene(
        "HFMA2 that counts 4 has no epilogue",
        measured(
            32,
            replace(
                work("hgemm", hfma=MACS // 2),
                flops=Figure(PAPER, "estimated", "HFMA"),
                half_weight=4,
            ),
        ),
    ),
]


def layer(name, macs, counted):
    kernel = work("k", ffma=32 * counted)
    return measured(32, kernel, layer=name, calls=(call(32, macs=macs, layer=name),))


SERVED = case(32, layer="b", position=1)
OWNER = measured(32, work("k", ffma=PAPER))
SWAPPED = (layer("a", 1000, 3000), layer("b", 3000, 1000))


def first_layer(*kernels):
    return backward(*kernels, layer="c1", calls=(call(32, "grad_weight", layer="c1"),))


NEIGHBORS = [
    scene("a kernel serves the next layer", OWNER, SERVED, shared_kernel=(2, PLAUSIBLE)),
    scene(
        "the next layer's kernel may be outside", OWNER, SERVED, loose=[work("loose", ffma=MACS)]
    ),
    scene("ncu was not to count in the next layer", OWNER, replace(SERVED, profiled=False)),
    scene(
        "two layers with each other's counts",
        *SWAPPED,
        layer("c", 500, 500),
        swapped_layers=(3, PLAUSIBLE),
    ),
    scene(
        "the other one of the two",
        *reversed(SWAPPED),
        layer("c", 500, 500),
        swapped_layers=(1 / 3, PLAUSIBLE),
    ),
    scene("a third layer", layer("c", 500, 500), *SWAPPED),
    scene("two layers that may have the count", *SWAPPED, layer("d", 3000, 1000)),
    scene(
        "a needless gradient next to a complete layer",
        first_layer(product(WGRAD), product(DGRAD)),
        backward(product(WGRAD), product(DGRAD), layer="c2"),
        needless_gradient=(2, MATCHED),
    ),
    scene(
        "a gradient that another layer lacks",
        first_layer(product(WGRAD), product(DGRAD)),
        backward(product(WGRAD), layer="c2"),
        swapped_layers=(2, PLAUSIBLE),
    ),
]


TRIALS = [
    product(WGRAD, "w1"),
    product(WGRAD, "w2"),
    *(product(DGRAD, name) for name in ("d1", "d2", "d3")),
]
EDGES = ConvShape(4, 64, 64, 56, 56, 3, 3)
FUSED = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
FUSED_MACS = count_winograd_multiplies(EDGES, 2, 3)
BESIDE = convolution(
    EDGES,
    product(recognise_kernel(FUSED), FUSED, FUSED_MACS / MACS, grid=None),
    work(
        "void conv2d_direct_kernel<float>(float*)",
        Algorithm("conv", "direct"),
        (9, 9, 1),
        ffma=EDGES.macs,
    ),
)
WIDE = ConvShape(128, 512, 64, 13, 13, 3, 3)
CHANNELS = ConvShape(16, 64, 128, 8, 8, 3, 3)
FOURIER = ConvShape(10, 64, 24, 56, 56, 5, 5)


def nonfused(shape, tiles, tile, channels=None):
    """F(4x4,3x3) of a shape, with so many tiles: its transform and its 36 products, the tile's
    first side along the tiles."""
    grid = (ceil(tiles / tile[0]), ceil(shape.out_channels / tile[1]), 36)
    macs = grid[0] * grid[1] * 36 * tile[0] * tile[1] * (channels or shape.in_channels)
    family = "winograd F(4x4,3x3) not fused"
    transform = Algorithm("winograd", family, role="transform", winograd=(4, 3))
    return [
        work("winograd_nonfused::winogradForwardData4x4", transform, fadd=1000),
        work("sgemm", Algorithm("gemm", "gemm", (*tile, None)), grid, ffma=macs),
    ]


def fourier(columns, rows):
    """Complex products in blocks of 32 x 32, at each of 32 x 17 points."""
    transform = Algorithm("fft", "fft", role="transform")
    macs = columns * rows * 32 * 32 * 544 * 4 * 64
    tile = Algorithm("gemm", "gemm", (32, 32, None))
    return [
        work("fft2d_r2c_32x32<float>", transform, fadd=1000),
        work("gcgemm_32x32_nt", tile, (columns, rows, 544), ffma=macs),
    ]


def winograd_factor(shape, tiles):
    """36 products of all tiles, and 1,000 additions of their transform."""
    return (36 * tiles * shape.out_channels * shape.in_channels + 500) / shape.macs


NARROW = replace(WIDE, out_channels=8)
ALGORITHMS = [
    scene(
        "kernels for each gradient, several by name",
        backward(*TRIALS),
        several_algorithms=(2.5, PLAUSIBLE),
    ),
    scene("Winograd next to a complete product", BESIDE),
    scene(
        "the same while cuDNN tries kernels, forward",
        replace(BESIDE, environment=ON),
        several_algorithms=(1 + FUSED_MACS / EDGES.macs, MATCHED),
    ),
    scene(
        "Winograd with its tile along the channels",
        convolution(WIDE, *nonfused(WIDE, 2048, (128, 32))),
        Winograd=(winograd_factor(WIDE, 2048), MATCHED),
    ),
    scene(
        "Winograd of 8 channels, in a block of 32 or 128",
        convolution(NARROW, *nonfused(NARROW, 256, (128, 32))),
    ),
    scene(
        "Winograd of this layer's channels",
        convolution(CHANNELS, *nonfused(CHANNELS, 64, (64, 64))),
        Winograd=(winograd_factor(CHANNELS, 64), MATCHED),
    ),
    scene(
        "Winograd of 160 channels instead of 64",
        convolution(CHANNELS, *nonfused(CHANNELS, 64, (64, 64), channels=160)),
    ),
    scene(
        "Winograd's transform without its product",
        convolution(CHANNELS, nonfused(CHANNELS, 64, (64, 64))[0]),
        FADD_alone=(None, SEEN),
    ),
    scene("Fourier blocks of other channels", convolution(FOURIER, *fourier(2, 7))),
]


@table("row others loose causes phrase", [*GRADIENTS, *TILES, *NEIGHBORS, *ALGORITHMS])
def test_a_row_has_these_causes_and_no_others(row, others, loose, causes, phrase):
    actual = causes_of(row, *others, loose=loose)
    assert {rule: cause.confidence for rule, cause in actual.items()} == {
        rule: confidence for rule, (_, confidence) in causes.items()
    }
    assert {rule: cause.factor for rule, cause in actual.items()} == pytest.approx(
        {rule: factor for rule, (factor, _) in causes.items()}
    )
    text = " ".join(map(describe_cause, actual.values()))
    assert phrase in text
    for doubt in ("may have run instead", "cuDNN may also have tried"):
        assert (doubt in text) is (doubt in phrase)


@table("tiles", [2048, 256])
def test_winograds_tiles_are_those_of_the_estimated_batch_whichever_batch_ran(tiles):
    cause = causes_of(convolution(WIDE, *nonfused(WIDE, tiles, (128, 32))))["Winograd"]
    assert cause.factor == pytest.approx(winograd_factor(WIDE, 2048), rel=0.01)
