"""Launches, counters and operations that are missing from reports of rocprofv3, DLProf and torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.records.errors import ReportError
from perfctl.records.report import Report
from tests.make import kineto as trace


def warnings(report: Report) -> str:
    return " | ".join(said.text for said in report.diagnostics if said.severity == "warning")


SUMS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs"\n'


def test_a_header_that_stands_again_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    path.write_text(SUMS + SUMS + "a(),2,300,150,100.0,150,150\n")
    with pytest.raises(ReportError, match="the header appears twice"):
        parsers.parse(path)


V3 = (
    "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Kernel_Id,Kernel_Name,Counter_Name,"
    "Counter_Value\n"
)


def test_a_launch_of_rocprofv3_that_is_missing_or_lacks_a_counter_is_said(tmp_path: Path) -> None:
    rows = [
        f"{launch},{launch},Agent 1,1,7,5,mul,{name},1\n"
        for launch in range(1, 5)
        for name in ("SQ_WAVES", "SQ_BUSY")
    ]
    path = tmp_path / "a_counter_collection.csv"

    def said(*lines: str) -> str:
        path.write_text(V3 + "".join(lines))
        return warnings(parsers.parse(path))

    assert said(*rows) == ""
    assert "dispatch IDs 2 is missing" in said(*rows[:2], *rows[4:])
    assert "1 launches have fewer counters than the others (2), first launch 2" in said(
        *rows[:4], *rows[5:]
    )


def test_ops_of_dlprof_are_numbered_by_their_type(tmp_path: Path) -> None:
    head = (
        "All Iterations\nOp ID,Op Name,Direction,Op Type,No. Calls,Total CPU Time (ns),Avg. CPU "
        "Time (ns),Total GPU Time (ns)\n"
    )
    rows = [
        f'"CONV2D_{number}",a,{way},"conv2d",1,{number},{number}.0,1\n'
        for number in (1, 2, 3)
        for way in ("fprop", "bprop")
    ]
    path = tmp_path / "dlprof_detailed.csv"
    path.write_text(head + "".join(rows))
    assert warnings(parsers.parse(path)) == ""
    path.write_text(head + "".join(rows[:2] + rows[4:]))
    assert "ops of the type CONV2D with the numbers 2 is missing" in warnings(parsers.parse(path))


def test_a_launch_that_lacks_what_all_others_state_is_counted(tmp_path: Path) -> None:
    launches = [trace.kernel("gemm", 10 * at, 5, at, block=[64, 1, 1]) for at in range(20)]
    assert "kernel.block" not in str(trace.read(tmp_path, *launches).gaps)
    del launches[7]["args"]["block"]
    assert "1 of 20 launches state no block, which all others do" in str(
        trace.read(tmp_path, *launches).gaps
    )
    for one in launches:
        one["args"].pop("block", None)
    assert "kernel.block" not in str(trace.read(tmp_path, *launches).gaps), (
        "this profiler states none"
    )


def test_launch_calls_without_a_kernel_are_counted(tmp_path: Path) -> None:
    calls = [trace.launch(10 * number, number) for number in (1, 2, 3)]
    kernels = [trace.kernel("gemm", 10 * number + 2, 5, correlation=number) for number in (1, 2, 3)]
    whole, less = (trace.read(tmp_path, *calls, *some) for some in (kernels, kernels[1:]))
    assert not [gap for gap in whole.gaps if "launch calls" in gap.reason]
    (said,) = [gap.reason for gap in less.gaps if "launch calls" in gap.reason]
    assert said.startswith("1 of 3 launch calls have no kernel in the trace")


def test_few_kernels_without_their_launch_call_are_counted_but_not_where_most_have_none(
    tmp_path: Path,
) -> None:
    calls = [trace.launch(10 * number, number) for number in range(1, 21)]
    kernels = [
        trace.kernel("gemm", 10 * number + 2, 5, correlation=number) for number in range(1, 21)
    ]
    whole, less, none = (
        trace.read(tmp_path, *some, *kernels) for some in (calls, calls[1:], calls[:2])
    )
    assert "kernel.call" not in str(whole.gaps) + str(none.gaps)
    (said,) = [gap.reason for gap in less.gaps if gap.quantity == "kernel.call"]
    assert said.startswith("the launch calls of 1 of 20 kernels are not in the trace")


def test_a_call_without_the_correlation_that_all_others_have_is_counted(tmp_path: Path) -> None:
    calls = [trace.launch(10 * at, at) for at in range(20)]
    said = "1 of 20 calls of the runtime state no correlation, which all others do"
    assert said not in str(trace.read(tmp_path, *calls).gaps)
    del calls[7]["args"]["correlation"]
    assert said in str(trace.read(tmp_path, *calls).gaps)
    for one in calls:
        one["args"].pop("correlation", None)
    assert "correlation, which" not in str(trace.read(tmp_path, *calls).gaps), (
        "this profiler states none"
    )
