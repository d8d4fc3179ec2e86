"""The sheet of a recurrent layer, every line and every way worked by hand."""

from perfctl.orchestrator.estimate.sheets.layers import SheetLine, SheetTensor
from perfctl.orchestrator.estimate.sheets.sequences import build_recurrent_worksheet
from perfctl.orchestrator.estimate.sheets.slips import diagnose_stated_value
from tests.make.shapes import op
from tests.make.sheets import lines_of, numbers_of, ways_of, written


def sheet(kind, given, result, **sizes):
    return build_recurrent_worksheet(
        op(f"perfctl.{kind}", (given,), (result,), dtype="float16", **sizes)
    )


LSTM = sheet(
    "lstm",
    (5, 3, 6),
    (5, 3, 8),
    rows=15,
    first_rows=3,
    input_size=6,
    hidden_size=8,
    proj_size=4,
    num_layers=2,
    directions=2,
    bias=True,
)
"""3 samples of 5 steps; two layers of two directions; 8 hidden values projected to 4, which
go round."""


def test_a_projected_lstm_of_two_layers_and_directions_line_by_line():
    assert written(LSTM.shapes) == lines_of("""
        input |  |  | 5 x 3 x 6
        rows | N x T | 3 x 5 | 15
        gates | G | input, forget, cell, output | 4
        recurrent size | R | projection | 4
        output features | D x R | 2 x 4 | 8
        output |  |  | 5 x 3 x 8
    """)
    first, second = 4 * 8 * (6 + 4) + 4 * 8, 4 * 8 * (8 + 4) + 4 * 8
    assert (first, second) == (352, 416)
    assert written(LSTM.steps) == lines_of("""
        layer 0, one row | G x H x (I + R) | 4 x 8 x (6 + 4) | 320 MAC
        layer 0, projection | R x H | 4 x 8 | 32 MAC
        layer 0 | rows x D x one row | 15 x 2 x 352 | 10,560 MAC
        layer 1, one row | G x H x (D x R + R) | 4 x 8 x (8 + 4) | 384 MAC
        layer 1, projection | R x H | 4 x 8 | 32 MAC
        layer 1 | rows x D x one row | 15 x 2 x 416 | 12,480 MAC
        whole batch | sum of the layers |  | 23,040 MAC
        in FLOP | 2 x MAC | 2 x 23,040 | 46,080 FLOP
        biases, not included | 2 x G x H x rows x D x layers | 2 x 4 x 8 x 15 x 2 x 2 | 3,840 FLOP
    """)
    assert written(LSTM.space) == lines_of("""
        input weights, layer 0 | (2, 32, 6) | 2
        recurrent weights, layer 0 | (2, 32, 4) | 2
        projection, layer 0 | (2, 4, 8) | 2
        biases, layer 0 | (2, 2, 32) | 2
        input weights, layer 1 | (2, 32, 8) | 2
        recurrent weights, layer 1 | (2, 32, 4) | 2
        projection, layer 1 | (2, 4, 8) | 2
        biases, layer 1 | (2, 2, 32) | 2
        output map | (5, 3, 8) | 2
    """)


def test_every_way_to_work_it_and_its_multiply_adds():
    facts = LSTM.facts
    assert facts is not None
    assert numbers_of(facts) == (3, 2 * 768, 2 * 2 * 32 * 2, False, 23040)
    rows, projected = 5 * 2, 2 * 32
    assert ways_of(facts) == [
        ("", rows * (32 * 10 + 32 * 12 + projected)),
        ("1 gate instead of 4", rows * (8 * 10 + 8 * 12 + projected)),
        ("3 gates instead of 4", rows * (24 * 10 + 24 * 12 + projected)),
        ("the second direction left out", 5 * (32 * 10 + 32 * 8 + projected)),
        ("one direction counted, with the inputs of two", 5 * (32 * 10 + 32 * 12 + projected)),
        ("only the first of 2 layers", rows * (32 * 10 + 32)),
        ("the first layer's input size used for all layers", 2 * rows * (32 * 10 + 32)),
        ("the projection left out", rows * (32 * (6 + 8) + 32 * (16 + 8))),
        ("the 5 time steps left out", 2 * (32 * 10 + 32 * 12 + projected)),
        ("the product with the hidden state left out", rows * (32 * 6 + 32 * 8 + projected)),
        ("the product with the input left out", rows * (32 * 4 + 32 * 4 + projected)),
    ]
    assert {way.outputs for way in facts.ways} == {5 * 2 * 4}
    assert diagnose_stated_value(3 * 5 * (32 * 22 + projected), facts).mistakes == (
        "one direction counted, with the inputs of two",
    )


def test_a_gru_of_one_layer_and_one_step_has_few_ways():
    work = sheet("gru", (3, 6), None, rows=3, first_rows=3, input_size=6, hidden_size=8)
    assert numbers_of(work.facts) == (3, 24 * 14, 0, False, 3 * 24 * 14)
    assert ways_of(work.facts) == [
        ("", 24 * 14),
        ("1 gate instead of 3", 8 * 14),
        ("4 gates instead of 3", 32 * 14),
        ("the product with the hidden state left out", 24 * 6),
        ("the product with the input left out", 24 * 8),
    ]
    assert [line.result for line in work.steps] == [
        "336 MAC",
        "1,008 MAC",
        "1,008 MAC",
        "2,016 FLOP",
    ]
    # What the output is kept in was not seen: 4 bytes.
    assert work.space == (
        SheetTensor("input weights, layer 0", (1, 24, 6), 4),
        SheetTensor("recurrent weights, layer 0", (1, 24, 8), 4),
    )
    assert [(line.formula, line.numbers, line.result) for line in work.shapes[2:5]] == [
        ("G", "reset, update, new", "3"),
        ("R = H", "", "8"),
        ("D x R", "1 x 8", "8"),
    ]


def test_rows_that_are_packed_or_not_alike_are_not_split_into_samples_and_steps():
    sizes = {"rows": 12, "first_rows": 4, "input_size": 2, "hidden_size": 3, "bias": True}
    packed = sheet("rnn", (12, 2), (12, 3), packed=True, **sizes)
    assert packed.facts is not None
    assert (packed.facts.batch, packed.facts.forward_macs_of_batch, packed.facts.biases) == (
        1,
        12 * 3 * 5,
        2 * 3,
    )
    assert packed.shapes[1] == SheetLine(
        "rows", "sum of the lengths", "packed: padding is not computed", "12"
    )
    assert packed.shapes[2].numbers == "none: one hidden layer"
    assert "the 12 time steps left out" in {slip for way in packed.facts.ways for slip in way.slips}
    for changed, batch, macs in (
        ({}, 4, 180),
        ({"rows": 13}, 1, 13 * 15),
        ({"first_rows": 0}, 1, 180),
    ):
        facts = sheet("rnn", (12, 2), (12, 3), **{**sizes, **changed}).facts
        assert facts is not None and (facts.batch, facts.forward_macs_of_batch) == (batch, macs)
