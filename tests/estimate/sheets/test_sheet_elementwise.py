"""The sheets of layers without multiply-adds, every line by hand."""

from __future__ import annotations

from math import prod

import pytest

from perfctl.orchestrator.estimate.sheets.layers import (
    SheetLine,
    SheetTensor,
    build_embedding_worksheet,
    build_norm_worksheet,
    build_operation_list_worksheet,
    build_pooling_worksheet,
)
from tests.make.shapes import Shape, op
from tests.make.sheets import lines_of, written
from tests.make.tables import table


def test_an_embedding_line_by_line():
    work = build_embedding_worksheet(op("aten.embedding", ((50, 8), (2, 7)), ((2, 7, 8),)))
    assert written(work.shapes) == lines_of("""
        indices |  |  | 2 x 7
        table | entries x E |  | 50 x 8
        output | indices x E | 2 x 7 x 8 | 2 x 7 x 8
    """)
    assert written(work.steps) == lines_of("""
        rows looked up | product of the indices' sizes | 2 x 7 | 14
        values copied | rows x E | 14 x 8 | 112
        operations | a lookup multiplies nothing |  | 0 MAC
    """)
    assert work.space == (SheetTensor("table", (50, 8), 4), SheetTensor("output map", (2, 7, 8), 4))
    assert work.facts is None


GIVEN = (2, 6, 5, 4)
CHANNELS: tuple[Shape | None, ...] = (GIVEN, (6,), (6,), (6,), (6,))
KEPT = ("mean, kept for backward", "1/deviation, kept for backward")
OWN = ("weights", "biases", "running mean", "running variance")


@table(
    "name inputs kept attributes shared sizes space",
    {
        "batch norm": (
            "native_batch_norm",
            CHANNELS,
            (6,),
            {"training": True},
            "N x positions of a channel",
            (2, 5, 4),
            (*OWN, "output map", *KEPT),
        ),
        "batch norm by its running statistics": (
            "native_batch_norm",
            CHANNELS,
            (0,),
            {"training": False},
            "N x positions of a channel",
            (2, 5, 4),
            (*OWN, "output map"),
        ),
        "batch norm with update": (
            "_batch_norm_with_update",
            CHANNELS,
            (6,),
            {},
            "N x positions of a channel",
            (2, 5, 4),
            (*OWN, "output map", *KEPT),
        ),
        "layer norm": (
            "native_layer_norm",
            (GIVEN, None, (5, 4), (5, 4)),
            (2, 6, 1, 1),
            {"normalized_shape": [5, 4]},
            "normalised sizes",
            (5, 4),
            ("weights", "biases", "output map", *KEPT),
        ),
        "layer norm without weights": (
            "native_layer_norm",
            (GIVEN, None, None, None),
            (2, 6, 5, 1),
            {},
            "normalised sizes",
            (4,),
            ("output map", *KEPT),
        ),
        "group norm": (
            "native_group_norm",
            (GIVEN, (6,), (6,)),
            (2, 3),
            {"group": 3},
            "C/g x positions",
            (2, 5, 4),
            ("weights", "biases", "output map", *KEPT),
        ),
        "group norm of one group": (
            "native_group_norm",
            (GIVEN, None, None),
            (2, 1),
            {},
            "C/g x positions",
            (6, 5, 4),
            ("output map", *KEPT),
        ),
    },
)
def test_a_norm_says_what_shares_a_mean_what_each_value_costs_and_what_it_keeps(
    name, inputs, kept, attributes, shared, sizes, space
):
    work = build_norm_worksheet(op(f"aten.{name}", inputs, (GIVEN, kept, kept), **attributes))
    values, sharing = prod(GIVEN), prod(sizes)
    assert work.shapes == (
        SheetLine("input", "", "", "2 x 6 x 5 x 4"),
        SheetLine("values that share a mean", shared, " x ".join(map(str, sizes)), f"{sharing}"),
        SheetLine(
            "means and variances",
            "values / those that share",
            f"{values}/{sharing}",
            f"{values // sharing}",
        ),
        SheetLine("output", "as the input", "", "2 x 6 x 5 x 4"),
    )
    costs = {"mean": 1, "variance": 3, "normalise": 2, "scale and shift": 2}
    if attributes.get("training") is False:
        costs = {"normalize with the running statistics": 2, "scale and shift": 2}
    assert work.steps == (
        *(
            SheetLine(what, f"{cost} per value", f"{cost} x {values}", f"{cost * values} FLOP")
            for what, cost in costs.items()
        ),
        SheetLine(
            "total, elementwise", "no multiply-adds", "", f"{values * sum(costs.values()):,} FLOP"
        ),
    )
    assert tuple(item.what for item in work.space) == space


def test_a_norms_weights_and_statistics_are_taken_from_their_places():
    batch = build_norm_worksheet(
        op(
            "aten.native_batch_norm",
            ((2, 6), (1,), (2,), (3,), (4,)),
            ((2, 6), (7,), (8,)),
            training=True,
        )
    )
    assert [item.sizes for item in batch.space] == [(1,), (2,), (3,), (4,), (2, 6), (7,), (8,)]
    layer = build_norm_worksheet(
        op("aten.native_layer_norm", ((2, 6), None, (2,), (3,)), ((2, 6), (7,), (8,)))
    )
    assert [item.sizes for item in layer.space] == [(2,), (3,), (2, 6), (7,), (8,)]
    group = build_norm_worksheet(
        op("aten.native_group_norm", ((2, 6), (1,), (2,)), ((2, 6), (7,), (8,)), group=2)
    )
    assert [item.sizes for item in group.space] == [(1,), (2,), (2, 6), (7,), (8,)]


def test_a_max_pool_line_by_line():
    """H: (8 - 2)/2 + 1 = 4, the stride being the window; W: (9 - 5 + 2)/3 + 1 = 3, the window 5
    wide by its dilation."""
    work = build_pooling_worksheet(
        op(
            "aten.max_pool2d_with_indices",
            ((2, 3, 8, 9),),
            ((2, 3, 4, 3), (2, 3, 4, 3)),
            kernel_size=[2, 3],
            stride=[0, 3],
            padding=[0, 1],
            dilation=[1, 2],
        )
    )
    assert written(work.shapes) == lines_of("""
        input |  |  | 2 x 3 x 8 x 9
        output height | (input - kernel + 2 padding)/stride + 1 | (8 - 2 + 2x0)/2 + 1 | 4
        output width | (input - kernel + 2 padding)/stride + 1 | (9 - (2x(3 - 1) + 1) + 2x1)/3 + 1 | 3
        output |  |  | 2 x 3 x 4 x 3
    """)
    assert written(work.steps) == lines_of("""
        for one output value | window, comparisons | 2 x 3 | 6
        output values | product of the sizes | 2 x 3 x 4 x 3 | 72
        total, elementwise | values x window | 72 x 6 | 432 FLOP
        operations | no multiply-adds, no weights |  | 0 MAC
    """)
    assert work.space == (
        SheetTensor("output map", (2, 3, 4, 3), 4),
        SheetTensor("indices of the maxima, kept for backward", (2, 3, 4, 3), 4),
    )


@pytest.mark.parametrize(
    ("up", "said", "size"), [(False, ", rounded down", 3), (True, ", rounded up", 4)]
)
def test_an_average_pool_in_three_dimensions_repeats_what_is_said_once(up, said, size):
    work = build_pooling_worksheet(
        op(
            "aten.avg_pool3d",
            ((1, 8, 9, 8),),
            ((1, size, 4, size),),
            kernel_size=[3],
            stride=[2],
            ceil_mode=up,
        )
    )
    assert [
        (line.quantity, line.formula, line.numbers, line.result) for line in work.shapes[1:4]
    ] == [
        (
            "output depth",
            f"(input - kernel + 2 padding)/stride + 1{said}",
            "(8 - 3 + 2x0)/2 + 1",
            str(size),
        ),
        ("output height", "(input - kernel + 2 padding)/stride + 1", "(9 - 3 + 2x0)/2 + 1", "4"),
        (
            "output width",
            f"(input - kernel + 2 padding)/stride + 1{said}",
            "(8 - 3 + 2x0)/2 + 1",
            str(size),
        ),
    ]
    assert work.steps[0] == SheetLine(
        "for one output value", "window, additions", "3 x 3 x 3", "27"
    )
    assert work.steps[2].result == f"{27 * size * 4 * size:,} FLOP"
    assert [item.what for item in work.space] == ["output map"]


def test_anything_else_says_what_each_operation_does():
    work = build_operation_list_worksheet(
        (
            op("aten.relu_", ((2, 6),), ((2, 6),)),
            op("aten.unheard_of", ((2, 6),), ((2, 6),)),
            op("aten.copy_", ((2, 6),), ((2, 6),)),
            op("aten.mm", ((2, 6), (6, 5)), ((2, 5),)),
        )
    )
    assert work.shapes == (
        SheetLine("input", "", "", "2 x 6"),
        SheetLine("output", "", "", "2 x 5"),
    )
    assert written(work.steps) == lines_of("""
        relu | 1 x 12 output values, elementwise |  | 12 FLOP
        unheard_of | no formula for aten.unheard_of |  | not counted
        copy | 12 values moved, no arithmetic |  | 0 FLOP
        mm | M x K x N = 2 x 6 x 5 = 60 MAC = 120 FLOP |  | 60 MAC
    """)
    assert (work.space, work.facts) == ((SheetTensor("output map", (2, 5), 4),), None)
    assert build_operation_list_worksheet((op("aten.relu", ((2, 6),), ((2, 0),)),)).space == (), (
        "an empty tensor takes no space"
    )
