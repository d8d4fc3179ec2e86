"""ncu's CSV is found among everything else in a file: rows, headers, and a log of the rest."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from perfctl.parsers.common.lines import Lines, Log
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import log as ncu_log
from perfctl.parsers.ncu.csv import Columns, Rows, skip_to_header, split_row

HEADER = '"ID","Process ID","Kernel Name"\n'
ROW = '"0","7","gemm(int)","x"\n'


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (HEADER, 0),
        ("loss 0.5" + HEADER, 8),
        ("ID,Process ID,Kernel Name\n", 0),
        ('"Process ID","Process Name"\n', 0),
        ("Process ID,Process Name", 0),
        (" ID,Process ID\n", None),
        ("x Process ID,Process Name", None),
        ("", None),
    ],
)
def test_a_header_is_found_behind_output_only_where_its_cells_are_quoted(
    line: str, at: int | None
) -> None:
    match = ncu_log.HEADER.search(line)
    assert (match and match.start()) == at


def test_what_stands_before_the_header_goes_to_the_log() -> None:
    log = Log()
    source = iter(["==PROF== Connected\n", "loss 1 " + HEADER, ROW])
    assert skip_to_header(source, log) == HEADER
    assert next(source) == ROW
    assert log.tool_lines == {("PROF", "Connected"): 1}
    assert log.first_line == "==PROF== Connected"
    assert skip_to_header(iter(["\n"]), log) is None


def rows(*source: str) -> tuple[list[str], Log]:
    log = Log()
    lines = Lines(io.StringIO("".join(source)).read, log)
    return list(Rows(Path("x"), lines, log, Columns([]), quoted=True)), log


@pytest.mark.parametrize(("limit", "given_up"), [(22, 1), (23, 0)])
def test_a_row_that_never_ends_is_given_up(
    limit: int, given_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu_csv, "ROW_LIMIT", limit)
    pieces = ['"0","7","open\n', "5678\n", "901\n", '3","x"\n']
    assert len("".join(pieces[:3])) == 23, "so long it is when the fourth line comes"
    found, log = rows(*pieces, ROW)
    assert found == ([ROW] if given_up else ["".join(pieces), ROW])
    assert log.cut_rows == given_up


def test_output_of_the_program_is_no_row_and_a_row_behind_it_is() -> None:
    inside = '"1","7","gemm","ctx","x"\n'
    found, log = rows("loss, 0.5\n", "==PROF== a, b\n", "loss 0.5" + inside, "epoch " + HEADER)
    assert found == [inside, HEADER]
    assert (log.first_line, log.tool_lines) == ("loss, 0.5", {("PROF", "a, b"): 1})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('"a","b"\r\n', ["a", "b"]),
        ('"a","b",\r\n', ["a", "b"]),
        ('"a","",\n', ["a", ""]),
        ('"a"', ["a"]),
        ("a,b,", ["a", "b", ""]),
        ('"a","say ""x"", y","c"\n', ["a", 'say "x", y', "c"]),
        ('"a","x\ny"\n', ["a", "x\ny"]),
        ('"a",b,"c"', ["a", "b", "c"]),
    ],
)
def test_cells_are_what_the_csv_module_says(row: str, expected: list[str]) -> None:
    assert split_row(row) == expected
