"""What a cause implies against what was recorded, which causes the count refutes, and how causes
write numbers."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import GemmShape
from perfctl.orchestrator.ledger.causes.evidence import LaunchPlaces
from perfctl.orchestrator.ledger.causes.judge import (
    compute_unexplained_gap_share,
    drop_refuted_causes,
)
from perfctl.orchestrator.ledger.causes.rule import (
    COUNTED,
    UNSTATED,
    Cause,
    ExpectedNumber,
    Implications,
    compute_explained_gap_share,
    determine_cause_confidence,
    deviates_from_one,
    format_ratio,
    format_share,
    format_with_si_prefix,
    get_ratio_unless_lower_bound,
)
from tests.make.rows import BOTH, case, seen_with, work
from tests.make.tables import table

MATCHED, PLAUSIBLE = "predicted and matched", "plausible"
UNEVEN = {"launched": LaunchPlaces(steps=(64_000.0, 32_000.0))}
UNCOUNTED = replace(work("other"), flops=Figure(None, "not_collected"))
PARTLY_COUNTED = {"kernels": (work(ffma=32_000), UNCOUNTED)}
ON, OFF = ({"environment": {"cudnn_benchmark": flag}} for flag in ("on", "off"))


@table(
    "implies recorded confidence",
    [
        (Implications(), {}, MATCHED),
        (COUNTED, {}, "observed"),
        (COUNTED, {"derived": True}, MATCHED),
        (UNSTATED, {}, PLAUSIBLE),
        (Implications(flops=ExpectedNumber(100, 101, 0.02)), {}, MATCHED),
        (Implications(flops=ExpectedNumber(100, 103, 0.02)), {}, None),
        (Implications(flops=ExpectedNumber(0, 103, 0.02)), {}, None),
        (Implications(launches=ExpectedNumber(2, 2)), {}, MATCHED),
        (Implications(launches=ExpectedNumber(2, 1)), {}, None),
        (Implications(is_complete=True), {}, MATCHED),
        (Implications(is_complete=True), {"left_out": "the run is partial"}, None),
        (Implications(trials=True), {}, PLAUSIBLE),
        (Implications(trials=True), ON, MATCHED),
        (Implications(trials=True), OFF, None),
        (Implications(trials=False), {}, PLAUSIBLE),
        (Implications(trials=False), OFF, MATCHED),
        (Implications(trials=False), ON, None),
        (Implications(batches=(32,)), {}, MATCHED),
        (Implications(batches=(32, 64)), {}, PLAUSIBLE),
        (Implications(batches=(32, 64)), {"seen_batch": 64}, MATCHED),
        (Implications(batches=(32,)), {"seen_batch": 64}, None),
        (Implications(product=GemmShape(64, 32, 16)), {}, "likely"),
        (Implications(product=GemmShape(64, 32, 16), is_stated=False), {}, PLAUSIBLE),
        (Implications(), UNEVEN, None),
        (COUNTED, UNEVEN, "observed"),
        (Implications(changes=True), UNEVEN, MATCHED),
        (Implications(), PARTLY_COUNTED, PLAUSIBLE),
        (COUNTED, PARTLY_COUNTED, "observed"),
    ],
)
def test_one_contradiction_drops_a_cause_and_one_gap_makes_it_plausible(
    implies, recorded, confidence
):
    row = case(32, counted=64_000, kind="Conv2d")
    assert determine_cause_confidence(seen_with(replace(row, **recorded)), implies) == confidence


@table(
    "forward factor confidence",
    [
        (1.0, 1.0, MATCHED),
        (1.0, 4.0, MATCHED),
        (0.5, 0.5, None),
        (0.5, 2.0, MATCHED),
        (0.5, 0.0, MATCHED),  # a gradient without a FLOP
    ],
)
def test_a_factor_of_gradients_is_not_one_that_forward_has_too(forward, factor, confidence):
    given = seen_with(
        case(32, direction="backward", calls=BOTH), case(32, counted=64_000 * forward)
    )
    assert determine_cause_confidence(given, Implications(gradients_only=factor)) == confidence


@table(
    "ratio factors remaining",
    [
        (1.0, (1.5,), ()),
        (1.0, (2.0, 0.5), (2.0, 0.5)),
        (1.23, (1.5,), ()),
        (1.46, (0.46,), ()),
        (3.0, (1.5, 2.0), (1.5, 2.0)),
        (2.0, (3.9,), ()),
        (2.0, (1.9,), (1.9,)),
        (2.0, (2.0**1.3,), (2.0**1.3,)),  # a third beyond the ratio, in logarithms
        (2.0, (2.0**1.4,), ()),
        (2.0, (2.0, 1.5), (2.0,)),
        (1.01, (1.01,), (1.01,)),
        (0.5, (2.0,), ()),
        (2.0, (1.0, None), (1.0, None)),
        (0.0, (2.0,), (2.0,)),
        (None, (2.0,), (2.0,)),
    ],
)
def test_a_factor_that_does_not_bring_the_product_nearer_to_the_ratio_is_dropped(
    ratio, factors, remaining
):
    causes = drop_refuted_causes(ratio, [Cause("x", factor) for factor in factors])
    assert tuple(cause.factor for cause in causes) == remaining


@table(
    "ratio factor share",
    [
        (2.0, 2.0, 1.0),
        (4.0, 2.0, 0.5),
        (0.25, 0.5, 0.5),
        (2.0, 0.5, 0.0),
        (2.0, 8.0, 0.0),
        (1.0, 2.0, None),
        (2.0, None, None),
        (None, 2.0, None),
        (0, 2.0, 0),
        (1.004, 2.0, None),
        (2.0, 0, 0),
        (2.0, -1.0, 0),
        (0.5, 0.25, 0),
    ],
)
def test_the_explained_share_is_in_logarithms_between_0_and_1(ratio, factor, share):
    assert compute_explained_gap_share(ratio, factor) == (
        None if share is None else pytest.approx(share)
    )


@table(
    "ratio factors share",
    [
        (4.0, (2.0, 2.0), 0.0),
        (4.0, (2.0,), 0.5),
        (4.0, (2.0, None), 0.5),
        (4.0, (), 1.0),
        (4.0, (0.5,), 1.0),
        (1.004, (2.0,), None),
        (None, (2.0,), None),
        (0.0, (2.0,), 1.0),
        (0.0, (), 1.0),
    ],
)
def test_what_all_factors_together_leave_of_a_gap(ratio, factors, share):
    left = compute_unexplained_gap_share(ratio, [Cause("x", factor) for factor in factors])
    assert left == (None if share is None else pytest.approx(share))


def test_a_lower_bound_below_the_estimate_is_no_gap():
    lower = case(32, counted=32_000)
    figure = replace(lower.row.executed, missing=("tensor",))
    assert get_ratio_unless_lower_bound(lower) == 0.5
    assert (
        get_ratio_unless_lower_bound(replace(lower, row=replace(lower.row, executed=figure)))
        is None
    )


@table(
    "write texts",
    [
        (
            format_ratio,
            {0.44444: "0.444", 1.0156: "1.016", 1.9994: "1.999", 2: "2.00", 3.5556: "3.56"},
        ),
        (
            format_share,
            {
                0: "0.0%",
                0.0004: "< 0.1%",
                0.0156: "1.6%",
                0.9999: "> 99.9%",
                1: "100.0%",
                2: "200.0%",
            },
        ),
        (
            format_with_si_prefix,
            {
                0: "0 ",
                999: "999 ",
                1000: "1 k",
                -1500: "-1.5 k",
                1_358_954_496: "1.36 G",
                999e9: "999 G",
                2.5e15: "2.5 P",
            },
        ),
        (
            deviates_from_one,
            {1: False, 1.004: False, 1.006: True, 0.996: False, 0.994: True, 0: False, -2: False},
        ),
    ],
)
def test_how_causes_write_numbers_and_which_factors_deviate(write, texts):
    assert {number: write(number) for number in texts} == texts
