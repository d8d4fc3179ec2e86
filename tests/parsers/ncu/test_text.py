"""Console text of ncu: both generations, read as the CSV of the same launches is."""

from __future__ import annotations

import contextlib
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError, sniff
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.records.report import Advice, Report
from tests.make.ncu_csv import UNITS, exact, number
from tests.make.ncu_text import Launch, new_text, old_text, raw_text

DATA = Path(__file__).resolve().parents[2] / "data"
FFMA = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"
LONG = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_atom.sum.pct_of_peak_sustained_elapsed"
SOL = (
    "GPU Speed Of Light Throughput",
    [("Duration", "us", "203.62"), ("Memory [%]", "%", "88.93")],
)
COUNTS = (
    "Command line profiler metrics",
    [(FFMA, "inst", "5,318,969,728"), (LONG, "%", "2.5"), ("Ratio", "", "0.25")],
)
WRITERS = {"old": old_text, "new": new_text, "raw": raw_text}


def read(tmp_path: Path, text: str) -> Report:
    path = tmp_path / "ncu.txt"
    path.write_text(text)
    return ncu_text.parse(path)


def read_values(tmp_path: Path, text: str) -> dict[str, int | float | None]:
    return {counter.name: counter.value for counter in read(tmp_path, text).counters}


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_all_layouts_give_the_same_counters(tmp_path: Path, layout: str) -> None:
    report = read(
        tmp_path, WRITERS[layout]([Launch("k<int, (bool)1>(float *)", sections=[SOL, COUNTS])])
    )
    found = {counter.name: (counter.value, counter.unit) for counter in report.counters}
    assert found == {
        "Duration": (203_620, "ns"),
        "Memory [%]": (88.93, "%"),
        FFMA: (5_318_969_728, "inst"),
        LONG: (2.5, "%"),
        "Ratio": (0.25, None),
    }
    (kernel,) = report.kernels
    assert (kernel.name, kernel.stream, kernel.duration_ns) == (
        "k<int, (bool)1>(float *)",
        7,
        203_620,
    )


def test_the_later_layout_gives_grid_block_device_and_capability(tmp_path: Path) -> None:
    report = read(tmp_path, new_text([Launch("k(int)", (63, 64, 2), (16, 8, 1), 13, [SOL])]))
    (kernel,) = report.kernels
    assert (kernel.grid_x, kernel.grid_y, kernel.grid_z) == (63, 64, 2)
    assert (kernel.block_x, kernel.block_y, kernel.block_z) == (16, 8, 1)
    assert (kernel.stream, kernel.device_index) == (13, 0)
    assert [device.compute_capability for device in report.devices] == ["8.0"]


def test_the_earlier_layout_says_that_it_has_no_grid(tmp_path: Path) -> None:
    report = read(tmp_path, old_text([Launch("k(int)", sections=[SOL])]))
    assert [kernel.grid_x for kernel in report.kernels] == [None]
    assert ("kernel.grid_x", "not_available") in {gap[:2] for gap in report.gaps}


def test_sections_stand_with_their_counters(tmp_path: Path) -> None:
    again = ("Memory Workload Analysis", [("Memory Throughput", "Mbyte/s", "191.40")])
    speed = ("GPU Speed Of Light Throughput", [("Memory Throughput", "%", "6.09")])
    report = read(tmp_path, new_text([Launch("k(int)", sections=[speed, again])]))
    assert [(c.section, c.value, c.unit) for c in report.counters] == [
        ("GPU Speed Of Light Throughput", 6.09, "%"),
        ("Memory Workload Analysis", 191_400_000, "byte/s"),
    ]


def test_a_value_of_several_words_that_is_broken_is_whole_again(tmp_path: Path) -> None:
    row = ("device__attribute_display_name", "", "NVIDIA GeForce RTX 4090")
    report = read(
        tmp_path, raw_text([Launch("k(int)", sections=[("", [row, ("next__x.sum", "inst", "3")])])])
    )
    assert [(c.value, c.text) for c in report.counters] == [
        (None, "NVIDIA GeForce RTX 4090"),
        (3, None),
    ]
    assert [device.name for device in report.devices] == ["NVIDIA GeForce RTX 4090"]


def test_a_name_as_long_as_its_column_does_not_swallow_the_next_row(tmp_path: Path) -> None:
    rows = [("a" * 69, "inst", "1"), ("b" * 70, "", "2"), ("c" * 71, "", "3"), ("d", "", "4")]
    values = read_values(tmp_path, old_text([Launch("k(int)", sections=[("S", rows)])]))
    assert values == {"a" * 69: 1, "b" * 70: 2, "c" * 71: 3, "d": 4}


def test_rules_become_advice_with_their_whole_text(tmp_path: Path) -> None:
    words = "This kernel has uncoalesced accesses of {} sectors. " + "Words go on and on. " * 12
    launches = [
        Launch("k(int)", sections=[SOL], rules=[f"OPT Est. Speedup: {5 * n}% {words.format(n)}"])
        for n in (1, 2)
    ]
    report = read(tmp_path, new_text(launches))
    assert list(report.advice) == [
        Advice(
            n - 1,
            "GPU Speed Of Light Throughput",
            "OPT",
            words.format(n).strip(),
            0.05 * n,
            "global",
        )
        for n in (1, 2)
    ]
    assert [counter.value for counter in report.counters] == [203_620, 88.93] * 2


def test_a_launch_has_the_process_and_context_above_it_and_its_occupancy(tmp_path: Path) -> None:
    occupancy = (
        "Occupancy",
        [("Theoretical Occupancy", "%", "100"), ("Achieved Occupancy", "%", "86.31")],
    )
    text = new_text(
        [Launch("k(int)", sections=[SOL, occupancy]), Launch("l(int)", sections=[COUNTS])]
    )
    report = read(tmp_path, text.replace("Context 1, Stream 7", "Context 3, Stream 7", 1))
    assert [(one.process, one.context, one.occupancy, one.source) for one in report.kernels] == [
        (42, 3, pytest.approx(0.8631), None),
        (42, 1, None, "counted"),
    ]


def test_a_value_that_could_not_be_collected_is_unknown_with_a_reason(tmp_path: Path) -> None:
    cache = ("Function Cache Configuration", "", "CachePreferNone")
    rows = [("flop_count_sp.sum", "", "n/a"), ("x__y.sum", "", "(!) n/a"), cache]
    report = read(tmp_path, new_text([Launch("k(int)", sections=[("S", rows)])]))
    assert [(c.value, c.text) for c in report.counters] == [
        (None, "n/a"),
        (None, "n/a"),
        (None, "CachePreferNone"),
    ]
    states = {gap.quantity: gap.state for gap in report.gaps}
    assert states["counter:flop_count_sp.sum"] == states["counter:x__y.sum"] == "not_available"


def test_an_ambiguous_number_is_not_guessed(tmp_path: Path) -> None:
    report = read(
        tmp_path, new_text([Launch("k(int)", sections=[("S", [("x__y.sum", "inst", "1.234")])])])
    )
    assert [counter.value for counter in report.counters] == [None]
    assert ("counter:x__y.sum", "ambiguous") in {gap[:2] for gap in report.gaps}


def test_messages_of_ncu_around_the_text_become_diagnostics(tmp_path: Path) -> None:
    before = '==PROF== Profiling "k" - 0: 0%....50%....100% - 3 passes\nloss 0.42\n'
    after = (
        '==ERROR== Failed to profile "other" in process 42\n'
        + "==WARNING== Found outstanding GPU clock reset\n" * 2
    )
    report = read(tmp_path, before + new_text([Launch("k(int)", sections=[SOL])]) + after)
    said = [
        one.text
        for one in report.diagnostics
        if one.severity in ("error", "warning") and one.source == "ncu"
    ]
    assert said == [
        'Failed to profile "other" in process 42',
        "Found outstanding GPU clock reset (2 times)",
    ]
    assert {one.severity for one in report.diagnostics} >= {"error", "warning"}
    assert ("kernel", "not_collected", "other") in {
        (gap.quantity, gap.state, gap.scope) for gap in report.gaps
    }


def test_the_parser_of_csv_hands_console_text_over(tmp_path: Path) -> None:
    report = ncu_csv.parse(DATA / "ncu-logs" / "console.log")
    assert [counter.value for counter in report.counters] == [6750]
    assert [kernel.grid_x for kernel in report.kernels] == [64]


def test_text_is_recognised_also_behind_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "ncu.txt"
    path.write_text("step 1\n" * 20000 + new_text([Launch("k(int)", sections=[SOL])]))
    parser = sniff(path)
    assert parser is not None
    assert parser.name == "ncu console text"


@pytest.mark.parametrize("name", ["ncu-ragged", "ncu-wide", "ncu-nvtx"])
def test_csv_is_not_taken_for_text(name: str) -> None:
    for path in sorted((DATA / name).iterdir()):
        assert not ncu_text.sniff(path, path.read_bytes())


# Damage


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_a_cut_anywhere_gives_right_rows_or_an_error(tmp_path: Path, layout: str) -> None:
    two_words = (
        "Words",
        [("device__attribute_display_name", "", "NVIDIA GeForce RTX 4090 D of Words")],
    )
    text = WRITERS[layout](
        [Launch("k(int)", sections=[SOL, COUNTS, two_words]), Launch("l(int)", sections=[COUNTS])]
    )
    path = tmp_path / "ncu.txt"
    path.write_text(text)
    whole = list(ncu_text.parse(path).counters)
    for length in range(0, len(text), 7):
        path.write_text(text[:length])
        try:
            report = ncu_text.parse(path)
        except ReportError:
            continue
        found = list(report.counters)
        assert found == whole[: len(found)], text[max(0, length - 80) : length]
        assert [kernel.name for kernel in report.kernels] == ["k(int)", "l(int)"][
            : len(list(report.kernels))
        ]


def test_a_cut_table_leaves_a_gap(tmp_path: Path) -> None:
    text = new_text([Launch("k(int)", sections=[SOL, COUNTS])])
    report = read(tmp_path, text[: text.index("Ratio") + 3])
    assert ("counter", "unreadable") in {gap[:2] for gap in report.gaps}


@pytest.mark.parametrize(
    "text",
    ["\n", "x", "    Section: S\n", "==PROF== Connected\n    Section: S\n", "NUL\0\0\n", "-" * 999],
)
def test_a_file_without_a_launch_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError):
        read(tmp_path, text)


def test_a_line_of_many_megabytes_costs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "ncu.txt"
    with path.open("w") as file:
        for _ in range(60):
            file.write("  x, Context 1" * 75_000)
        file.write("\n" + new_text([Launch("k(int)", sections=[SOL])]))
    tracemalloc.start()
    values = [counter.value for counter in ncu_text.parse(path).counters]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values == [203_620, 88.93]
    assert peak < 64 * 2**20


TEXT = new_text([Launch("k(int)", sections=[SOL, COUNTS], rules=["INF words"])]).encode()


@settings(max_examples=150)
@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.binary(max_size=40))
def test_damage_in_the_middle_ends_in_records_or_a_report_error(
    at: int, removed: int, added: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ncu.txt"
        path.write_bytes(TEXT[:at] + added + TEXT[at + removed :])
        ncu_text.sniff(path, path.read_bytes())
        with contextlib.suppress(ReportError):
            list(ncu_text.parse(path).counters)


# Round trip

LOG = [
    "epoch 1, loss 0.42",
    "==PROF== Connected to process 42 (/opt/app)",
    "  indented words",
    "100%",
]


Cell = tuple[str, str, int]
letters = st.text(st.sampled_from("abc<>():, \"&;'é[]"), min_size=1, max_size=30)
kernel_names = letters.map(lambda text: "void k" + text.strip())
metric_names = st.text(st.sampled_from("abcxyz__."), min_size=1, max_size=150).map(
    lambda text: "m" + text
)
cells = st.tuples(metric_names, st.sampled_from(sorted(UNITS)), st.integers(0, 10**11))


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(kernel_names, st.lists(st.lists(cells, min_size=1, max_size=4), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(sorted(WRITERS)),
    st.sampled_from(["C", "en_US", "de_DE"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.sampled_from(LOG), max_size=3),
)
def test_what_is_written_in_a_layout_is_read_back(
    report: list[tuple[str, list[list[Cell]]]],
    layout: str,
    locale: str,
    encoding: str,
    line_end: str,
    log: list[str],
) -> None:
    report = [("void anchor(int)", [[("anchor", "inst", 123456789)]]), *report]
    launches = [Launch(name, (at + 1, 2, 3)) for at, (name, _) in enumerate(report)]
    for launch, (_, parts) in zip(launches, report, strict=True):
        for at, part in enumerate(parts):
            launch.sections.append(
                (f"Section {at}", [(m, u, number(v, locale)) for m, u, v in part])
            )
    text = "".join(line + "\n" for line in log) + WRITERS[layout](launches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ncu.txt"
        with path.open("w", encoding=encoding, newline="") as file:
            file.write(text.replace("\n", line_end))
        assert ncu_text.sniff(path, path.read_bytes()[:65536])
        found = ncu_text.parse(path)
        counters, kernels = list(found.counters), list(found.kernels)
    assert [kernel.name for kernel in kernels] == [name for name, _ in report]
    assert [kernel.grid_x for kernel in kernels] == [
        at + 1 if layout == "new" else None for at in range(len(report))
    ]
    expected = [
        (at, m, u, v) for at, (_, parts) in enumerate(report) for part in parts for m, u, v in part
    ]
    found_cells = [(c.launch, c.name, (c.value, c.unit)) for c in counters]
    assert found_cells == [(at, m, exact(v, u)) for at, m, u, v in expected]
