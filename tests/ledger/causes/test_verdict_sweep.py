"""Rules about a whole sweep, word for word: times that stay, algorithms that change, hand values
that came along."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from perfctl.orchestrator.counts.hardware.peaks import peaks_of
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.causes.study_rules import (
    algorithm_switches,
    hand_estimates,
    times_flat,
)
from perfctl.orchestrator.ledger.causes.window_rules import Window
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import Study, studies
from perfctl.orchestrator.ledger.timing import spread
from perfctl.orchestrator.report.ledger.causes import FIXES, describe_cause, describe_fix
from perfctl.records.report import Summary
from tests.make.rows import by_place, case, work
from tests.make.shapes import op

WINDOW = Window(frozenset(), 1000, {}, ())
HOST_FIX = FIXES["time does not follow"]
EMPTY = Ledger((), ())


def study(synthetic: ModuleType, name: str, values: dict[int, float | None]) -> Study:
    runs = [
        synthetic.make_run(number, batch_size=batch, summaries=(Summary(name, value, "ns"),))
        for number, (batch, value) in enumerate(values.items(), 1)
    ]
    (found,) = studies(runs)
    return found


HOST = "host_time:fc:forward"


def test_times_of_the_hosts_clock_that_stay_are_told_with_the_rates_they_would_mean(
    synthetic: ModuleType,
) -> None:
    rows = Ledger(tuple(case(batch).row for batch in (16, 64)), ())
    found = study(synthetic, HOST, {16: 2_000_000, 64: 2_400_000})
    (said,) = times_flat(found, rows, None)
    # 32,000 FLOP in 2 ms, 128,000 in 2.4 ms
    assert describe_cause(said) == (
        "The times of fc forward do not change with the batch size: 2, 2.4 ms at batch 16 to 64, "
        "although the work grows 4-fold. The CPU timer measured the asynchronous launch, not the "
        "kernel. If these were kernel times, batch 16 would run at 16 MFLOP/s and batch 64 at "
        "53.3 MFLOP/s."
    )
    assert (said.rule, describe_fix(said), said.factor, said.kernels) == (
        "time does not follow",
        HOST_FIX,
        None,
        (),
    )
    (either,) = times_flat(found, EMPTY, WINDOW)
    assert describe_cause(either) == (
        "The times of fc forward do not change with the batch size either: 2, 2.4 ms at batch 16 "
        "to 64, although the work grows 4-fold. The CPU timer measured the asynchronous launch, "
        "not the kernel."
    )


@pytest.mark.parametrize(
    ("name", "values", "told"),
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
def test_times_stay_within_a_fifth_while_the_work_grows_by_half(
    name: str, values: dict[int, float | None], told: bool, synthetic: ModuleType
) -> None:
    assert bool(times_flat(study(synthetic, name, values), EMPTY, None)) is told


def timed(batch: int, nanoseconds: float | None, layer: str = "fc", **more: Any) -> Any:
    return replace(
        case(batch, layer=layer, **more).row,
        time=None if nanoseconds is None else spread([nanoseconds]),
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            (
                timed(16, 1_500_000),
                timed(16, 500_000, "b"),
                timed(64, 2_100_000),
                timed(64, None, "b"),
                timed(64, 9e9, "c", calls=()),
            ),
            "take 2 ms at batch 16 and 2.1 ms at batch 64, although the estimated work grows 2-fold.",
        ),
        (
            (timed(64, 2_400_000), timed(16, 2_000_000)),
            "take 2 ms at batch 16 and 2.4 ms at batch 64, although the estimated work grows 4-fold.",
        ),
        ((timed(64, 2_400_001), timed(16, 2_000_000)), None),
        ((timed(16, 2_000_000),), None),
        ((), None),
    ],
)
def test_kernel_times_are_looked_at_only_where_the_counts_stay_too(
    rows: tuple[Any, ...], said: str | None, synthetic: ModuleType
) -> None:
    nothing = study(synthetic, "else", {16: 1, 64: 1})
    found = times_flat(nothing, Ledger(rows, ()), WINDOW)
    assert times_flat(nothing, Ledger(rows, ()), None) == []
    assert [describe_cause(item) for item in found] == (
        [f"The times do not change with the batch size either: the layers' kernels {said}"]
        if said
        else []
    )
    assert all(
        describe_fix(item) == FIXES["wrong window"].replace("[!ours?", "").replace("]", "")
        for item in found
    )


IMPLICIT = Algorithm("conv", "implicit gemm")
WINOGRAD = Algorithm("winograd", "winograd F(2x2,3x3)", winograd=(2, 3))
VOLTA = "volta_scudnn_128x64_relu_small_nn_v1"
VOLTA_WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
TILES = "cudnn::winograd::generateWinogradTilesKernel"


def kernel(name: str = VOLTA, algorithm: Algorithm = IMPLICIT) -> KernelGroup:
    return work(name, algorithm, ffma=5)


def conv(batch: int, *works: KernelGroup, **more: Any) -> RowEvidence:
    return case(batch, *works, layer="conv2", kind="Conv2d", **more)


def test_a_switch_says_where_from_what_to_what_and_what_it_does_to_a_sample() -> None:
    wino = (
        kernel(VOLTA_WINOGRAD, WINOGRAD),
        work(TILES, Algorithm("winograd", role="transform"), fadd=5),
    )
    rows = (
        conv(64, *wino, counted=64 * 900),
        conv(16, kernel(), counted=16 * 2000),
        conv(32, kernel(), counted=32 * 2000),
    )
    (said,) = algorithm_switches(by_place(*rows))
    assert describe_cause(said) == (
        "conv2 forward changes its algorithm at batch 64: winograd F(2x2,3x3) instead "
        "of implicit gemm (up to batch 32); FLOPs per sample change from 2 kFLOP to 900 FLOP."
    )
    assert (said.rule, said.factor, said.kernels) == ("algorithm switch", None, (VOLTA_WINOGRAD,))
    (same,) = algorithm_switches(by_place(rows[2], conv(64, *wino, counted=64 * 2000)))
    assert describe_cause(same).endswith(
        "implicit gemm (up to batch 32); FLOPs per sample stay at 2 kFLOP."
    )
    assert describe_fix(same) == "Compare times on both sides of the change per sample.", (
        "these counts do not differ"
    )
    (uncounted,) = algorithm_switches(by_place(conv(16, kernel()), conv(64, *wino, counted=5)))
    assert describe_cause(uncounted).endswith(
        "winograd F(2x2,3x3) instead of implicit gemm (up to batch 16)."
    )
    assert algorithm_switches(by_place(conv(16, kernel()), conv(64, kernel("my_kernel")))) == [], (
        "a name that says nothing"
    )
    assert algorithm_switches(by_place(conv(16, kernel()), conv(64, kernel()))) == []
    packed = kernel("conv2d_c1_k1_nchw_hw_packed_kernel<float, float, 3>", Algorithm("depthwise"))
    (direct,) = algorithm_switches(by_place(conv(16, kernel()), conv(64, packed)))
    assert "at batch 64: direct convolution instead of" in describe_cause(direct), (
        "it serves other layers, too"
    )
    there_and_back = algorithm_switches(
        by_place(conv(16, kernel()), conv(32, *wino), conv(64, kernel()))
    )
    assert [describe_cause(item).split(":")[0] for item in there_and_back] == [
        f"conv2 forward changes its algorithm at batch {batch}" for batch in (32, 64)
    ]


FC = op("aten.addmm", ((10,), (64, 100), (100, 10)), ((64, 10),), layer="fc")


def estimated(synthetic: ModuleType, *items: tuple[str, float | None]) -> list[Any]:
    run = synthetic.make_run(
        workload="my_net",
        ops=(FC,),
        summaries=tuple(Summary(name, value, "MAC") for name, value in items),
    )
    (found,) = studies([run])
    return hand_estimates(found)


def test_a_hand_value_is_explained_by_its_slips_with_the_command_that_checks_it(
    synthetic: ModuleType,
) -> None:
    (said,) = estimated(synthetic, ("hand_estimate:fc:multiply-adds", 1000.0))
    assert describe_cause(said) == (
        "The manual estimate of fc (multiply-adds, batch 64) is wrong. 1,000 could come from batch of 64 "
        "left out (1,000 MAC), or from weights, not operations (1,000 values). Correct: 64,000 MAC = "
        "128,000 FLOP (forward)."
    )
    assert describe_fix(said) == "perfctl estimate my_net --batch 64 --layer fc --check 1000"
    assert (said.rule, said.factor, said.explained) == ("hand estimate", None, None)
    (values,) = estimated(synthetic, ("hand_estimate:fc", 1000 + 64 * 10))
    assert describe_cause(values) == (
        "The manual estimate of fc (operations, batch 64) is wrong. 1,640 could come from weights and "
        "output values, not operations (1,640 values). Correct: 64,000 MAC = 128,000 FLOP "
        "(forward)."
    )


def test_hand_values_of_a_layer_are_one_verdict_with_each_once(synthetic: ModuleType) -> None:
    twice = ("hand_estimate:fc:a", 1000.0)
    (said,) = estimated(
        synthetic,
        twice,
        twice,
        ("hand_estimate:fc:right", 64_000.0),
        ("hand_estimate:fc:none", None),
        ("hand_estimate:zz:x", 5.0),
        ("estimate:fc:b", 1000.0),
        ("hand_estimate:fc:b", 4 * 64_000.0),
    )
    assert describe_cause(said).startswith(
        "The manual estimate of fc (a, batch 64) is wrong. 1,000 could come from "
    )
    assert describe_cause(said).count("1,000 could come from") == 1
    assert f" Its b: {4 * 64_000:,} could come from" in describe_cause(said)
    assert describe_cause(said).endswith(f" Its right: {64_000:,} MAC is correct.")
    assert "zz" not in describe_cause(said) and "none" not in describe_cause(said)


def test_hand_values_that_are_all_right_are_no_verdict(synthetic: ModuleType) -> None:
    assert estimated(synthetic, ("hand_estimate:fc:multiply-adds", 64_000.0)) == []


def test_a_hand_value_in_bytes_or_values_is_held_against_sizes_not_operations(
    synthetic: ModuleType,
) -> None:
    """fc has 1,000 weights and 10 biases, and 64 x 10 outputs: 4 B each."""
    run = synthetic.make_run(
        workload="my_net",
        ops=(FC,),
        summaries=(
            Summary("hand_estimate:fc:weights", 4 * 1000, "B"),
            Summary("hand_estimate:fc:all", 1000 + 64 * 10, "values"),
        ),
    )
    (found,) = studies([run])
    (said,) = hand_estimates(found)
    assert describe_cause(said).startswith(
        "The manual estimate of fc (all, batch 64) is wrong. 1,640 values could come from bias left out "
        "(1,640 "
    )
    assert describe_cause(said).endswith(" Its weights: 4,000 B is correct.")


@pytest.mark.parametrize(("grown", "confidence"), [(0.9, "plausible"), (1.1, "observed")])
def test_only_a_rate_over_the_devices_peak_proves_that_the_clock_saw_the_launch(
    grown: float, confidence: str, synthetic: ModuleType
) -> None:
    """64 samples of 2,000 FLOP: what a time means, as a share of the largest peak of a V100."""
    most = max(peaks_of(synthetic.V100).flops.values())
    nanoseconds = 64 * 2000 / (grown * most) * 1e9
    runs = [
        synthetic.make_run(
            number,
            batch_size=batch,
            device=synthetic.V100,
            summaries=(Summary(HOST, nanoseconds, "ns"),),
        )
        for number, batch in enumerate((16, 64), 1)
    ]
    (found,) = studies(runs)
    (said,) = times_flat(found, Ledger(tuple(case(batch).row for batch in (16, 64)), ()), None)
    assert said.confidence == confidence
    assert ("The device's peak is" in describe_cause(said)) is (confidence == "observed")
