"""Rules about a complete sweep, word for word: times that stay, algorithms that change, manual
estimates that came with the reports."""

from dataclasses import replace

from perfctl.orchestrator.counts.hardware.peaks import find_peaks
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.study_rules import (
    list_algorithm_switches,
    list_constant_time_causes,
    list_wrong_hand_estimates,
)
from perfctl.orchestrator.ledger.causes.window_rules import ConstantWindow
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.ledger.timing import compute_time_spread
from perfctl.orchestrator.report.ledger.causes import FIXES, describe_cause, describe_fix
from perfctl.records.report import Summary
from tests.make import synthetic
from tests.make.rows import by_place, case, work
from tests.make.shapes import op
from tests.make.tables import table

WINDOW = ConstantWindow(frozenset(), 1000, {}, ())
EMPTY = Ledger((), ())
ESTIMATED = Ledger(tuple(case(batch).row for batch in (16, 64)), ())
HOST = "host_time:fc:forward"


def study(values, name=HOST, **more):
    """A run per batch size, each with a time."""
    runs = [
        synthetic.make_run(
            number, batch_size=batch, summaries=(Summary(name, value, "ns"),), **more
        )
        for number, (batch, value) in enumerate(values.items(), 1)
    ]
    (result,) = group_into_studies(runs)
    return result


STAY = (
    "{} with the batch size{}: 2.00 ms to 2.40 ms at batch 16 to 64, although the work grows 4-fold. "
    "The CPU timer may have measured the asynchronous launch, not the kernel."
)


@table(
    "entries window either rates",
    [
        # 32,000 FLOP in 2 ms, 128,000 in 2.4 ms
        (
            ESTIMATED,
            None,
            "",
            " If these were kernel times, batch 16 would run at 16 MFLOP/s and batch 64 at 53.3 "
            "MFLOP/s.",
        ),
        (EMPTY, WINDOW, " either", ""),
    ],
)
def test_times_of_the_cpu_timer_that_stay_are_named_with_the_rates_they_would_mean(
    entries, window, either, rates
):
    (cause,) = list_constant_time_causes(study({16: 2_000_000, 64: 2_400_000}), entries, window)
    sentence = STAY.format("The times of fc forward do not change", either)
    assert describe_cause(cause) == sentence + rates
    assert describe_fix(cause) == FIXES["time does not follow"]
    assert (cause.factor, cause.kernels) == (None, ())


@table(
    "name values stays",
    [
        (HOST, {16: 100, 64: 120}, True),
        (HOST, {16: 120, 64: 100}, True),
        (HOST, {16: 100, 64: 121}, False),
        (HOST, {2: 100, 3: 100}, True),
        (HOST, {5: 100, 7: 100}, False),
        (HOST, {64: 100}, False),
        (HOST, {16: 0, 64: 0}, False),
        (HOST, {16: 100, 64: None}, False),
        ("time:fc:forward", {16: 100, 64: 100}, False),
    ],
)
def test_times_stay_within_a_fifth_while_the_work_grows_by_half(name, values, stays):
    assert bool(list_constant_time_causes(study(values, name), EMPTY, None)) is stays


@table("share is_proven", [(0.9, False), (1.1, True)])
def test_only_a_rate_over_the_devices_peak_proves_that_the_timer_measured_the_launch(
    share, is_proven
):
    """64 samples of 2,000 FLOP: what a time means, as a share of the largest peak of a V100."""
    time = 64 * 2000 / (share * max(find_peaks(synthetic.V100).flops.values())) * 1e9
    timed = study({16: time, 64: time}, device=synthetic.V100)
    (cause,) = list_constant_time_causes(timed, ESTIMATED, None)
    assert cause.confidence == ("observed" if is_proven else "plausible")
    assert ("The device's peak is" in describe_cause(cause)) is is_proven


def timed(batch, nanoseconds, layer="fc", **more):
    time = None if nanoseconds is None else compute_time_spread([nanoseconds])
    return replace(case(batch, layer=layer, **more).row, time=time)


@table(
    "rows times",
    [
        (
            (
                timed(16, 1_500_000),
                timed(16, 500_000, "b"),
                timed(64, 2_100_000),
                timed(64, None, "b"),
                timed(64, 9e9, "c", calls=()),
            ),
            "2.00 ms at batch 16 and 2.10 ms at batch 64, although the estimated work grows 2-fold.",
        ),
        (
            (timed(64, 2_400_000), timed(16, 2_000_000)),
            "2.00 ms at batch 16 and 2.40 ms at batch 64, although the estimated work grows 4-fold.",
        ),
        ((timed(64, 2_400_001), timed(16, 2_000_000)), None),
        ((timed(16, 2_000_000),), None),
        ((), None),
    ],
)
def test_kernel_times_stay_only_if_the_counts_stay_too(rows, times):
    untimed, entries = study({16: 1, 64: 1}, "else"), Ledger(rows, ())
    assert list_constant_time_causes(untimed, entries, None) == []
    causes = list_constant_time_causes(untimed, entries, WINDOW)
    start = "The times do not change with the batch size either: the layers' kernels take "
    assert [describe_cause(cause) for cause in causes] == ([start + times] if times else [])
    fix = FIXES["wrong window"].replace("[!ours?", "").replace("]", "")
    assert all(describe_fix(cause) == fix for cause in causes)


DIRECT = Algorithm("conv", "implicit gemm")
VOLTA = "volta_scudnn_128x64_relu_small_nn_v1"
VOLTA_WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
PACKED = "conv2d_c1_k1_nchw_hw_packed_kernel<float, float, 3>"
PLAIN = (work(VOLTA, DIRECT, ffma=5),)
WINOGRAD = (
    work(VOLTA_WINOGRAD, Algorithm("winograd", "winograd F(2x2,3x3)", winograd=(2, 3)), ffma=5),
    work(
        "cudnn::winograd::generateWinogradTilesKernel",
        Algorithm("winograd", role="transform"),
        fadd=5,
    ),
)


def conv(batch, kernels, flops=None):
    counted = None if flops is None else batch * flops
    return case(batch, *kernels, layer="conv2", kind="Conv2d", counted=counted)


TO_WINOGRAD = "64: Winograd F(2x2,3x3) instead of implicit GEMM (up to batch 32)"


@table(
    "rows switches",
    [
        (
            (conv(64, WINOGRAD, 900), conv(16, PLAIN, 2000), conv(32, PLAIN, 2000)),
            [f"{TO_WINOGRAD}; FLOPs per sample change from 2 kFLOP to 900 FLOP."],
        ),
        (
            (conv(32, PLAIN, 2000), conv(64, WINOGRAD, 2000)),
            [f"{TO_WINOGRAD}; FLOPs per sample stay at 2 kFLOP."],
        ),
        ((conv(32, PLAIN), conv(64, WINOGRAD, 5)), [f"{TO_WINOGRAD}."]),
        ((conv(16, PLAIN), conv(64, (work("my_kernel", DIRECT, ffma=5),))), []),
        ((conv(16, PLAIN), conv(64, PLAIN)), []),
        # it serves other layers, too
        (
            (conv(32, PLAIN), conv(64, (work(PACKED, Algorithm("depthwise"), ffma=5),))),
            ["64: direct convolution instead of implicit GEMM (up to batch 32)."],
        ),
        (
            (conv(32, PLAIN), conv(64, WINOGRAD), conv(128, PLAIN)),
            [
                f"{TO_WINOGRAD}.",
                "128: implicit GEMM instead of Winograd F(2x2,3x3) (up to batch 64).",
            ],
        ),
    ],
)
def test_a_switch_says_where_from_what_to_what_and_what_it_does_to_a_sample(rows, switches):
    causes = list_algorithm_switches(by_place(*rows))
    start = "conv2 forward changes its algorithm at batch "
    assert [describe_cause(cause) for cause in causes] == [start + text for text in switches]
    is_same = any("stay at" in text for text in switches)
    fix = "Compare times on both sides of the change per sample."
    assert [describe_fix(cause) == fix for cause in causes] == [is_same for _ in causes]


FC = op("aten.addmm", ((10,), (64, 100), (100, 10)), ((64, 10),), layer="fc")
"""1,000 weights and 10 biases, and 64 x 10 outputs: 64,000 multiply-adds."""
CORRECT = "Correct: 64,000 MAC = 128,000 FLOP (forward)."


@table(
    "values start end",
    [
        (
            [("fc:multiply-adds", 1000, "MAC")],
            "(multiply-adds, batch 64) is wrong. 1,000 MAC could come from batch of 64 left out "
            "(1,000 MAC), or from weights, not operations (1,000 values).",
            CORRECT,
        ),
        (
            [("fc", 1000 + 64 * 10, "MAC")],
            "(operations, batch 64) is wrong. 1,640 MAC could come from weights and output values, "
            "not operations (1,640 values).",
            CORRECT,
        ),
        (
            [
                *[("fc:a", 1000, "MAC")] * 2,
                ("fc:right", 64_000, "MAC"),
                ("fc:none", None, "MAC"),
                ("zz:x", 5, "MAC"),
                ("fc:b", 4 * 64_000, "MAC"),
            ],
            "(a, batch 64) is wrong. 1,000 MAC could come from batch of 64 left out (1,000 MAC), "
            f"or from weights, not operations (1,000 values). {CORRECT} Its b: {4 * 64_000:,} MAC ",
            " Its right: 64,000 MAC is correct.",
        ),
        (
            [("fc:weights", 4 * 1000, "B"), ("fc:all", 1000 + 64 * 10, "values")],
            "(all, batch 64) is wrong. 1,640 values could come from bias left out (1,640 ",
            " Its weights: 4,000 B is correct.",
        ),
        ([("fc:multiply-adds", 64_000, "MAC")], None, ""),
        # without a unit, the multiply-adds are right; in FLOP, they are half
        ([("fc", 64_000, None)], None, ""),
        (
            [("fc", 64_000, "FLOP")],
            "(operations, batch 64) is wrong. 64,000 FLOP could come from multiply-adds instead of "
            "FLOPs (64,000 MAC).",
            CORRECT,
        ),
    ],
)
def test_a_manual_estimate_is_explained_by_its_mistakes_once_per_layer(values, start, end):
    summaries = [Summary(f"hand_estimate:{name}", value, unit) for name, value, unit in values]
    summaries.append(Summary("estimate:fc:b", 1000.0, "MAC"))
    run = synthetic.make_run(workload="my_net", ops=(FC,), summaries=tuple(summaries))
    (only,) = group_into_studies([run])
    causes = list_wrong_hand_estimates(only)
    assert len(causes) == (start is not None)
    for cause in causes:
        assert describe_cause(cause).startswith(f"The manual estimate of fc {start}")
        assert describe_cause(cause).endswith(end)
        check = "perfctl estimate my_net --batch 64 --layer fc --check "
        assert describe_fix(cause).startswith(check)
        assert (cause.factor, cause.explained) == (None, None)
