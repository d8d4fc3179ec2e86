"""Output of nsys stats that is damaged, large or generated: it gives right rows or a ReportError, in
bounded memory, and what is written in any dialect is read back."""

from __future__ import annotations

import contextlib
import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfctl.parsers import ReportError
from perfctl.parsers.common.lines import Log
from perfctl.parsers.nsys import stats
from perfctl.parsers.nsys.stats_tables import Source, Trouble, read_objects
from tests.make.ncu_csv import exact, number
from tests.make.nsys_stats import (
    box_table,
    column_table,
    csv_table,
    header,
    processing,
    titled,
)
from tests.parsers.cuts import cuts

SUM = header("Instances", "Name")
NAMES = [
    "void gemm<float, (int)128>(const float *, float *)",
    "relu_kernel(int)",
    "[CUDA memset]",
    "cudaFree(void *)",
]
ROWS = [
    [f"{10 + at}.5", str(1000 + at), str(at + 1), "5.5", "5.5", "5", "6", "0.1", name]
    for at, name in enumerate(NAMES)
]
TABLES = {"csv": csv_table, "column": column_table, "box": box_table}


@pytest.mark.parametrize("form", sorted(TABLES))
def test_every_cut_gives_right_rows_or_an_error(tmp_path, form):
    text = processing("gpukernsum") + "\n" + TABLES[form](SUM, ROWS)
    path = tmp_path / "stats.csv"
    path.write_text(text)
    whole = list(stats.parse(path).operations)
    assert len(whole) == len(ROWS)
    for length in cuts(text):
        path.write_text(text[:length])
        try:
            report = stats.parse(path)
        except ReportError:
            continue
        found = list(report.operations)
        # all figures are there, and the name's beginning
        if found and found[-1].name != whole[len(found) - 1].name:
            assert whole[len(found) - 1].name.startswith(found[-1].name)
            assert ("operation.name", "ambiguous") in {gap[:2] for gap in report.gaps}
            found[-1] = found[-1]._replace(name=whole[len(found) - 1].name)
        assert found == whole[: len(found)], text[max(0, length - 60) : length]


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "x",
        "Processing [a] with [gpukernsum.py]... \n",
        ",".join(SUM)[:30],
        "\0\0\n",
        "-- --\n",
    ],
)
def test_a_file_without_a_table_is_an_error(tmp_path, text):
    path = tmp_path / "stats.csv"
    path.write_text(text)
    with pytest.raises(ReportError):
        stats.parse(path)


def test_a_line_of_many_megabytes_costs_little_memory(tmp_path):
    path = tmp_path / "stats.csv"
    with path.open("w") as file:
        for _ in range(4):
            file.write(f"[1/7] [{'=' * 250}52%   ] x.nsys-rep\r" * 4_000)
        file.write("\n" + processing("gpukernsum") + csv_table(SUM, ROWS))
    tracemalloc.start()
    found = list(stats.parse(path).operations)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.name for one in found] == NAMES
    assert peak < path.stat().st_size / 2


TEXTS = [(processing("gpukernsum") + table(SUM, ROWS)).encode() for table in TABLES.values()]


@settings(max_examples=200)
@example(TEXTS[0], 564, 9, b"-")
@given(st.sampled_from(TEXTS), st.integers(0, 600), st.integers(0, 40), st.binary(max_size=40))
def test_damage_in_the_middle_ends_in_records_or_a_report_error(text, at, removed, added):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stats.csv"
        path.write_bytes(text[:at] + added + text[at + removed :])
        stats.sniff(path, path.read_bytes())
        with contextlib.suppress(ReportError):
            found = stats.parse(path)
            assert all(one.calls >= 0 for one in found.operations)
            assert not [*found.kernels, *found.copies, *found.ranges]


# Round trip

REPORTS = {
    "cuda_gpu_kern_sum": ("gpukernsum", "CUDA Kernel Statistics", "Instances", "Name", "device"),
    "cuda_gpu_mem_time_sum": (
        "gpumemtimesum",
        "CUDA Memory Operation Statistics (by time)",
        "Count",
        "Operation",
        "device",
    ),
    "cuda_api_sum": ("cudaapisum", "CUDA API Statistics", "Num Calls", "Name", "cpu"),
    "osrt_sum": ("osrtsum", "Operating System Runtime API Statistics", "Num Calls", "Name", "cpu"),
    "nvtx_pushpop_sum": (
        "nvtxppsum",
        "NVTX Push-Pop Range Statistics",
        "Instances",
        "Range",
        "cpu",
    ),
}
DIALECTS = [
    "csv new",
    "csv old",
    "column new",
    "column old",
    "box new",
    "executing",
    "2019",
    "2020",
    "2021",
]


Figures = tuple[str, int, int, int]
"""Name, total, calls, average in hundredths."""


def write(report: str, rows: list[Figures], dialect: str, locale: str) -> str:
    old, title, count, name, _ = REPORTS[report]
    head = header(count, name, dialect)
    cells = []
    for label, total, calls, average in rows:
        mean, least = number(average, locale), number(total * 100, locale)
        by_name = {column: mean for column in head if column.startswith(("Med", "Std", "Av"))}
        by_name |= {head[0]: number(50, locale), name: label, count: number(calls * 100, locale)}
        cells.append([by_name.get(column, least) for column in head])
    if dialect in DIALECTS[6:]:
        unit = " (nanoseconds)" if dialect == "2019" else ":"
        shown = title.replace(" (by time)", "") if dialect == "2019" else title
        return f"Generating {title}...\n{shown}{unit}\n\n" + column_table(head, cells)
    called = old if dialect.endswith("old") else report
    if dialect == "executing":
        return f"[5/7] Executing '{called}' stats report\n\n" + column_table(head, cells)
    if dialect.startswith("csv"):
        return processing(called) + csv_table(head, cells)
    table = box_table if dialect.startswith("box") else column_table
    return processing(called) + titled("Summary", called) + table(head, cells)


TWO_QUOTES = '""'
"""In CSV these may be one that was doubled, which the text does not tell."""
texts = st.text(st.sampled_from("abc<>():, \"&;'é[]*"), max_size=25)
names = texts.map(lambda text: "k" + text.strip() + "z").filter(lambda name: TWO_QUOTES not in name)
figures = st.tuples(names, st.integers(0, 10**15), st.integers(1, 10**7), st.integers(0, 10**15))
some = st.lists(figures, min_size=1, max_size=4, unique_by=lambda row: row[0])
one_table = st.tuples(st.sampled_from(sorted(REPORTS)), some)


@settings(max_examples=80)
@given(
    st.lists(one_table, min_size=1, max_size=4, unique_by=lambda table: table[0]),
    st.sampled_from(DIALECTS),
    st.sampled_from(["C", "en_US", "de_DE"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_is_written_in_a_dialect_is_read_back(tables, dialect, locale, encoding, line_end):
    # nsys groups and localises on the console only
    locale = "C" if dialect.startswith("csv") else locale
    text = "".join(
        write(report, [("anchor", 1, 1, 12_345_678_9), *rows], dialect, locale)
        for report, rows in tables
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stats.txt"
        with path.open("w", encoding=encoding, newline="") as file:
            file.write(text.replace("\n", line_end))
        assert stats.sniff(path, path.read_bytes()[:65536])
        found = stats.parse(path)
    expected = []
    for report, rows in tables:
        for name, total, calls, _ in [("anchor", 1, 1, 0), *rows]:
            device = REPORTS[report][4] == "device"
            expected.append(
                (name, report, calls, None if device else total, total if device else None)
            )
    assert [
        (one.name, one.category, one.calls, one.cpu_ns, one.device_ns) for one in found.operations
    ] == expected
    averages = {one.name: one.value for one in found.summaries if one.name.endswith(":Avg")}
    for report, rows in tables:
        for name, _, _, average in rows:
            assert averages[f"{report}:{name}:Avg"] == exact(average, "")[0]


TRACE = Path(__file__).resolve().parents[2] / "data" / "nsys" / "stats_traces" / "old.txt"


def test_a_large_trace_is_read_in_little_memory_and_as_often_as_asked(tmp_path):
    path = tmp_path / "trace.csv"
    _, header, launch = TRACE.read_text().splitlines(keepends=True)[:3]
    path.write_text(header + launch * 4_000)
    tracemalloc.start()
    found = stats.parse(path)
    assert [sum(1 for _ in found.kernels) for _ in range(2)] == [4_000] * 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**19  # as records in a list they take twice as much


def read_array(lines: list[str]) -> tuple[list[dict[str, str]], int]:
    """The objects of an array, and whether it is broken."""
    source, trouble = Source(iter(lines), Log()), Trouble()
    source.read()
    return list(read_objects(source, trouble)), trouble.rows


def test_an_object_that_never_ends_is_given_up_with_bounded_memory():
    read = []

    def lines() -> Iterator[str]:
        yield '[{"b": 1},\n'
        for line in range(40):
            read.append(line)
            yield '{"a": "' + "x" * (1 << 16) + "\n"

    trouble = Trouble()
    source = Source(lines(), Log())
    source.read()
    assert list(read_objects(source, trouble)) == [{"b": "1"}]
    assert (len(read), trouble.rows) == (16, 1)


@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.none(), min_size=1),
        max_size=5,
    ),
    st.sampled_from([None, 1, 2]),
)
def test_any_array_of_objects_comes_back_whole(objects, indent):
    text = json.dumps(objects, indent=indent) + "\n"
    wanted = [
        {key: "" if value is None else str(value) for key, value in one.items()} for one in objects
    ]
    assert read_array(text.splitlines(keepends=True)) == (wanted, 0)
