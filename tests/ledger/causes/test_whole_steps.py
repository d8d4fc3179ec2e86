"""A factor that all rows of a batch size have in common, and how often layers ran."""

from dataclasses import replace

from perfctl.orchestrator.ledger.causes.call_rules import (
    detect_extra_calls,
    detect_extra_gradients,
    find_common_factors_by_batch,
    infer_layer_calls_from_launches,
    list_whole_step_causes,
)
from perfctl.orchestrator.ledger.causes.rule import Cause, RowCase
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import by_place, call, measured, work
from tests.make.tables import table

PADDED = Cause("tile padding", 1.25)


def ran(layer, direction, share, launches=1, size=1):
    """A layer that executed a share of its estimate in so many launches."""
    name = f"void gemm_{direction}<float>(float*)"
    kernel = work(name, ffma=32_000 * size * share, launches=launches)
    calls = (call(32, direction, macs=1000 * size, layer=layer),)
    return measured(32, kernel, layer=layer, direction=direction, calls=calls, position=size)


def candidates(rows, padded=()):
    table = by_place(*rows)
    return [(RowCase(row, table), [PADDED] if row in padded else []) for row in rows]


def network(factor, launches=1, world=None):
    """Four layers, forward and backward, that all executed ``factor`` times the estimate; the
    last one has a padded tile of its own, 1.25."""
    rows = []
    for size, layer in enumerate("abcd", 1):
        padding = 1.25 if layer == "d" else 1
        rows += [
            ran(layer, "forward", factor * padding, launches, size),
            ran(layer, "backward", factor, launches, size),
        ]
    if world:
        rows = [replace(row, environment={"world_size": world}) for row in rows]
    return candidates(rows, [rows[-2]])


def launched(forward, backward, layers="abcd"):
    """Layers whose products were launched so often, forward and backward."""
    directions = (("forward", forward), ("backward", backward))
    return candidates(
        [ran(layer, direction, times, times) for layer in layers for direction, times in directions]
    )


@table(
    "rows factor cause confidence",
    [
        (network(2, 2), 2, "each GEMM ran 2 times", "predicted and matched"),
        (network(4), 4, "a batch of 128 may have run", "plausible"),
        (network(0.5), 0.5, "one rank of 2, or a batch of 16", "plausible"),
        (network(1.5), 1.5, "a batch of 48 may have run.", "plausible"),
        (network(31 / 32), 31 / 32, "a batch of 31 may have run, such as the last", "plausible"),
        (network(0.25, world="4"), 0.25, "this may be one rank of 4", "plausible"),
        (network(0.25, world="4")[:4], 0.25, "this may be one rank of 4", "plausible"),
    ],
)
def test_a_factor_that_all_rows_have_in_common_has_one_cause(rows, factor, cause, confidence):
    (step,) = find_common_factors_by_batch(rows)[32]
    assert (step.factor, step.confidence) == (factor, confidence)
    assert cause in describe_cause(*list_whole_step_causes({32: [step]}))


@table(
    "mode cause",
    [
        ("train", "the gradients are accumulated over 2 batches"),
        ("infer", "each step runs 2 batches"),
    ],
)
def test_only_a_training_run_accumulates_gradients(mode, cause):
    rows = [replace(case.evidence, mode=mode) for case, _ in launched(2, 2)]
    (step,) = find_common_factors_by_batch(candidates(rows))[32]
    assert cause in describe_cause(*list_whole_step_causes({32: [step]}))
    (alone,) = [replace(case.evidence, mode=mode) for case, _ in launched(2, 2, "a")[:1]]
    repeated = detect_extra_calls(RowCase(alone, by_place(alone)))
    assert ("accumulated" in describe_cause(repeated)) is (mode == "train")


SAME = work("k", ffma=96_000, launches=3)
TRIED = [
    *(measured(32, SAME, layer=layer) for layer in "ab"),
    measured(32, SAME.scale_to_launches(2), work("other", ffma=32_000), layer="c"),
]


@table(
    "rows",
    {
        "four launches of a quarter of the work": network(1, 4),
        "two layers of another number of ranks": network(0.25, world="2")[:4],
        "two layers without ranks": network(0.25)[:4],
        "one layer": network(0.25, world="4")[:2],
        **{f"{factor} times": network(factor) for factor in (1, 1.008, 1.045, 0.7)},
        "rows that differ": [*network(2)[::2], *network(1)[1::2]],
        "kernels that were tried once each": candidates(TRIED),
    },
)
def test_rows_without_a_common_number_have_no_common_cause(rows):
    assert find_common_factors_by_batch(rows) == {}


def test_gradients_launched_more_often_than_forward_have_a_factor_of_their_own():
    steps = find_common_factors_by_batch(launched(5, 10))[32]
    assert [(step.factor, step.of_gradients) for step in steps] == [(5, False), (2, True)]
    assert "double backward" in describe_cause(*list_whole_step_causes({32: steps[1:]}))


@table("forward backward layers", [(2, 1, "abcd"), (2, 3, "abcd"), (2, 2, "a"), (1, 1, "abcd")])
def test_launches_that_another_row_contradicts_are_no_whole_step(forward, backward, layers):
    steps = find_common_factors_by_batch(launched(forward, backward, layers)).get(32, ())
    assert not any(step.by_launches for step in steps)


def test_a_layer_and_its_gradients_that_ran_more_often_have_a_factor_each():
    forward, backward = (case for case, _ in launched(2, 6, "a"))
    causes = [
        detect_extra_calls(forward),
        detect_extra_calls(backward),
        detect_extra_gradients(backward),
    ]
    assert [cause and cause.factor for cause in causes] == [2, 2, 3]
    assert detect_extra_gradients(forward) is None


@table("kind multiple", [("Linear", 6), ("LSTM", None)])
def test_launches_of_a_recurrent_layer_may_be_steps_of_its_sequence(kind, multiple):
    row = ran("a", "forward", 6, 6)
    row = replace(row, row=replace(row.row, kind=kind))
    assert infer_layer_calls_from_launches(row, row.product_kernels) == multiple
