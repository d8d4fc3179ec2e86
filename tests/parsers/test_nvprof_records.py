"""nvprof's cells: times, sizes by the base that the file shows, grids, devices, and figures of
its sums."""

from __future__ import annotations

import pytest

from perfctl.parsers.nvprof import (
    METRIC,
    SUMMARY,
    TRACE,
    UNIFIED,
    Row,
    Sizes,
    Trace,
    figures,
    time_ns,
    whole,
)
from perfctl.records.report import Copy, Counter, Device, Gap, Kernel, Summary


def row(
    kind: str = TRACE, units: dict[str, str] | None = None, group: str = "g", **cells: str
) -> Row:
    """Underscores in names stand for blanks."""
    return Row(
        kind, {name.replace("_", " "): cell for name, cell in cells.items()}, units or {}, group
    )


def copy(size: str, throughput: str, duration: str = "1.0ms") -> Row:
    return row(Size=size, Throughput=throughput, Duration=duration)


@pytest.mark.parametrize(
    ("text", "unit", "ns"),
    [
        ("438.61ms", "", 438_610_000),
        ("1.5us", "", 1500),
        ("7ns", "", 7),
        ("2.4e+03s", "", 2_400_000_000_000),
        ("1.4", "us", 1400),
        ("1.4ms", "us", 1_400_000),
        ("0.6", "ns", 1),
        ("-3", "ns", -3),
        ("5", "", None),
        ("5", "KB", None),
        ("-", "us", None),
        ("", "us", None),
        ("9.2e+18", "ns", 9_200_000_000_000_000_000),
        ("9.3e+18", "ns", None),
        ("-9.3e+18", "ns", None),
        ("9.3e+18", "s", None),
    ],
)
def test_times_are_nanoseconds(text: str, unit: str, ns: int | None) -> None:
    assert time_ns(text, unit) == ns


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 7 ", 7),
        ("0", 0),
        ("9" * 18, 10**18 - 1),
        ("1" * 19, None),
        ("-1", None),
        ("1.0", None),
        ("", None),
        ("\u0667", None),
    ],
)
def test_counts_have_18_digits_at_most(text: str, number: int | None) -> None:
    assert whole(text) == number


@pytest.mark.parametrize(
    ("rows", "base"),
    [
        ([copy("1.0MB", "1.0GB/s")], 1000),  # 1 MB in 1 ms is 1000 MB/s: one GB/s by 1000
        ([copy("1.0MB", "0.9765625GB/s")], 1024),  # or 1000/1024 by 1024
        ([copy("1.0KB", "0.9765625MB/s")], 1024),
        ([copy("1.0GB", "1.0TB/s")], 1000),
        ([copy("1000.0KB", "1.0GB/s", "1.0ms")], 1000),  # two prefixes apart: 10^6 KB/s
        ([copy("1024.0KB", f"{1000 / 1024:.7f}GB/s", "1.0ms")], 1024),
        ([copy("1.0MB", "1.007GB/s")], 1000),
        ([copy("1.0MB", "1.009GB/s")], None),
        ([copy("1.0MB", "0.993GB/s")], 1000),
        ([copy("1.0MB", "0.991GB/s")], None),
        ([copy("1.0MB", "1000.0MB/s")], None),  # the same prefix tells nothing
        ([copy("1.0MB", "0GB/s")], None),
        ([copy("0MB", "1.0GB/s")], None),
        ([copy("1.0MB", "1.0GB/s", "0ms")], None),
        ([copy("-", "1.0GB/s")], None),
        ([copy("1.0MB", "-")], None),
        ([], None),
        # they contradict each other
        ([copy("1.0MB", "1.0GB/s"), copy("1.0MB", "0.9765625GB/s")], None),
        # twenty settle it
        ([copy("1.0MB", "1.0GB/s")] * 20 + [copy("1.0MB", "0.9765625GB/s")], 1000),
        ([copy("1.0MB", "1.0GB/s")] * 19 + [copy("1.0MB", "0.9765625GB/s")], None),
        ([copy("-", "-")] * 3000 + [copy("1.0MB", "1.0GB/s")], 1000),
        (
            [copy("1.0MB", "1.0GB/s")] + [copy("-", "-")] * 2000 + [copy("1.0MB", "0.9765625GB/s")],
            1000,
        ),
        (
            [copy("1.0MB", "1.0GB/s")] + [copy("-", "-")] * 1999 + [copy("1.0MB", "0.9765625GB/s")],
            None,
        ),
    ],
)
def test_the_base_of_sizes_is_what_makes_size_time_and_throughput_agree(
    rows: list[Row], base: int | None
) -> None:
    assert Sizes.of(rows).base == base


def test_units_of_columns_tell_the_base_as_units_of_cells_do() -> None:
    units = {"Size": "MB", "Throughput": "GB/s", "Duration": "ms"}
    assert Sizes.of([row(units=units, Size="1", Throughput="1", Duration="1")]).base == 1000


@pytest.mark.parametrize(
    ("base", "text", "unit", "size"),
    [
        (1000, "1.5KB", "", 1500),
        (1024, "1.5KB", "", 1536),
        (1024, "2", "MB", 2 * 2**20),
        (1000, "2", "GB", 2 * 10**9),
        (1024, "1TB", "", 2**40),
        (None, "512B", "", 512),
        (None, "0KB", "", 0),
        (1000, "5KB/s", "", None),
        (1000, "5", "", None),
        (1000, "5", "ns", None),
        (1000, "-5B", "", None),
        (1000, "-", "B", None),
        (1000, "1e+08TB", "", None),
        (1000, "9e+06TB", "", 9 * 10**18),
        (1024, "5XB", "", None),
    ],
)
def test_sizes_are_bytes_in_the_base_of_the_file(
    base: int | None, text: str, unit: str, size: int | None
) -> None:
    sizes = Sizes(base)
    assert sizes.bytes(text, unit) == size
    assert sizes.gaps() == []


def test_sizes_whose_base_is_not_decided_are_unknown_and_counted() -> None:
    sizes = Sizes(None)
    assert [sizes.bytes("1KB", ""), sizes.bytes("2", "MB"), sizes.bytes("3B", "")] == [
        None,
        None,
        3,
    ]
    reason = "2 sizes: nothing in the file says whether a KB is 1000 or 1024 bytes"
    assert sizes.gaps() == [
        Gap("copy.bytes", "ambiguous", reason),
        Gap("kernel.shared_bytes", "ambiguous", reason),
    ]


def taken(*rows: Row) -> Trace:
    trace = Trace(Sizes(1024))
    for one in rows:
        trace.take(one)
    return trace


def test_a_kernel_has_its_grid_in_one_cell_or_three_and_its_resources_from_either_form() -> None:
    text = {
        "Grid Size": "(8 4 2)",
        "Block Size": "(32 16 1)",
        "Regs*": "40",
        "SSMem*": "1KB",
        "DSMem*": "2B",
    }
    csv = {
        "Grid X": "8",
        "Grid Y": "4",
        "Grid Z": "2",
        "Block X": "32",
        "Block Y": "16",
        "Block Z": "1",
        "Registers Per Thread": "40",
        "Static SMem": "1024B",
        "Dynamic SMem": "2B",
    }
    more = {
        "Start": "1us",
        "Duration": "2us",
        "Device": "Tesla T4 (1)",
        "Stream": "7",
        "Name": "k(int) [12]",
    }
    trace = taken(*(Row(TRACE, cells | more, {}, "") for cells in (text, csv)))
    first = Kernel(
        launch=0,
        name="k(int)",
        device_index=1,
        stream=7,
        grid_x=8,
        grid_y=4,
        grid_z=2,
        block_x=32,
        block_y=16,
        block_z=1,
        registers=40,
        static_shared_bytes=1024,
        dynamic_shared_bytes=2,
        start_ns=1000,
        duration_ns=2000,
    )
    assert trace.kernels == [first, first._replace(launch=1)]
    assert (trace.counters, trace.unknown, trace.copies) == ([], {}, [])
    assert trace.devices() == (Device("Tesla T4", "gpu", 1),)


def test_a_kernel_without_a_block_has_none() -> None:
    (kernel,) = taken(row(Grid_Size="(8 4 2)", Name="k", Device="-")).kernels
    assert (kernel.block_x, kernel.block_y, kernel.block_z, kernel.device_index) == (
        None,
        None,
        None,
        None,
    )


def test_further_columns_are_counters_of_the_launch_and_those_spelt_unlike_metrics_are_named() -> (
    None
):
    one = Row(
        TRACE,
        {
            "Grid X": "1",
            "Kernel": "k",
            "flop_count_sp": "12",
            "ipc": "1.5",
            "dram": "2.5GB/s",
            "state": "Low (1)",
            "none": "",
            "Warp Stalls": "3",
            "Clock": "4",
            "share": "50",
        },
        {"share": "%"},
        "",
    )
    trace = taken(row(Grid_X="1", Name="before"), one)
    assert trace.counters == [
        Counter(1, "flop_count_sp", 12, None),
        Counter(1, "ipc", 1.5, None),
        Counter(1, "dram", 2.5, "GB/s"),
        Counter(1, "state", None, None, text="Low (1)"),
        Counter(1, "none", None, None),
        Counter(1, "Warp Stalls", 3, None),
        Counter(1, "Clock", 4, None),
        Counter(1, "share", 50, "%"),
    ]
    assert isinstance(trace.counters[0].value, int)
    assert list(trace.unknown) == ["Warp Stalls"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("[CUDA memcpy HtoD]", "HtoD"),
        ("[CUDA memset]", "memset"),
        ("[Unified Memory Memcpy DtoH]", "DtoH"),
    ],
)
def test_copies_are_told_by_their_bracketed_names(name: str, kind: str) -> None:
    one = row(
        Name=name,
        Size="-",
        Unified_Memory="4KB",
        Start="1us",
        Duration="2us",
        Device="T4 (2)",
        Stream="-",
    )
    assert taken(one).copies == [Copy(kind, 4096, 1000, 2000, None, 2, None)]


def test_calls_and_faults_are_counted_by_name_with_their_time() -> None:
    trace = taken(
        row(Name="cudaMalloc", Duration="2us"),
        row(Name="[Unified Memory CPU page faults]", Duration="-"),
        row(Name="cudaMalloc", Duration="3us"),
        row(Name=" "),
    )
    assert trace.summaries() == [
        Summary("cudaMalloc: Calls", 2.0, None),
        Summary("cudaMalloc: Time", 5000.0, "ns"),
        Summary("Unified Memory CPU page faults: Calls", 1.0, None),
        Summary("Unified Memory CPU page faults: Time", 0.0, "ns"),
    ]
    assert (trace.kernels, trace.copies, trace.gaps(), trace.devices()) == ([], [], [], ())


@pytest.mark.parametrize(
    ("name", "is_cut"), [("x" * 13, False), ("x" * 14, True), ("x" * 15, True)]
)
def test_a_device_without_a_number_is_one_gap_and_a_name_of_full_width_may_be_cut(
    name: str, is_cut: bool
) -> None:
    trace = taken(
        row(Name="k", Grid_X="1", Device=name),
        row(Name="k", Grid_X="1", Device="Another GPU of long name (3)"),
    )
    cut = Gap("device.name", "unreadable", f"nvprof cut the name to 15 characters: '{name}'")
    number = Gap(
        "kernel.device_index", "not_available", "the trace names the GPU without its number"
    )
    assert trace.gaps() == ([cut] if is_cut else []) + [number]
    assert trace.devices() == (Device(name, "gpu", 0), Device("Another GPU of long name", "gpu", 3))


def test_a_summary_s_figures_are_times_counts_and_a_share() -> None:
    cells = {
        "Time(%)": "75.5%",
        "Time": "3ms",
        "Calls": "2",
        "Avg": "1.5ms",
        "Min": "1ms",
        "Max": "2ms",
        "Name": " k ",
    }
    assert figures(Row(SUMMARY, cells, {}, "GPU activities"), Sizes(None)) == [
        Summary("GPU activities: k: Time(%)", 75.5, "%"),
        Summary("GPU activities: k: Time", 3_000_000.0, "ns"),
        Summary("GPU activities: k: Calls", 2.0, None),
        Summary("GPU activities: k: Avg", 1_500_000.0, "ns"),
        Summary("GPU activities: k: Min", 1_000_000.0, "ns"),
        Summary("GPU activities: k: Max", 2_000_000.0, "ns"),
    ]
    odd = figures(
        Row(SUMMARY, cells | {"Time(%)": "-", "Calls": "many", "Avg": "-"}, {}, "g"), Sizes(None)
    )
    assert odd[0] == Summary("g: k: Time(%)", None, "%", "-")
    assert odd[2] == Summary("g: k: Calls", None, None, "many")
    assert odd[3] == Summary("g: k: Avg", None, "ns", "-")


def test_unified_memory_s_figures_leave_out_sizes_that_are_none() -> None:
    cells = {
        "Count": "2",
        "Avg Size": "256B",
        "Min Size": "-",
        "Total Size": "1KB",
        "Total Time": "5us",
        "Name": "H2D",
    }
    label = "Unified Memory, T4 (0): H2D"
    assert figures(Row(UNIFIED, cells, {}, "T4 (0)"), Sizes(1024)) == [
        Summary(f"{label}: Count", 2.0, None),
        Summary(f"{label}: Avg Size", 256.0, "byte"),
        Summary(f"{label}: Total Size", 1024.0, "byte"),
        Summary(f"{label}: Total Time", 5000.0, "ns"),
    ]


def test_a_metric_s_figures_have_its_own_unit() -> None:
    cells = {
        "Invocations": "3",
        "Metric Name": "dram",
        "Name": "other",
        "Min": "1.5GB/s",
        "Max": "low",
        "Avg": "7",
    }
    assert figures(Row(METRIC, cells, {}, "k(int)"), Sizes(None)) == [
        Summary("k(int): dram: Invocations", 3.0, None),
        Summary("k(int): dram: Min", 1.5, "GB/s"),
        Summary("k(int): dram: Max", None, None, "low"),
        Summary("k(int): dram: Avg", 7.0, None),
    ]
    event = figures(Row(METRIC, {"Event Name": "warps", "Invocations": "1"}, {}, "k"), Sizes(None))
    assert event == [Summary("k: warps: Invocations", 1.0, None)]
