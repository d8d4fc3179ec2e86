"""The sheet of a convolution, every line and every way worked by hand; of one in groups, and of one
that is transposed."""

from perfctl.orchestrator.estimate.sheets.layers import (
    build_convolution_worksheet,
    list_conv_macs_with_mistakes,
    list_deconv_macs_with_mistakes,
)
from tests.make.shapes import op
from tests.make.sheets import lines_of, numbers_of, ways_of, written

GROUPED = build_convolution_worksheet(
    op(
        "aten.convolution",
        ((2, 6, 7, 10), (4, 3, 3, 3), (4,)),
        ((2, 4, 4, 8),),
        dtype="float16",
        stride=[2, 1],
        padding=[1],
        dilation=[1, 2],
        groups=2,
        bias=True,
    )
)
"""H: (7 - 3 + 2)/2 + 1 = 4; W, the kernel 5 wide by its dilation: (10 - 5 + 2)/1 + 1 = 8."""
UP = build_convolution_worksheet(
    op(
        "aten.convolution",
        ((2, 4, 3, 5), (4, 3, 2, 3), (6,)),
        ((2, 6, 9, 15),),
        stride=[3],
        padding=[0, 1],
        dilation=[1, 2],
        groups=2,
        bias=True,
        transposed=True,
    )
)
"""H: (3 - 1) x 3 + 2 = 8, and 1 of output padding; W: (5 - 1) x 3 + 5 - 2 = 15."""


def test_a_grouped_strided_dilated_convolution_line_by_line():
    assert written(GROUPED.shapes) == lines_of("""
        input | N x C x ... |  | 2 x 6 x 7 x 10
        channels per group | C/g | 6/2 | 3
        output P (height) | (input - kernel + 2 padding)/stride + 1 | (7 - 3 + 2x1)/2 + 1 | 4
        output Q (width) | (input - kernel + 2 padding)/stride + 1 | (10 - (2x(3 - 1) + 1) + 2x1)/1 + 1 | 8
        output | N x K x ... |  | 2 x 4 x 4 x 8
    """)
    assert written(GROUPED.steps) == lines_of("""
        for one output value | C/g x R x S | 3 x 3 x 3 | 27 MAC
        output values, one sample | K x P x Q | 4 x 4 x 8 | 128
        one sample | values x MAC | 128 x 27 | 3,456 MAC
        output values, whole batch | N x K x P x Q | 2 x 4 x 4 x 8 | 256
        whole batch | values x MAC | 256 x 27 | 6,912 MAC
        in FLOP | 2 x MAC | 2 x 6,912 | 13,824 FLOP
        bias, not included | 1 addition per value | 256 | 256 FLOP
    """)
    assert written(GROUPED.space) == lines_of("""
        weights | (4, 3, 3, 3) | 2
        biases | (4,) | 2
        output map | (2, 4, 4, 8) | 2
    """)


def test_every_way_to_work_a_convolution_and_its_multiply_adds():
    facts = GROUPED.facts
    assert facts is not None
    assert numbers_of(facts) == (2, 4 * 27, 4, True, 6912)
    kernels = 4 * 27
    assert ways_of(facts) == [
        ("", kernels * 4 * 8),
        ("the 4 output channels left out", kernels * 32 // 4),
        ("the 3 input channels left out", kernels * 32 // 3),
        ("one side of the 3x3 kernel left out", kernels * 32 // 3),
        ("one side of the 4x8 positions left out", kernels * 8),
        ("the 3x3 kernel left out", kernels * 32 // 9),
        ("the 4x8 positions left out", kernels),
        ("input 3x5 instead of 7x10", kernels * 2 * 3),
        ("input 14x20 instead of 7x10", kernels * 7 * 18),
        ("input 2x3 instead of 7x10", kernels * 1 * 1),
        ("input 21x30 instead of 7x10", kernels * 11 * 28),
        # After one by 4 the width is 2, and a kernel 5 wide does not fit into 2 + 2.
        ("input 28x40 instead of 7x10", kernels * 14 * 38),
        ("the division by 2 groups left out", 2 * kernels * 32),
        ("stride left out (7x8 positions, not 4x8)", kernels * 7 * 8),
        ("padding left out (3x6 positions, not 4x8)", kernels * 3 * 6),
        ("output 7x10 instead of 4x8", kernels * 7 * 10),
    ]
    positions = [6, 126, 1, 308, 14 * 38, 32, 56, 18, 70]
    outputs = [4 * 32, 32, 4 * 32, 4 * 32, 4 * 8, 4 * 32, 4, *(4 * size for size in positions)]
    assert [way.outputs for way in facts.ways if not way.second_about] == outputs
    pairs = {
        tuple(slip.split(" (")[0] for slip in way.slips): way.macs_per_sample
        for way in facts.ways
        if way.second_about
    }
    pooled = "input 3x5 instead of 7x10"
    assert {
        slips: macs for slips, macs in pairs.items() if slips[0] in (pooled, "stride left out")
    } == {
        (pooled, "stride left out"): kernels * 3 * 3,
        (pooled, "padding left out"): kernels * 1 * 1,
        (pooled, "output 3x5 instead of 2x3"): kernels * 3 * 5,
        ("stride left out", "padding left out"): kernels * 5 * 6,
    }
    assert facts.ways[0].names == (
        ("4 output channels", 4),
        ("4x8", 32),
        ("the 3x3 kernel", 9),
        ("3 input channels", 3),
        ("one side of 4", 4),
        ("one output value's 3x3x3", 27),
    )


def test_a_convolution_that_keeps_the_size_has_neither_stride_nor_groups_nor_size_to_mistake():
    ways = list_conv_macs_with_mistakes((2, 3, 3), (5,), (5,), [(1,), (1,), (1,)])
    assert [
        (way.slips[0].split(" (")[0] if way.slips else "", way.macs_per_sample)
        for way in ways
        if not way.second_about
    ] == [
        ("", 18 * 5),
        ("the 2 output channels left out", 9 * 5),
        ("the 3 input channels left out", 6 * 5),
        ("the 3 kernel left out", 6 * 5),
        ("the 5 positions left out", 18),
        *(
            (f"input {size} instead of 5", 18 * size)
            for pool, after in ((2, 2), (3, 1), (4, 1))
            for size in (after, 5 * pool)
        ),
        ("padding left out", 18 * 3),
    ]


def test_a_size_that_the_stride_does_not_divide_is_rounded_down_and_one_channel_a_group_is_depthwise():
    work = build_convolution_worksheet(
        op(
            "aten.convolution",
            ((6, 8), (6, 1, 3), None),
            ((6, 3),),
            stride=[2],
            padding=[0],
            dilation=[1],
            groups=6,
        )
    )
    assert written(work.shapes) == lines_of("""
        input | N x C x ... |  | 1 x 6 x 8
        channels per group | C/g, depthwise | 6/6 | 1
        output P (length) | (input - kernel + 2 padding)/stride + 1, rounded down | (8 - 3 + 2x0)/2 + 1 | 3
        output | N x K x ... |  | 1 x 6 x 3
    """)
    assert [line.result for line in work.steps] == [
        "3 MAC",
        "18",
        "54 MAC",
        "18",
        "54 MAC",
        "108 FLOP",
    ]
    assert [item.what for item in work.space] == ["weights", "output map"]
    assert numbers_of(work.facts) == (1, 18, 0, False, 54)


def test_a_transposed_convolution_line_by_line():
    assert written(UP.shapes) == lines_of("""
        input | N x C x ... |  | 2 x 4 x 3 x 5
        channels per group | K/g | 6/2 | 3
        output P (height) | (input - 1) stride + kernel - 2 padding + output padding | (3 - 1)x3 + 2 - 2x0 + 1 | 9
        output Q (width) | (input - 1) stride + kernel - 2 padding | (5 - 1)x3 + (2x(3 - 1) + 1) - 2x1 | 15
        output | N x K x ... |  | 2 x 6 x 9 x 15
    """)
    assert written(UP.steps) == lines_of("""
        for one input value | K/g x R x S | 3 x 2 x 3 | 18 MAC
        input values, one sample | C x H x W | 4 x 3 x 5 | 60
        one sample | values x MAC | 60 x 18 | 1,080 MAC
        input values, whole batch | N x C x H x W | 2 x 4 x 3 x 5 | 120
        whole batch | values x MAC | 120 x 18 | 2,160 MAC
        in FLOP | 2 x MAC | 2 x 2,160 | 4,320 FLOP
        bias, not included | 1 addition per value | 1,620 | 1,620 FLOP
    """)


def test_every_way_to_work_a_transposed_convolution_and_its_multiply_adds():
    facts = UP.facts
    assert facts is not None
    assert numbers_of(facts) == (2, 72, 6, True, 2160)
    assert ways_of(facts) == [
        ("", 72 * 15),
        ("positions of the output (9x15) instead of the input's (3x5)", 72 * 135),
        ("the division by 2 groups left out", 2 * 72 * 15),
        ("the 3 output channels left out", 24 * 15),
        ("the 4 input channels left out", 18 * 15),
        ("one side of the 2x3 kernel left out", 36 * 15),
        ("one side of the 3x5 positions left out", 72 * 5),
        ("the 2x3 kernel left out", 12 * 15),
        ("the 3x5 positions left out", 72),
    ]
    assert {way.outputs for way in facts.ways} == {6 * 135}
    assert facts.ways[0].names == (
        ("4 input channels", 4),
        ("3x5", 15),
        ("the 2x3 kernel", 6),
        ("3 output channels", 3),
    )


def test_a_transposed_convolution_without_groups_has_no_division_to_leave_out():
    ways = list_deconv_macs_with_mistakes((2, 4, 3), (4, 6, 2), (2, 6, 4), 1)
    assert [(way.slips, way.macs_per_sample) for way in ways] == [
        ((), 48 * 3),
        (("positions of the output (4) instead of the input's (3)",), 48 * 4),
        (("the 6 output channels left out",), 8 * 3),
        (("the 4 input channels left out",), 12 * 3),
        (("the 2 kernel left out",), 24 * 3),
        (("the 3 positions left out",), 48),
    ]
