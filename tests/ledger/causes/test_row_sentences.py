"""Sentences of causes about a row's kernels, word for word, and where a rule proposes nothing."""

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES
from perfctl.orchestrator.ledger.causes.row_rules import detect_kernel_shared_by_layers
from perfctl.orchestrator.ledger.causes.rule import RowCase
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import (
    BOTH,
    GEMM,
    PAPER,
    by_place,
    call,
    case,
    causes_of,
    convolution,
    measured,
    seen_with,
    work,
)
from tests.make.tables import table

FC = GemmShape(32, 10, 100)
MACS = PAPER // 2


def beside(name, role, fadd, family="gemm"):
    return work(name, Algorithm(family, role=role), fadd=fadd)


def tile(rows, columns):
    return Algorithm("gemm", "gemm", tile=(rows, columns, None))


TILE = 128 * 64 * 100
PADDED = work("k", tile(128, 64), (1, 1, 1), ffma=TILE * 1.15)
SMALL = work("s" * 61, tile(32, 10), (1, 1, 1), ffma=MACS)
LARGE = work("large", tile(64, 10), (1, 1, 1), ffma=2 * MACS)
WINOGRAD = work(
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    Algorithm("winograd", "winograd", winograd=(2, 3)),
    ffma=14_000,
    fadd=900,
)
TRANSFORM = work(
    "cudnn::winograd::generateWinogradTilesKernel",
    Algorithm("winograd", role="transform"),
    fadd=2300,
)
# Each of 2 images fits one tile of 16: 2 x 8 x 16 x (16 x 9) x 4 of 640,000 multiply-adds.
FOURIER = ConvShape(2, 8, 16, 10, 10, 5, 5)
FFT = work(
    "void fft2d_r2c_16x16<float>(float2*)",
    Algorithm("fft", "fft"),
    ffma=2 * 8 * 16 * 16 * 9 * 4,
    fadd=64_000,
)
AGAIN = [work(name, GEMM, (1, 1, 1), ffma=MACS) for name in "fgh"]
LAYER_B = case(32, layer="b", position=1)


@table(
    "row others rule factor sentence",
    [
        (
            measured(32, PADDED, forward=FC),
            (),
            "tile padding",
            2 * TILE / PAPER,
            " executes 25.60 times the estimated multiply-adds, possibly because it computes complete "
            f"tiles: ceil(32 / 64) x ceil(10 / 128) tiles x 64 x 128 x 100 = {TILE:,} multiplies "
            f"(estimated 32,000), measured {TILE * 1.15:,.0f}. The measured count is 1.150 times as "
            "large. A batch of 64 may have run instead: it needs the same blocks.",
        ),
        *(
            (
                measured(32, work("k", GEMM, grid, ffma=MACS), beside("sum", "reduction", 640)),
                (),
                "split-K",
                1.01,
                f" splits its K dimension{slices} and adds the slices up in sum: 640 FLOP more, "
                "1.0%.",
            )
            for grid, slices in (
                ((1, 1, 4), " into 4 slices"),
                ((1, 1, 2), " into 2 slices"),
                ((4, 4, 1), ""),
                (None, ""),
            )
        ),
        *(
            (
                measured(32, work("k", ffma=MACS, fadd=fadd), *kernels),
                (),
                "layout and epilogue",
                1.02,
                f" executes 1.28 kFLOP in addition to its GEMMs ({works}), 2.0% more.",
            )
            for fadd, kernels, works in (
                (1280, (), "bias, scaling or activation"),
                (0, (beside("nchw", "layout", 1280, "layout"),), "layout transforms"),
                (0, (beside("o", "offsets", 1280),), "offsets"),
                (0, (beside("e", "epilogue", 1280),), "epilogues"),
                (
                    320,
                    (
                        beside("nchw", "layout", 640, "layout"),
                        beside("n2", "layout", 320, "layout"),
                    ),
                    "layout transforms, bias, scaling or activation",
                ),
            )
        ),
        (
            measured(32, SMALL, LARGE, forward=FC),
            (),
            "several algorithms",
            3,
            f" ran 2 kernels that each compute the complete layer ({'s' * 61}, large): together, "
            "3.00 times the estimated FLOPs according to their shapes. They may be trials.",
        ),
        (
            measured(32, WINOGRAD, TRANSFORM, kind="Conv2d"),
            (),
            "Winograd",
            16 / 36 + 0.05,
            " runs as Winograd F(2x2,3x3), which needs 0.444 times the estimated multiply-adds "
            "(4^2 multiplies in place of 2^2 x 3^2). Its transforms add 5.0% of the estimate, "
            "which makes 0.494 times together. The count is 0.438 times in multiply-adds.",
        ),
        (
            convolution(FOURIER, FFT),
            (),
            "FFT",
            147_456 / 640_000 + 0.05,
            " runs as FFT, which needs 0.230 times the estimated multiply-adds (2 tiles of 16 x "
            "16 points, 16 x 9 complex products each). Its transforms add 5.0% of the estimate, "
            "which makes 0.280 times together.",
        ),
        (
            measured(32, *AGAIN, direction="backward", calls=BOTH),
            (measured(32, AGAIN[0]),),
            "recomputation",
            1.5,
            " may run the kernels of the forward pass again: 64 kFLOP, 1.500 times the FLOPs of the "
            "gradients only.",
        ),
        (
            measured(32, work(ffma=MACS), direction="recompute"),
            (),
            "recomputation",
            None,
            "fc runs its forward pass again during backward at batch 32: 64 kFLOP.",
        ),
        (
            measured(32, work("k", ffma=PAPER)),
            (LAYER_B,),
            "shared kernel",
            2,
            " executes 2.00 times its own estimate, possibly because its kernel also computes b forward.",
        ),
        (
            LAYER_B,
            (measured(32, work("k", ffma=PAPER)),),
            "shared kernel",
            None,
            "b forward at batch 32 has no separate kernel: a kernel of fc forward may execute its "
            "64 kFLOP.",
        ),
    ],
)
def test_a_cause_states_its_numbers_and_the_comparison(row, others, rule, factor, sentence):
    cause = causes_of(row, *others)[rule]
    assert cause.factor == (None if factor is None else pytest.approx(factor))
    start = f"{row.row.name} at batch {row.row.batch}" if sentence[0] == " " else ""
    assert describe_cause(cause) == start + sentence


@table(
    "row",
    {
        "padding of no known shape": measured(32, PADDED),
        "a filled tile": measured(32, SMALL, forward=FC),
        "half a percent of sums": measured(
            32, work("k", ffma=MACS), beside("sum", "reduction", 310)
        ),
        "half a percent of layouts": measured(32, work("k", ffma=MACS), beside("n", "layout", 310)),
        "Winograd of no known tile": measured(
            32, work("some_winograd", Algorithm("winograd"), ffma=14_000), kind="Conv2d"
        ),
        "Fourier of no known shape": measured(2, FFT, kind="Conv2d"),
        **{
            f"{' and '.join(kernel.name[:9] for kernel in kernels)} not counted": case(
                32, *kernels, **more
            )
            for kernels, more in (
                ((PADDED,), {"forward": FC}),
                ((work("k", ffma=MACS), beside("sum", "reduction", 640)), {}),
                ((SMALL, LARGE), {"forward": FC}),
                ((WINOGRAD,), {"kind": "Conv2d"}),
                ((FFT,), {"kind": "Conv2d", "forward": FOURIER}),
                ((work(ffma=MACS),), {"direction": "recompute"}),
                (AGAIN, {"direction": "backward", "calls": BOTH}),
            )
        },
    },
)
def test_nothing_is_proposed_without_a_count_or_a_number(row):
    given = seen_with(row)
    causes = [cause for rule in ROW_RULES if (cause := rule(given)) is not None]
    assert [cause.rule for cause in causes if cause.rule != "counter not collected"] == []


@table(
    "share served",
    [
        (1.0, 0),
        (1.019, 0),
        (1.5, 0),
        (1.97, 1),
        (2.0, 1),
        (2.03, 1),
        (2.05, 0),
        (2.95, 2),
        (3.0, 2),
        (3.05, 2),
        (3.1, 0),
        (4.0, 0),
    ],
)
def test_a_kernel_serves_as_many_neighbors_as_its_count_has_room_for(share, served):
    rows = [
        measured(32, work("k", ffma=MACS * share), layer="a"),
        *(case(32, layer=layer, position=number) for number, layer in enumerate("bc", 1)),
        measured(32, work("other", ffma=MACS), layer="d", position=3),
        case(32, layer="before", position=-1),
    ]
    table = by_place(*reversed(rows), case(64, layer="elsewhere", position=1))
    causes = [detect_kernel_shared_by_layers(RowCase(row, table)) for row in rows]
    factors = [served + 1, *[None] * served] if served else []
    assert [cause.factor for cause in causes if cause is not None] == factors
    assert [cause is not None for cause in causes] == [number < len(factors) for number in range(5)]


@table(
    "share kernels macs factor",
    [
        (2.0, (work("own", ffma=MACS),), 1000, None),  # a neighbor with its own kernel
        (1.0, (), 20, None),  # a small neighbor, and a count that may be the owner's only
        (1.02, (), 20, None),
        (1.03, (), 20, 1.02),
        (1.5, (), 500, 1.5),
    ],
)
def test_a_neighbor_is_served_by_the_share_that_its_estimate_adds(share, kernels, macs, factor):
    owner = measured(32, work("k", ffma=MACS * share), layer="a")
    neighbor = case(32, *kernels, layer="b", position=1, calls=(call(32, macs=macs, layer="b"),))
    cause = detect_kernel_shared_by_layers(seen_with(owner, neighbor))
    assert (cause and cause.factor) == (None if factor is None else pytest.approx(factor))
