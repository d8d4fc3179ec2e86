"""ncu's CSV is found among everything else in a file: rows, headers, encodings, and a log of the rest."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from perfctl.parsers import ncu_lines
from perfctl.parsers.ncu_lines import (
    Log,
    Rows,
    cells,
    encoding_of,
    header_at,
    lines,
    open_text,
    skip_to_header,
    tail_of,
)

HEADER = '"ID","Process ID","Kernel Name"\n'
ROW = '"0","7","gemm(int)","x"\n'


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        (b"", "utf-8"), (b"a\0b", "utf-8"), (b"\xef\xbb\xbfID", "utf-8-sig"), (b"\xff\xfeI\0", "utf-16"),
        (b"\xfe\xff\0I", "utf-16"), ("ID,a".encode("utf-16-le"), "utf-16-le"), ("ID,a".encode("utf-16-be"), "utf-16-be"),
        ("ID".encode("utf-16-le"), "utf-16-le"), ("ID".encode("utf-16-be"), "utf-16-be"), (b"plain", "utf-8"),
        (b"ab\0c\0d", "utf-8"), (b"a\0b\0cd", "utf-8"), (b"a\0b\0c\0", "utf-16-le"),
    ],
)  # fmt: skip
def test_the_encoding_shows_in_the_first_bytes(head: bytes, encoding: str) -> None:
    assert encoding_of(head) == encoding


def test_one_zero_byte_in_three_is_no_utf_16() -> None:
    third = b"abc\0de" * 4  # every sixth byte is zero, all at odd places: 4 of 24
    assert encoding_of(third) == "utf-8"
    assert encoding_of(b"a\0" * 9 + b"abcdef") == "utf-16-le", "9 of 24 are more than a third"
    assert encoding_of(b"a\0" * 8 + b"abcdefgh") == "utf-8", "8 of 24 are a third and no more"
    assert encoding_of(b"\0a" * 9 + b"abcdef") == "utf-16-be"
    assert encoding_of(b"\0a" * 8 + b"abcdefgh") == "utf-8"


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (HEADER, 0), ("loss 0.5" + HEADER, 8), ("x" + HEADER, 1), ("ID,Process ID,Kernel Name\n", 0), (" ID,Process ID\n", -1),
        ('"Process ID","Process Name"\n', 0), ("Process ID,Process Name", 0), ("x Process ID,Process Name", -1), ("", -1),
    ],
)  # fmt: skip
def test_a_header_is_found_behind_output_only_where_its_cells_are_quoted(line: str, at: int) -> None:
    assert header_at(line) == at


def test_what_stands_before_the_header_goes_to_the_log() -> None:
    log = Log()
    source = iter(["==PROF== Connected\n", "  Section: A\n", "loss 1 " + HEADER, ROW])
    assert skip_to_header(source, log) == HEADER
    assert next(source) == ROW
    assert (log.tool_lines, log.console_lines, log.first_line) == ({("PROF", "Connected"): 1}, 1, "==PROF== Connected")
    assert skip_to_header(iter(["\n"]), log) is None


def test_the_log_counts_what_is_said_again_and_the_pieces_of_a_progress_bar() -> None:
    log = Log()
    log.add(" \r==PROF== 0%\r==PROF== 50%\r==PROF== 50%\r \n")
    log.add("==ERROR==no blank\n")
    log.add("    ---------------------- ------ -----\n")
    assert log.tool_lines == {("PROF", "0%"): 1, ("PROF", "50%"): 2, ("ERROR", "no blank"): 1}
    assert (log.first_line, log.console_lines) == ("==PROF== 0%", 1)


def test_the_log_keeps_a_thousand_different_lines_and_goes_on_counting_those() -> None:
    log = Log()
    for number in (*range(1001), 0, 1000):
        log.add(f"==PROF== {number}")
    assert len(log.tool_lines) == 1000
    assert (log.tool_lines["PROF", "0"], log.tool_lines["PROF", "999"], log.tool_lines["PROF", "1000"]) == (2, 1, 0)


def test_a_line_that_is_too_long_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_lines, "LINE_LIMIT", 8)
    log = Log()
    text = "1234567\n" + "12345678\n" + "short\n" + "x" * 40 + "\nlast"
    assert list(lines(io.StringIO(text), log)) == ["1234567\n", "short\n", "last"]
    assert log.cut_rows == 2
    assert list(lines(io.StringIO("1234567"), log)) == ["1234567"]
    assert list(lines(io.StringIO("12345678"), log)) == []
    assert log.cut_rows == 3


def test_the_end_of_a_file_is_read_where_the_file_is_longer_than_its_head(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = "".join(f"{number:06}\n" for number in range(5000))
    path.write_text(text)
    head = text.encode()[:1000]
    assert tail_of(path, head) == text[-16384:]
    assert tail_of(path, text.encode()) == ""
    assert tail_of(path, text.encode()[:-1]) == text[-16384:]
    assert tail_of(tmp_path / "missing", head) == ""
    path.write_bytes(b"\xef\xbb\xbfab" + "é".encode())
    assert tail_of(path, b"\xef\xbb\xbfa") == "\ufeffabé"
    path.write_bytes(text.encode("utf-16-le"))
    assert tail_of(path, text.encode("utf-16-le")[:1000]) == text[-8192:]


def test_a_file_is_opened_in_its_encoding_and_keeps_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes((HEADER[:-1] + "\r\n" + ROW).encode(encoding))
        with open_text(path) as file:
            assert list(file) == [HEADER[:-1] + "\r\n", ROW], encoding
    path.write_bytes(b"k\xff\n")
    with open_text(path) as file:
        assert file.read() == "k\ufffd\n"


def rows(*source: str, quoted: bool = True) -> tuple[list[str], Log]:
    log = Log()
    return list(Rows(iter(source), log, quoted=quoted)), log


def test_a_cell_with_line_breaks_is_one_row() -> None:
    found, log = rows('"0","7","a\n', "b\n", 'c","x"\n', ROW)
    assert found == ['"0","7","a\nb\nc","x"\n', ROW]
    assert log.cut_rows == 0


def test_a_row_that_is_cut_off_does_not_swallow_the_next() -> None:
    found, log = rows('"0","7","cut\n', ROW, '"1","7","cut')
    assert (found, log.cut_rows) == ([ROW], 2)


@pytest.mark.parametrize(("limit", "given_up"), [(22, 1), (23, 0)])
def test_a_row_that_never_ends_is_given_up(limit: int, given_up: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_lines, "ROW_LIMIT", limit)
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


def test_bare_cells_are_rows_where_the_header_has_bare_cells() -> None:
    found, log = rows("0,7,gemm\n", "no comma\n", "==PROF== a, b\n", quoted=False)
    assert found == ["0,7,gemm\n"]
    assert (log.first_line, log.tool_lines) == ("no comma", {("PROF", "a, b"): 1})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('"a","b"\r\n', ["a", "b"]), ('"a","b",\r\n', ["a", "b"]), ('"a","",\n', ["a", ""]), ('"a"', ["a"]), ("a,b,", ["a", "b", ""]),
        ('"a","say ""x"", y","c"\n', ["a", 'say "x", y', "c"]), ('"a","x\ny"\n', ["a", "x\ny"]), ('"a",b,"c"', ["a", "b", "c"]),
    ],
)  # fmt: skip
def test_cells_are_what_the_csv_module_says(row: str, expected: list[str]) -> None:
    assert cells(row) == expected
