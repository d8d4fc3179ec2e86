"""The ways to work a layer, right and with a slip, from its dimensions; and the lines that every
sheet shares."""

from perfctl.orchestrator.estimate.sheets.layers import (
    ManualCheckFacts,
    SheetLine,
    SheetTensor,
    WorkedWay,
    build_linear_worksheet,
    compute_window_output_size,
    list_linear_macs_with_mistakes,
    make_flop_and_bias_lines,
    make_shape_line,
    make_tensor_size_lines,
)
from perfctl.orchestrator.estimate.sheets.sequences import build_attention_worksheet
from tests.make.shapes import op
from tests.make.sheets import lines_of, numbers_of, written


def test_the_ways_of_a_linear_layer_and_their_multiply_adds():
    ways = list_linear_macs_with_mistakes((7,), 3, 5)
    assert [(", ".join(way.slips), way.macs_per_sample) for way in ways] == [
        ("", 7 * 3 * 5),
        ("the 7 rows of each sample left out", 15),
        ("the 3 inputs left out", 7 * 5),
        ("inputs used twice (3 x 3 instead of 3 x 5)", 7 * 9),
        ("the 5 outputs left out", 7 * 3),
        ("outputs used twice (5 x 5 instead of 3 x 5)", 7 * 25),
        ("sizes added instead of multiplied (3 + 5)", 7 * 8),
    ]
    assert [way.outputs for way in ways] == [35, 5, 35, 35, 7, 35, 35]
    # no rows, and as many inputs as outputs
    assert [way.macs_per_sample for way in list_linear_macs_with_mistakes((), 4, 4)] == [
        16,
        4,
        4,
        8,
    ]
    assert len(list_linear_macs_with_mistakes((1,), 3, 5)) == 6


def test_a_linear_layers_lines_and_space():
    work = build_linear_worksheet(op("aten.addmm", ((5,), (14, 3), (3, 5)), ((14, 5),)), (2, 7, 5))
    assert written(work.shapes) == lines_of("""
        input | ... x in |  | 2 x 7 x 3
        rows | product of the leading sizes | 2 x 7 | 14
        output | ... x out |  | 2 x 7 x 5
    """)
    assert [line.result for line in work.steps] == [
        "3 MAC",
        "15 MAC",
        "70",
        "210 MAC",
        "420 FLOP",
        "70 FLOP",
    ]
    assert written(work.space) == lines_of("""
        weights | (3, 5) | 4
        biases | (5,) | 4
        output map | (14, 5) | 4
    """)
    assert numbers_of(work.facts) == (2, 15, 5, True, 210)
    kept = build_linear_worksheet(op("aten.linear", ((2, 7, 3), (5, 3), None), ((2, 7, 5),)))
    assert numbers_of(kept.facts) == (2, 15, 0, False, 210)
    # A module that gave something of another size does not say what the rows were.
    other = build_linear_worksheet(op("aten.mm", ((14, 3), (3, 5)), ((14, 5),)), (3, 7, 5))
    assert other.facts is not None and other.facts.batch == 14


def test_the_ways_of_causal_attention_of_two_heads():
    query, key, value = (3, 2, 4, 6), (3, 2, 5, 6), (3, 2, 5, 8)
    name = "perfctl.scaled_dot_product_attention"
    facts = build_attention_worksheet(
        op(name, (query, key, value), ((3, 2, 4, 8),), is_causal=True)
    ).facts
    square = 2 * 4 * 5
    assert facts is not None and facts.forward_macs_of_batch == 3 * square * 14
    assert [(way.macs_per_sample, way.outputs) for way in facts.ways] == [
        (macs, 64)
        for macs in (
            square * 14,
            square * 6,
            2 * 4 * 14,
            4 * 5 * 14,
            square * 2 * 14,
            square * 7,
            2 * 14 * (4 * 5 // 2),
        )
    ]
    one = build_attention_worksheet(op(name, ((4, 6), (5, 6), (5, 8)), ((4, 8),))).facts
    assert one is not None and (one.batch, one.forward_macs_of_batch, len(one.ways)) == (
        1,
        4 * 5 * 14,
        3,
    )


def test_space_is_said_item_by_item_and_in_all_in_kib():
    items = (SheetTensor("weights", (30, 40), 2), SheetTensor("biases", (8,), 4))
    assert written(make_tensor_size_lines(items)) == lines_of("""
        weights | values x bytes | 30 x 40 = 1,200 values x 2 B | 2,400 B
        biases | values x bytes | 8 values x 4 B | 32 B
        total | sum | 1,208 values | 2,432 B = 2.4 KiB
    """)
    assert len(make_tensor_size_lines(items[:1])) == 1


def test_sizes_products_and_flops():
    assert (
        make_shape_line("w", ()).result,
        make_shape_line("w", (64, 24)).result,
        make_flop_and_bias_lines(1500)[0],
    ) == (
        "1",
        "64 x 24",
        SheetLine("in FLOP", "2 x MAC", "2 x 1,500", "3,000 FLOP"),
    )
    assert [compute_window_output_size(size, 3, 2, 1) for size in (1, 2, 3, 7)] == [1, 1, 2, 4]
    assert (
        compute_window_output_size(224, 7, 2, 3),
        compute_window_output_size(10, 3, 1, 0, 2),
        compute_window_output_size(2, 3, 1, 0),
    ) == (112, 6, 0)
    facts = ManualCheckFacts(3, 0, 0, False, (WorkedWay((), ((2, 5), (7,)), 1),))
    assert (facts.forward_macs_of_batch, facts.step) == (3 * 17, 0)
