"""Counts from other forms of a counter: rates, averages, doubled rates. They are estimates, and
whole or nothing."""

import pytest

from perfctl.orchestrator.counts.counters.work import compute_kernel_flops, group_counters_by_launch
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from tests.make.metrics import PIPE, ZEROS, ops
from tests.make.tables import table

RATES = {
    "smsp__cycles_elapsed.avg": 28419.6,
    **{name.replace(".sum", ".sum.per_cycle_elapsed"): 0 for name in ZEROS},
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": 1_000_000 / 28419.6,
}


def test_rates_times_average_elapsed_cycles_give_the_counts_back_as_an_estimate():
    found = compute_kernel_flops(RATES | {PIPE: 0}, "7.5")
    assert (found.fp32.value, found.fp32.state) == (1000 * 1000, "estimated")
    assert "rate x elapsed cycles" in (found.fp32.reason or "")
    assert (found.fp64.value, found.total.value, found.total.lower_bound) == (0, 1000 * 1000, False)


def test_elapsed_cycles_may_follow_from_frequency_and_duration():
    values = dict(RATES)
    cycles = values.pop("smsp__cycles_elapsed.avg")
    values |= {
        "smsp__cycles_elapsed.avg.per_second": cycles * 1e9 / 52576,
        "gpu__time_duration.sum": 52576,
    }
    assert compute_kernel_flops(values, "7.5").fp32.value == 1000 * 1000


@table("rate", [35.19, 0])
def test_rounded_rates_and_rates_of_nothing_but_zero_give_no_count(rate):
    values = RATES | {"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": rate}
    flops = compute_kernel_flops(values, "7.5")
    assert flops.fp32 == make_missing_figure(
        "not_collected",
        "fp32 counters (FADD, FMUL, FFMA) exist as rates only, which give no exact counts",
    )
    assert (flops.total.value, flops.total.reason) == (None, flops.fp32.reason)


def test_a_sum_that_was_collected_comes_before_its_rate():
    values = RATES | ZEROS | ops(fadd=1_000_001)
    assert compute_kernel_flops(values, "7.5").fp32 == Figure(1_000_001, "counted")


@table(
    "file additions",
    [
        ("armleth_mlp_report", 1000 * 1000),
    ],
)
def test_real_rates_give_the_size_of_the_problem(shared, file, additions):
    """One addition an element; the activation does one addition and ten multiply-adds
    an element."""
    pytest.importorskip("ncu_report")
    from perfctl import parsers

    report = parsers.parse(shared / f"reports/ncu/rep/{file}.ncu-rep")
    capability = report.devices[0].compute_capability
    first = compute_kernel_flops(group_counters_by_launch(report.counters)[0], capability).fp32
    assert (first.value, first.state) == (additions, "estimated")


def test_a_doubled_rate_of_a_roofline_section_is_halved_again():
    values = dict(RATES)
    rate = values.pop("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed")
    assert rate == 0
    values["derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2"] = 2 * 500 / 28419.6
    assert compute_kernel_flops(values | {PIPE: 0}, "7.5").fp32.value == 1_000_000 + 2 * 500
