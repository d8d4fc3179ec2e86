"""The sheets of layers made of several products: nn.MultiheadAttention, and any other."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.sheets.layers import SheetLine, SheetTensor
from perfctl.orchestrator.estimate.sheets.sequences import (
    build_attention_worksheet,
    build_multi_product_worksheet,
)
from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value
from tests.make.shapes import op
from tests.make.sheets import lines_of, numbers_of, ways_of, written

SDPA = "perfctl.scaled_dot_product_attention"
IN = op("aten.addmm", ((48,), (10, 16), (16, 48)), ((10, 48),))
SCORES = op("aten.bmm", ((4, 5, 8), (4, 8, 5)), ((4, 5, 5),))
VALUES = op("aten.bmm", ((4, 5, 5), (4, 5, 8)), ((4, 5, 8),))
OUT = op("aten.addmm", ((16,), (10, 16), (16, 16)), ((10, 16),))
PARAMETERS = 48 * 16 + 48 + 16 * 16 + 16
"""2 sequences of 5 positions, 16 wide, 2 heads of 8: the projections see 10 rows, the products
4 heads."""


def test_multi_head_attention_line_by_line():
    work = build_multi_product_worksheet((IN, SCORES, VALUES, OUT), 99, PARAMETERS, True)
    assert work.shapes == (
        SheetLine("first operand", "", "", "10 x 16"),
        SheetLine("last result", "", "", "10 x 16"),
    )
    assert written(work.steps) == lines_of("""
        projection in | M x K x N | 10 x 16 x 48 | 7,680 MAC
        scores Q K^T | B x M x K x N | 4 x 5 x 8 x 5 | 800 MAC
        weights x values | B x M x K x N | 4 x 5 x 5 x 8 | 800 MAC
        projection out | M x K x N | 10 x 16 x 16 | 2,560 MAC
        whole batch | sum | 7,680 + 800 + 800 + 2,560 | 11,840 MAC
        in FLOP | 2 x MAC | 2 x 11,840 | 23,680 FLOP
    """)
    assert written(work.space) == lines_of("""
        parameters | (1088,) | 4
        result of projection in | (10, 48) | 4
        result of scores Q K^T | (4, 5, 5) | 4
        result of weights x values | (4, 5, 8) | 4
        result of projection out | (10, 16) | 4
    """)


def test_every_way_to_work_it_and_its_multiply_adds():
    facts = build_multi_product_worksheet((IN, SCORES, VALUES, OUT), 99, PARAMETERS, True).facts
    assert facts is not None
    assert numbers_of(facts) == (2, 1088, 0, False, 11_840)
    into, one, out = 7680 // 2, 800 // 2, 2560 // 2
    whole = into + 2 * one + out
    assert ways_of(facts) == [
        ("", whole),
        ("projection in left out", whole - into),
        ("projection in alone", into),
        ("scores Q K^T left out", whole - one),
        ("scores Q K^T alone", one),
        ("weights x values left out", whole - one),
        ("weights x values alone", one),
        ("projection out left out", whole - out),
        ("projection out alone", out),
        ("the projections left out", 2 * one),
        ("attention itself left out, projections alone", into + out),
    ]
    assert {way.outputs for way in facts.ways} == {0}
    assert (
        diagnose_stated_value(11_840, facts).derivation
        == "2 x (3,840 + 400 + 400 + 1,280) = 11,840 MAC"
    )


def test_two_products_of_attention_with_equal_sizes_are_one_line():
    """As many positions as channels of a head: scores and values are the same matrix product."""
    both = replace(op("aten.bmm", ((4, 8, 8), (4, 8, 8)), ((4, 8, 8),)), calls=2)
    into = replace(IN, inputs=((48,), (16, 16), (16, 48)))
    work = build_multi_product_worksheet((into, both, OUT), 99, PARAMETERS, True)
    assert [line.quantity for line in work.steps[:3]] == [
        "projection in",
        "attention",
        "projection out",
    ]
    assert "attention itself left out, projections alone" in {
        name for name, _ in ways_of(work.facts)
    }
    assert not any("scores" in name for name, _ in ways_of(work.facts))


@pytest.mark.parametrize(
    ("heavy", "batch"),
    [
        ((IN, op(SDPA, ((3, 2, 5, 8),) * 3, ((3, 2, 5, 8),)), OUT), None),
        ((IN, SCORES, VALUES, OUT), 2),
        ((IN, OUT), 1),
        ((IN, op("aten.bmm", ((4, 3, 8), (4, 8, 5)), ((4, 3, 5),)), VALUES, OUT), 1),
        ((replace(IN, inputs=((48,), (0, 16), (16, 48))), SCORES, VALUES, OUT), 1),
        ((IN, op("aten.baddbmm", ((4, 5, 5), (4, 5, 8), (4, 8, 5)), ((4, 5, 5),)), VALUES, OUT), 2),
    ],
)
def test_the_batch_is_the_projections_rows_by_the_positions(heavy, batch):
    """10 rows of 5 positions are 2 samples; 3 positions do not divide 10 rows; 3 samples do not
    divide 7,680."""
    facts = build_multi_product_worksheet(heavy, 99, 0, True).facts
    assert (None if facts is None else facts.batch) == batch


def test_projections_are_numbered_where_there_are_several_before_attention():
    single = op("aten.addmm", ((16,), (10, 16), (16, 16)), ((10, 16),))
    core = op(SDPA, ((2, 2, 5, 8),) * 3, ((2, 2, 5, 8),))
    work = build_multi_product_worksheet((single, single, single, core, OUT), 1, 0, True)
    assert [line.quantity for line in work.steps[:5]] == [
        "projection in 1",
        "projection in 2",
        "projection in 3",
        "attention",
        "projection out",
    ]
    assert work.facts is not None
    assert (work.facts.batch, work.facts.forward_macs_of_batch) == (
        2,
        4 * 2560 + 2 * 2 * 5 * 5 * 16,
    )
    assert work.space[0].what == "result of projection in 1"
    assert [
        line.quantity for line in build_multi_product_worksheet((single, OUT), 1, 0, True).steps[:2]
    ] == ["projection out"] * 2


def test_products_of_any_other_layer_are_numbered_and_each_call_counts():
    first = op("aten.mm", ((6, 4), (4, 3)), ((6, 3),))
    again = replace(op("aten.mm", ((6, 3), (3, 5)), (None,)), calls=3)
    work = build_multi_product_worksheet((first, again), 6, 0, False)
    assert written(work.steps) == lines_of("""
        product 1 | M x K x N | 6 x 4 x 3 | 72 MAC
        product 2 | M x K x N | 3 times 6 x 3 x 5 | 270 MAC
        whole batch | sum | 72 + 270 | 342 MAC
        in FLOP | 2 x MAC | 2 x 342 | 684 FLOP
    """)
    assert work.space == (SheetTensor("result of product 1", (6, 3), 4),)
    assert ways_of(work.facts) == [
        ("", 57),
        ("product 1 left out", 45),
        ("product 1 alone", 12),
        ("product 2 left out", 12),
        ("product 2 alone", 45),
    ]
    alone = build_multi_product_worksheet((first,), 6, 12, False)
    assert alone.facts is not None and alone.facts.weights == 12
    assert ways_of(alone.facts) == [("", 12)]
    assert build_multi_product_worksheet((first, again), 5, 0, False).facts is None, (
        "72 is no multiple of 5"
    )
    # What results are kept in was not seen: 4 bytes.
    assert build_multi_product_worksheet((again,), 1, 7, False).space == (
        SheetTensor("parameters", (7,), 4),
    )


def test_attention_line_by_line():
    query, key, value = (3, 2, 4, 6), (3, 2, 5, 6), (3, 2, 5, 8)
    work = build_attention_worksheet(
        op(SDPA, (query, key, value), ((3, 2, 4, 8),), dtype="float16")
    )
    assert written(work.shapes) == lines_of("""
        query | B x h x Sq x E |  | 3 x 2 x 4 x 6
        key | B x h x Sk x E |  | 3 x 2 x 5 x 6
        value | B x h x Sk x V |  | 3 x 2 x 5 x 8
        scores | B x h x Sq x Sk | 3 x 2 x 4 x 5 | 120
        output | B x h x Sq x V |  | 3 x 2 x 4 x 8
    """)
    assert written(work.steps) == lines_of("""
        one score | E | 6 | 6 MAC
        scores Q K^T | B x h x Sq x Sk x E | 3 x 2 x 4 x 5 x 6 | 720 MAC
        weights x values | B x h x Sq x Sk x V | 3 x 2 x 4 x 5 x 8 | 960 MAC
        whole batch | sum | 720 + 960 | 1,680 MAC
        in FLOP | 2 x MAC | 2 x 1,680 | 3,360 FLOP
        softmax and scaling, not included | 6 per score | 6 x 120 | 720 FLOP
    """)
    assert work.space == (
        SheetTensor("query", query, 2),
        SheetTensor("key", key, 2),
        SheetTensor("value", value, 2),
        SheetTensor("scores, if a kernel keeps them", (3, 2, 4, 5), 2),
        SheetTensor("output map", (3, 2, 4, 8), 2),
    )
    assert [slip for slip, _ in ways_of(work.facts)] == [
        "",
        "the product of weights and values left out",
        "one sequence of 4 instead of 4 x 5",
        "the 2 heads left out",
        "the whole width used for each head",
    ]
    assert numbers_of(work.facts) == (3, 0, 0, False, 1680)
    unseen = build_attention_worksheet(
        op(SDPA, ((7, 4, 6), (7, 5, 6), (7, 5, 8)), (None,), dtype="float16", is_causal=True)
    )
    assert [item.item for item in unseen.space] == [2] * 4, "scores are kept as the query is"
    assert unseen.facts is not None and unseen.facts.batch == 7
    assert (
        unseen.steps[-1].formula
        == "the full square is counted; a kernel that skips masked blocks does less"
    )
