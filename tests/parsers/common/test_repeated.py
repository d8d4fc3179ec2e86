"""A report that stands twice in one file is refused with its line: nothing is added up twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common.doubts import (
    SOURCE,
    SeveralRunsError,
    make_joined_parts_warning,
    make_repeated_part_error,
)
from perfctl.records.report import Diagnostic
from tests.make.files import read
from tests.make.texts import (
    CONSOLE,
    NVPROF_CHILD,
    ONCE,
    ROWS,
    TRACE,
)

BY_ITSELF = ("DLProf", "nsys stats JSON")
"""No program prints into these files."""


@pytest.mark.parametrize(
    ("form", "before"),
    [
        *((form, "") for form in ONCE),
        *((form, "a\nb\n") for form in ONCE if not form.startswith(BY_ITSELF)),
    ],
)
def test_a_report_twice_in_a_file_is_refused_and_both_parts_of_the_split_are_read(
    tmp_path, form, before
):
    text = ONCE[form]
    read(tmp_path, before + text)
    with pytest.raises(
        SeveralRunsError, match=r"(?:twice|it holds 2 runs).*at line \d+"
    ) as refused:
        read(tmp_path, before + text + text)
    (line,) = refused.value.starts
    assert (before + text).count("\n") < line <= (before + text + text).count("\n")
    lines = (before + text + text).splitlines(keepends=True)
    for part in (lines[: line - 1], lines[line - 1 :]):
        read(tmp_path, "".join(part))


def test_reports_of_other_names_and_calls_of_other_interfaces_are_no_repetition(tmp_path):
    calls = (
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    )
    other = [
        calls + f"100.0,300,2,150.0,150.0,100,200,70.7,{name}\n\n"
        for name in ("cudaFree", "ioctl", "MPI_Send")
    ]
    found = read(tmp_path, ONCE["nsys stats CSV"] + TRACE + "".join(other))
    assert [one.name for one in found.operations] == ["gemm", "cudaFree", "ioctl", "MPI_Send"]
    with pytest.raises(ReportError, match=r"osrt_sum appears twice \(again at line 7"):
        read(tmp_path, other[1] + other[2] + other[1])


def test_objects_of_one_array_with_other_keys_are_no_repetition(tmp_path):
    rows = [*ROWS, {**ROWS[0], "Name": "relu", "Med (ns)": 1.0}]
    assert [one.name for one in read(tmp_path, json.dumps(rows) + "\n").operations] == [
        "gemm",
        "relu",
    ]


@pytest.mark.parametrize(
    ("text", "other", "line"),
    [
        (CONSOLE, CONSOLE.replace("[7] a", "[8] a"), 10),
        (NVPROF_CHILD, NVPROF_CHILD.replace("==77==", "==79=="), None),
    ],
)
def test_what_other_processes_printed_is_one_run_and_a_warning_says_so(tmp_path, text, other, line):
    once, both = read(tmp_path, text), read(tmp_path, text + other)
    (said,) = [said.text for said in both.diagnostics if said.source == SOURCE]
    assert f"begin at line {line or ''}" in said
    assert said.endswith("If they are separate runs, split the file there")
    assert len(list(both.kernels)) == 2 * len(list(once.kernels))


def test_the_place_to_split_at_is_told_in_the_commands_that_do_it():
    error = make_repeated_part_error(Path("r.csv"), "nsys", "the table", 40)
    assert (
        error.reason
        == "the table appears twice (again at line 40); both together would double the totals"
    )
    assert (
        error.remedy
        == "Split the file there (head -n 39 and tail -n +40) and pass each part separately"
    )
    assert (error.path, error.tool) == (Path("r.csv"), "nsys")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [([4], "4"), ([4, 5, 6, 7, 8], "4, 5, 6, 7, 8"), ([4, 5, 6, 7, 8, 9], "4, 5, 6, 7, 8, ...")],
)
def test_five_places_where_parts_begin_are_shown(lines, shown):
    text = (
        f"tables begin at line {shown} and were read as one run. If they are separate runs, split "
        "the file there"
    )
    assert make_joined_parts_warning("tables", lines) == (Diagnostic("warning", SOURCE, text),)
    assert make_joined_parts_warning("tables", []) == ()
