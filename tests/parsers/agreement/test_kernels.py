"""What reports of rocprofv3, DLProf and torch say twice of launches and operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.records.errors import ReportError
from perfctl.records.report import Report
from tests.parsers import kineto_trace as trace


def warnings(report: Report) -> str:
    return " | ".join(said.text for said in report.diagnostics if said.severity == "warning")


LASTS = 10**9
LARGE, SMALL = 100 * LASTS / (LASTS + 3), 100 * 3 / (LASTS + 3)
"""Percentages of a long and a very short time, with all digits of a float."""
SUMS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs"\n'


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a(),2,300,150,75.0", "b(),4,100,25,25.0"], ""),
        (
            ["a(),3,300,150,75.0", "b(),4,100,25,25.0"],
            "a(): 3 calls of 150.0 ns each, but 300.0 ns in all",
        ),
        (["a(),4,303,75,75.0", "b(),1,101,101,25.0"], ""),
        (
            ["a(),4,300,75,75.0", "b(),1,100,101,25.0"],
            "b(): 1 calls of 101.0 ns each, but 100.0 ns in all",
        ),
        (["a(),2,300,33161e4004184678,75.0", "b(),4,100,25,25.0"], "a(): AverageNs is no number"),
        (["a(),2,300,15\x140,75.0", "b(),4,100,25,25.0"], "a(): AverageNs is no number"),
        (["a(),2,300,,75.0", "b(),4,100,25,25.0"], "a(): AverageNs is no number"),
        (["a(),2,300,150,75.0"], "percentages add up to 75: rows are missing"),
        (
            ["a(),2,300,150,75.0", "b(),4,100,25,25.0", "b(),4,100,25,25.0"],
            "b(): the row stands 2 times",
        ),
        ([f"a(),1,{LASTS},{LASTS},{LARGE!r}", f"b(),1,3,3,{SMALL!r}"], ""),
        ([f"a(),1,{LASTS},{LASTS},{LARGE!r}"], "the percentages add up to 99.999999"),
        (
            [f"a(),1,{LASTS + 90},{LASTS},{LARGE!r}", f"b(),1,3,3,{SMALL!r}"],
            "percentages are not those of the times",
        ),
        (
            ["a(),2,300,150,75.0", "b(),4,100,25,2<.0"],
            "1 of 2 percentages are no numbers, as '2<.0'",
        ),
        (["a(),2,300,150,75.0", "b(),4,100,25,-25.0"], "the percentages add up to 50"),
        (["a(),2,300,150,75.0", "b(),4,100,25,0e999999"], "the percentages add up to 75"),
    ],
)
def test_sums_of_rocprofv3_agree(tmp_path: Path, rows: list[str], said: str) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    means = [int(total) / int(calls) for _, calls, total, *_ in (row.split(",") for row in rows)]
    path.write_text(
        SUMS + "".join(f"{row},{mean},{mean}\n" for row, mean in zip(rows, means, strict=True))
    )
    found = warnings(parsers.parse(path))
    assert said in found if said else found == ""


def test_a_header_that_stands_again_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    path.write_text(SUMS + SUMS + "a(),2,300,150,100.0,150,150\n")
    with pytest.raises(ReportError, match="the header appears twice"):
        parsers.parse(path)


V3 = (
    "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Kernel_Id,Kernel_Name,Counter_Name,"
    "Counter_Value\n"
)


def test_launches_of_rocprofv3_have_the_same_counters_and_one_name_a_number(tmp_path: Path) -> None:
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
    assert "launch 2 has 1 values of counters, the others 2" in said(*rows[:4], *rows[5:])
    assert "kernel 5 is called mul, and mal" in said(
        rows[0], rows[1], rows[2].replace("mul", "mal"), *rows[3:]
    )


SUMMARY = """System Config
GPU Count,1
GPU Name(s),A GPU
DLProf Version,v1.8.0

Summary Report
Wall Clock Time (ns),100
GPU Utilization %,1.0
Tensor Core Kernel Duration %,10.0
Non-Tensor Core Kernel Duration %,30.0
Memory Duration %,20.0
Dataloader Duration %,5.0
IO Duration %,5.0
CPU Duration %,20.0
Other Duration %,10.0

Iterations
Total Iterations,9
Aggregated Iterations,3
Start Iteration,2
Stop Iteration,4
Average Iteration Time (ns),33.3
Iteration Time Standard Deviation,1.0

All Ops
,GPU Time (ns),CPU Time (ns),# Ops
All ops,60,600,6
Ops using TC,10,100,1
Ops eligible for TC but not using,20,200,2
All other ops,30,300,3

All Kernels
,GPU Time (ns),CPU Time (ns),# Kernels
All kernels,60,600,6
Kernels using TC,10,100,1
Memory,20,200,2
All other kernels,30,300,3
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("Time (ns),100", "Time (ns),200", "3 iterations of 33.3 ns each, but 200 ns in all"),
        ("Name(s),A GPU", "Name(s),A GPU, A GPU", "1 GPUs, but 2 names of GPUs"),
        ("IO Duration %,5.0", "IO Duration %,5.0x", "the line 'io duration %' states no number"),
        (
            "Total Iterations,9",
            "Total Iterations,1e400",
            "the line 'total iterations' states no number",
        ),
        (
            "IO Duration %,5.0",
            "IO Duration %,-5.0",
            "the line 'io duration %' states -5, less than 0",
        ),
        ("Other Duration %", "Othez Duration %", "the line 'other duration %' is missing"),
        (SUMMARY[SUMMARY.index("All Ops") :], "", "the line 'all ops' is missing, and 1 more"),
        (SUMMARY[SUMMARY.index("Tensor Core") :], "", "the line 'total iterations' is missing"),
        (SUMMARY[SUMMARY.index("Wall Clock") :], "", "the line 'wall clock time (ns)' is missing"),
        (
            (
                "Ops using TC,10,100,1\nOps eligible for TC but not using,20,200,2\n"
                "All other ops,30,300,3\n"
            ),
            "",
            "'ops using tc' is missing, and 2 more",
        ),
        (
            "Memory,20",
            "Memory,26",
            f"All kernels: GPU Time (ns) is 60, its parts add up to {10 + 26 + 30}",
        ),
        (
            "Memory,20,200",
            "Memory,20,2x00",
            "All kernels: CPU Time (ns) is no number in every line",
        ),
        (
            SUMMARY[SUMMARY.index("Summary Report") : SUMMARY.index("Ops using TC")],
            "",
            "the line 'wall clock time (ns)' is missing",
        ),
        ("Memory,20,200,2\n", "", "its parts add up to"),
        ("Stop Iteration,4", "Stop Iteration,5", "3 aggregated iterations, but from 2 to 5"),
        (
            "Total Iterations,9",
            "Total Iterations,9\nTotal Iterations,9",
            "the line 'total iterations' stands 2 times",
        ),
        ("GPU Count,1\n", "", "the line 'gpu count' is missing"),
    ],
)
def test_a_summary_of_dlprof_adds_up(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "dlprof_summary.csv"
    path.write_text(SUMMARY.replace(old, new, 1) if old else SUMMARY)
    found = warnings(parsers.parse(path))
    assert said in found if said else found == ""


SHORT = """System Config
GPU Count,1
GPU Name(s),A GPU
CPU Model,A CPU

Summary Report
Wall Clock Time (ns),60000
Tensor Core Kernel Utilization %,22.5
GPU Utilization %,9.1

Iterations
Total Iterations,3
"""
"""In the form of DLProf 1.7, synthetic."""


@pytest.mark.parametrize(
    ("stated", "damaged", "line"),
    [
        ("60000\n", "60nan0\n", "wall clock time (ns)"),
        ("60000\n", "60000Tensor Core Kernel Utilization %,22.5\n", "wall clock time (ns)"),
        ("9.1", "9e1e5", "gpu utilization %"),
        ("Count,1", "Count,", "gpu count"),
    ],
)
def test_a_short_summary_of_dlprof_says_which_line_states_no_number(
    tmp_path: Path, stated: str, damaged: str, line: str
) -> None:
    path = tmp_path / "dlprof_summary.csv"
    path.write_text(SHORT)
    assert warnings(parsers.parse(path)) == ""
    path.write_text(SHORT.replace(stated, damaged, 1))
    assert f"the line '{line}' states no number" in warnings(parsers.parse(path))


def test_totals_of_dlprof_are_multiples_of_their_means(tmp_path: Path) -> None:
    head = (
        "Op Type Summary Report\nOp Type,# Ops,# Calls,Total CPU Time (ns),Avg. CPU Time "
        "(ns),Total GPU Time (ns)\n"
    )
    path = tmp_path / "dlprof_op_type.csv"
    path.write_text(f"{head}conv,1,3,9000,3000.0,1\n")
    assert warnings(parsers.parse(path)) == ""
    path.write_text(f"{head}conv,1,3,9900,3000.0,1\n")
    assert "9,900 in all, which is no multiple of the mean 3,000.0" in warnings(parsers.parse(path))
    path.write_text(f"{head}conv,1,3,1e400,3000.0,1\n")
    assert "inf in all, which is no multiple of the mean 3,000.0" in warnings(parsers.parse(path))


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


def test_kernels_of_tensor_cores_and_others_are_all_kernels(tmp_path: Path) -> None:
    times, counts = (
        "Total GPU Time (ns),TC GPU Time (ns),Non-TC GPU Time (ns)",
        "Total Kernel Count,TC Kernel Count,Non-TC Kernel Count",
    )
    head = (
        f"Tensor Core Report\nOp ID,Op Name,Direction,Op Type,Uses TC,{times},TC Utilization "
        f"(%),{counts}\n"
    )
    path = tmp_path / "dlprof_tensor_core.csv"
    path.write_text(f'{head}"CONV2D_1",a,fprop,conv2d,yes,50,30,20,60.0,3,1,2\n')
    assert warnings(parsers.parse(path)) == ""
    path.write_text(f'{head}"CONV2D_1",a,fprop,conv2d,yes,50,30,20,60.0,4,1,2\n')
    assert "total kernel count is 4" in warnings(parsers.parse(path))


def operations(*numbers: int, **more: object) -> list[trace.Event]:
    found = [trace.operation("aten::mm", 10 * number, 5, number) for number in numbers]
    for number, event in zip(numbers, found, strict=True):
        event["args"]["Ev Idx"] = number - 1
    return found


def test_operations_that_are_missing_from_a_trace_are_counted(tmp_path: Path) -> None:
    assert warnings(trace.read(tmp_path, *operations(1, 2, 3, 4, 5))) == ""
    assert "2 operations or ranges are missing" in warnings(
        trace.read(tmp_path, *operations(1, 2, 5))
    )


def test_an_allocation_that_is_missing_from_a_trace_breaks_the_totals(tmp_path: Path) -> None:
    """The total after an allocation is the one before and its bytes, on each GPU."""
    changes = [512, 1024, -512, 2048, -1024, 4096] * 4
    totals = [sum(changes[: number + 1]) for number in range(len(changes))]
    events: list[trace.Event] = []
    for number, (change, total) in enumerate(zip(changes, totals, strict=True)):
        for device in (0, 1):
            args = {
                "Bytes": change,
                "Total Allocated": total,
                "Device Type": 1,
                "Device Id": device,
            }
            events.append(
                {
                    "ph": "i",
                    "name": "[memory]",
                    "pid": 1,
                    "tid": 1,
                    "ts": 10 * number + device,
                    "args": args,
                }
            )
    assert warnings(trace.read(tmp_path, *operations(1, 2), *events)) == ""
    one_less = [*events[:14], *events[15:]]
    assert "at 1 allocations the total is not" in warnings(
        trace.read(tmp_path, *operations(1, 2), *one_less)
    )
    for number, event in enumerate(events):
        event["args"]["Total Allocated"] = number * number
    assert warnings(trace.read(tmp_path, *operations(1, 2), *events)) == "", "another way to count"


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


def test_numbers_left_out_of_one_sequence_alone_are_usual(tmp_path: Path) -> None:
    events = operations(1, 2, 30)
    events[-1]["args"]["Ev Idx"] = 2
    assert warnings(trace.read(tmp_path, *events)) == ""


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


@pytest.mark.parametrize(
    ("least", "largest", "said"),
    [
        (100, 200, ""),
        (100, 210, "a(): 2 calls of 100 to 210 ns do not have the mean 150"),
        (-100, 200, "a(): a time is less than 0"),
        ("x", 200, "a(): MinNs is no number"),
    ],
)
def test_the_mean_of_two_calls_is_in_the_middle(
    tmp_path: Path, least: object, largest: int, said: str
) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    columns = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
    path.write_text(f'{columns}"a()",2,300,150.000000,100.00,{least},{largest},70.7\n')
    found = warnings(parsers.parse(path))
    assert said in found if said else found == ""


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
