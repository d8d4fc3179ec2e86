"""Output of nsys stats that is damaged, large or generated: it gives right rows or a ReportError, in
bounded memory."""

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
from perfctl.parsers.common.lines import SurroundingLines
from perfctl.parsers.nsys import stats
from perfctl.parsers.nsys.stats_tables import LineSource, read_json_rows
from tests.make.nsys_stats import box_table, column_table, csv_table, processing
from tests.parsers.cuts import cuts

SUM = [
    *("Time (%)", "Total Time (ns)", "Instances"),
    *(f"{figure} (ns)" for figure in ("Avg", "Med", "Min", "Max", "StdDev")),
    "Name",
]
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
    source = LineSource(iter(lines), SurroundingLines())
    source.read()
    return list(read_json_rows(source)), source.log.broken_rows


def test_an_object_that_never_ends_is_given_up_with_bounded_memory():
    read = []

    def lines() -> Iterator[str]:
        yield '[{"b": 1},\n'
        for line in range(40):
            read.append(line)
            yield '{"a": "' + "x" * (1 << 16) + "\n"

    source = LineSource(lines(), SurroundingLines())
    source.read()
    assert list(read_json_rows(source)) == [{"b": "1"}]
    assert (len(read), source.log.broken_rows) == (16, 1)


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
