"""Rows of DLProf's reports as records: numbers, names of ops and layers, sums, and what they
leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perfctl.parsers.common.numbers import read_integer
from perfctl.parsers.dlprof.records import (
    describe_tables,
    figure,
    find_gaps,
    make_report,
    place_op,
    table_summaries,
)
from perfctl.records.ranges import RangeName
from perfctl.records.report import Diagnostic, Gap, Kernel, Operation, Summary

LAUNCH = {
    "op name": "conv1:forward",
    "kernel name": "conv",
    "long kernel name": "void conv<float>(float*)",
    "iteration": "4",
    "direction": "bprop",
    "device id": "1",
    "grid x": "8",
    "grid y": "2",
    "grid z": "3",
    "block x": "128",
    "block y": "4",
    "block z": "5",
    "gpu start time (ns)": "5000",
    "gpu duration (ns)": "100.0",
}
OP = {
    "op name": "features.0",
    "op type": "linear",
    "no calls": "3",
    "total cpu time (ns)": "9000",
    "total gpu time (ns)": "300.0",
    "direction": "fwd",
}


def kernel_records(rows: Sequence[Mapping[str, str]]) -> list[Kernel]:
    return list(make_report(Path("r"), "CSV", {"iteration": rows}, (), (), ()).kernels)


def operations(rows: Sequence[Mapping[str, str]]) -> list[Operation]:
    return list(make_report(Path("r"), "CSV", {"detail": rows}, (), (), ()).operations)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        (" -7 ", -7),
        ("7.0", 7),
        ("7.5", None),
        ("", None),
        (None, None),
        ("N/A", None),
        ("nan", None),
        ("inf", None),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", 1 - 2**63),
        ("9223372036854775808", None),
        ("-9223372036854775808", None),
        ("1e3", 1000),
        ("1e19", None),
    ],
)
def test_a_whole_number_may_be_printed_with_a_point_and_fits_64_bits(
    text: str | None, number: int | None
) -> None:
    assert read_integer(text) == number


def test_a_figure_that_is_no_finite_number_stays_text() -> None:
    assert figure("f", "1.5", "%") == Summary("f", 1.5, "%")
    assert [figure("f", text, "%") for text in ("N/A", "inf", "nan")] == [
        Summary("f", None, "%", text) for text in ("N/A", "inf", "nan")
    ]


def test_a_launch_has_every_column_in_its_field() -> None:
    first = Kernel(
        launch=0,
        name="void conv<float>(float*)",
        short_name="conv",
        layer="conv1",
        direction="forward",
        step=4,
        layer_source="range",
        device_index=1,
        grid_x=8,
        grid_y=2,
        grid_z=3,
        block_x=128,
        block_y=4,
        block_z=5,
        start_ns=5000,
        duration_ns=100,
    )
    bare = {"op name": "x", "kernel name": "k", "iteration": "", "gpu start time (ns)": "7"}
    assert kernel_records([LAUNCH, bare, bare | {"kernel name": "", "direction": "fprop"}]) == [
        first,
        Kernel(1, "k", "k", start_ns=7),
        Kernel(2, "", direction="forward", start_ns=7),
    ]


@pytest.mark.parametrize(
    ("printed", "direction"),
    [
        ("fprop", "forward"),
        ("fwd", "forward"),
        ("bprop", "backward"),
        ("bwd", "backward"),
        ("update", None),
    ],
)
def test_directions_are_dlprof_s_words(printed: str, direction: str | None) -> None:
    (op,) = operations([OP | {"direction": printed}])
    assert op.direction == direction


def test_an_operation_without_a_count_is_none() -> None:
    found = operations([OP, OP | {"no calls": "many"}, OP | {"op type": "", "no calls": "0"}])
    one = Operation(
        name="features.0",
        category="linear",
        calls=3,
        cpu_ns=9000,
        self_cpu_ns=None,
        device_ns=300,
        memory_bytes=None,
        flops=None,
        layer="features.0",
        direction="forward",
    )
    assert found == [one, one._replace(category=None, calls=0)]


@pytest.mark.parametrize(
    ("name", "place", "source"),
    [
        ("conv2:backward", RangeName("conv2", "backward"), "range"),
        ("/perfctl:step:3/a:forward[2]/b:backward/conv", RangeName("b", "backward", 3), "range"),
        ("/a:forward/perfctl:step:3/perfctl:step:4/x", RangeName("a", "forward", 4), "range"),
        ("features.0", RangeName("features.0"), "operation"),
        ("features", RangeName(), None),
        ("perfctl:step:5", RangeName(step=5), None),
        ("net::__call__/relu", RangeName("net"), "operation"),
        ("net::_call_impl/Linear::_call_impl[3]/linear", RangeName("Linear_3"), "operation"),
        ("net::_call_impl/LazyLinear::_call_impl/Linear", RangeName("LazyLinear_1"), "operation"),
        ("net::_call_impl/LazyConv2d::_call_impl/relu", RangeName("net"), "operation"),
        (
            "net::_call_impl/BatchNorm2d::_call_impl/batch_norm",
            RangeName("BatchNorm2d_1"),
            "operation",
        ),
        (
            "/perfctl:step:2/net::_call_impl/B::_call_impl/C::_call_impl[2]/x",
            RangeName("B_1.C_2", None, 2),
            "operation",
        ),
        ("Conv2d::_call_impl/relu", RangeName("Conv2d"), "operation"),
        ("", RangeName(), None),
    ],
)
def test_an_op_s_name_gives_layer_direction_and_step(
    name: str, place: RangeName, source: str | None
) -> None:
    assert place_op(name) == (place, source)


def test_sums_are_kept_by_name_where_the_finer_report_is_absent() -> None:
    sums = {"total cpu time (ns)": "5", "total gpu time (ns)": "6"}
    tables = {
        "tensor_core": [
            {"op name": "a", "op id": "A_1", "tc utilization (%)": "50.0"},
            {"op name": "b", "op id": "", "tc utilization (%)": "N/A"},
        ],
        "op_type": [{"op type": "conv2d", "# calls": "3", **sums}],
        "group_op": [{"name": "all", "num calls aggregated": "4", "total gpu time (ns)": "6"}],
        "kernel": [
            {"kernel name": "k", "op name": "o", "op id": "O_1", "calls": "2", **sums},
            {"kernel name": "k", "op name": "o", "total cpu time (ns)": "7"},
        ],
    }
    cores = [
        Summary("TC Utilization: A_1", 50.0, "%"),
        Summary("TC Utilization: b", None, "%", "N/A"),
    ]
    types = [
        Summary("op_type: conv2d: Calls", 3.0, None),
        Summary("op_type: conv2d: CPU Time", 5.0, "ns"),
        Summary("op_type: conv2d: GPU Time", 6.0, "ns"),
        Summary("group_op: all: Calls", 4.0, None),
        Summary("group_op: all: GPU Time", 6.0, "ns"),
    ]
    by_kernel = [
        Summary("kernel: k in O_1: Calls", 2.0, None),
        Summary("kernel: k in O_1: CPU Time", 5.0, "ns"),
        Summary("kernel: k in O_1: GPU Time", 6.0, "ns"),
        Summary("kernel: k in o: CPU Time", 7.0, "ns"),
    ]
    assert table_summaries(tables) == cores + types + by_kernel
    assert table_summaries(tables | {"detail": []}) == cores + by_kernel
    assert table_summaries(tables | {"iteration": []}) == cores + types
    assert table_summaries({}) == []


def test_absent_reports_and_what_dlprof_never_says_are_gaps() -> None:
    never = [
        "kernel.stream",
        "kernel.registers",
        "kernel.static_shared_bytes",
        "kernel.dynamic_shared_bytes",
    ]
    ops = ["operation.memory_bytes", "operation.flops", "operation.self_cpu_ns"]
    for kinds, quantities in (
        ((), ["kernel", "operation", "summary", "copy"]),
        (("iteration",), ["operation", "summary", "copy", *never, "kernel.layer"]),
        (("iteration", "detail", "summary"), ["copy", *never, "kernel.layer", *ops]),
    ):
        found = find_gaps(kinds, [Kernel(0, "k"), Kernel(1, "k", layer="a"), Kernel(2, "k")])
        assert [gap.quantity for gap in found] == quantities
    first, *_ = find_gaps((), ())
    reason = "no iteration report, so no single launches: add iteration to dlprof's --reports"
    assert first == Gap("kernel", "not_collected", reason)
    kernels = [Kernel(0, "k"), Kernel(1, "k", layer="a"), Kernel(2, "k")]
    *_, layer = find_gaps(("iteration",), kernels)
    assert layer == Gap(
        "kernel.layer", "not_collected", "2 of 3 launches have an op name outside every module"
    )
    placed = find_gaps(("iteration",), [Kernel(0, "k", layer="a")])
    assert "kernel.layer" not in {gap.quantity for gap in placed}


def test_columns_beyond_the_known_are_named_by_report_and_sums_of_time_are_known() -> None:
    sums = [
        f"{part} {what} (ns)"
        for part in ("total", "avg", "min", "max")
        for what in ("cpu time", "gpu time", "cpu overhead", "gpu idle", "api time")
    ]
    row = dict.fromkeys([*sums, "op name", "mood"], "")
    (said,) = describe_tables({"detail": [row, row | {"later": ""}], "other": [{"x": ""}]}, "1.8.9")
    assert said.text == "not understood and left out: columns detail.mood, other.x"
    (said,) = describe_tables({}, "1.9")
    assert said == Diagnostic(
        "info",
        "perfctl parser",
        "DLProf 1.9 is newer than the newest that was tested (1.8): all known parts were read",
    )
    assert describe_tables({"detail": []}, None) == ()
