"""Reports that are text: encodings, lines, what was put around them, and JSON that is read at once."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common import json as text_json
from perfctl.parsers.common import lines as text_lines
from perfctl.parsers.common.json import read_json_file
from perfctl.parsers.common.lines import (
    LineReader,
    SurroundingLines,
    apply_decoration_removers,
    guess_encoding,
    open_undecorated_text,
    read_beginning_and_end,
)
from perfctl.parsers.common.pasted import find_decoration_removers
from tests.make.files import write
from tests.make.texts import ONCE


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        (b"", "utf-8"),
        (b"a\0b", "utf-8"),
        (b"\xef\xbb\xbfID", "utf-8-sig"),
        (b"\xff\xfeI\0", "utf-16"),
        (b"\xfe\xff\0I", "utf-16"),
        ("ID".encode("utf-16-le"), "utf-16-le"),
        ("ID".encode("utf-16-be"), "utf-16-be"),
        (b"plain", "utf-8"),
        (b"ab\0c\0d", "utf-8"),
        (b"a\0b\0cd", "utf-8"),
        (b"a\0b\0c\0", "utf-16-le"),
        (b"\0a\0", "utf-8"),
        # 9 of 24 zeros are more than a third, 8 are not
        (b"a\0" * 9 + b"abcdef", "utf-16-le"),
        (b"a\0" * 8 + b"abcdefgh", "utf-8"),
        (b"\0a" * 9 + b"abcdef", "utf-16-be"),
        (b"\0a" * 8 + b"abcdefgh", "utf-8"),
        (b"a\0" * 256 + b"plain" * 300, "utf-16-le"),
        (b"plain!!!" * 64 + b"a\0" * 900, "utf-8"),
    ],
)
def test_the_encoding_shows_in_the_first_bytes(head, encoding):
    assert guess_encoding(head) == encoding


def test_the_log_counts_what_is_said_again_and_the_pieces_of_a_progress_bar():
    log = SurroundingLines()
    log.add_non_csv_line(" \r==PROF== 0%\r==PROF== 50%\r==PROF== 50%\r \n")
    log.add_non_csv_line("==ERROR==no blank\n")
    assert log.tool_lines == {("PROF", "0%"): 1, ("PROF", "50%"): 2, ("ERROR", "no blank"): 1}
    assert log.first_line == "==PROF== 0%"


def test_the_log_keeps_the_first_thousand_characters_of_a_line_and_two_thousand_of_a_message():
    log = SurroundingLines()
    log.add_non_csv_line("  " + "f" * 1500)
    log.add_non_csv_line("==WARNING==  " + "w" * 2500)
    assert log.first_line == "f" * 998, "the blanks count among the thousand"
    assert log.tool_lines == {("WARNING", "w" * 2000): 1}


def test_the_log_keeps_a_thousand_different_lines_and_goes_on_counting_those():
    log = SurroundingLines()
    for number in (*range(1001), 0, 1000):
        log.add_non_csv_line(f"==PROF== {number}")
    assert len(log.tool_lines) == 1000
    assert (
        log.tool_lines["PROF", "0"],
        log.tool_lines["PROF", "999"],
        log.tool_lines["PROF", "1000"],
    ) == (2, 1, 0)


def test_a_line_that_is_too_long_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(text_lines, "LINE_LIMIT", 8)
    text = "1234567\n" + "12345678\n" + "short\n" + "x" * 40 + "\nlast"
    for block in range(1, 9):
        monkeypatch.setattr(text_lines, "BLOCK", block)
        log = SurroundingLines()
        assert list(LineReader(io.StringIO(text).read, log)) == ["1234567\n", "short\n", "last"]
        assert log.cut_rows == 2
        assert list(LineReader(io.StringIO("1234567").read, log)) == ["1234567"]
        assert list(LineReader(io.StringIO("12345678").read, log)) == []
        assert log.cut_rows == 3
        assert list(LineReader(io.StringIO("1\n" + "x" * 30 + "\n").read, log)) == ["1\n"]
        assert list(LineReader(io.StringIO("").read, log)) == []
        assert log.cut_rows == 4


@given(st.text("ab\r\n", max_size=60), st.integers(1, 70))
def test_lines_are_those_of_the_file_however_it_is_read(text, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        assert list(LineReader(io.StringIO(text, newline="\n").read, SurroundingLines())) == list(
            io.StringIO(text, newline="\n")
        )


@given(
    st.lists(st.sampled_from(["a,1\n", "a,2\r\n", "b\n", "\n", "a\n", "a,"]), max_size=12),
    st.integers(1, 40),
)
def test_lines_with_one_beginning_are_taken_together_and_no_other_is(parts, block):
    text = "".join(parts)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        source = LineReader(io.StringIO(text, newline="\n").read, SurroundingLines())
        for line in source:
            found.append(line)
            found += [f"a,{rest}\n" for rest in source.pop_suffixes_after_prefix("a,")]
            assert not source.pop_suffixes_after_prefix("a,"), "all that are read are taken"
    assert "".join(found) == text


def test_a_run_ends_at_the_first_line_that_begins_otherwise():
    source = LineReader(io.StringIO("a,1\na,2\na,\nb\na,3\na,4").read, SurroundingLines())
    assert (next(source), source.pop_suffixes_after_prefix("a,")) == ("a,1\n", ["2", ""])
    assert (source.pop_suffixes_after_prefix("a,"), next(source)) == ([], "b\n")
    assert source.pop_suffixes_after_prefix("a,") == ["3"], (
        "the last has no end, and may be cut off"
    )
    assert list(source) == ["a,4"]


def end_of(path, head):
    """Return what is read of the end of a file with this beginning."""
    _, end = read_beginning_and_end(path, head)
    return end


def test_the_end_of_a_file_is_read_where_the_file_is_longer_than_its_head(tmp_path):
    path = tmp_path / "log"
    text = "".join(f"{number:06}\n" for number in range(5000))
    path.write_text(text)
    head = text.encode()[:1000]
    assert end_of(path, head) == text[-16384:]
    assert end_of(path, text.encode()) == ""
    path.write_text(text + "x")
    assert end_of(path, head) == text[-16384:] + "x", (
        "from an even byte on, where UTF-16 has whole characters"
    )
    path.write_text(text)
    assert end_of(path, text.encode()[:-1]) == text[-16384:]
    assert end_of(tmp_path / "missing", head) == ""
    path.write_bytes(b"\xef\xbb\xbfab" + "é".encode())
    assert end_of(path, b"\xef\xbb\xbfa") == "\ufeffabé"
    path.write_bytes(text.encode("utf-16-le"))
    assert end_of(path, text.encode("utf-16-le")[:1000]) == text[-8192:]


def test_a_file_is_opened_in_its_encoding_and_keeps_its_line_ends(tmp_path):
    path = tmp_path / "r.csv"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes("first\r\nsecond\n".encode(encoding))
        with open_undecorated_text(path) as read:
            assert list(LineReader(read, SurroundingLines())) == ["first\r\n", "second\n"], encoding
    path.write_bytes(b"k\xff\n")
    with open_undecorated_text(path) as read:
        assert read(100) == "k\ufffd\n"


@pytest.mark.parametrize(
    "head", [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"a\0b\0c\0", b"\0a\0b\0c"]
)
@given(
    parts=st.lists(
        st.sampled_from([b"a", b"\r\n", b"\xc3\xa9", b"\xe2\x82\xac", b"\xc3", b"\0", b"\xd8\0"])
    ),
    block=st.integers(1, 9),
)
def test_blocks_of_text_are_those_of_the_file_wherever_a_character_is_parted(
    tmp_path_factory, head, parts, block
):
    path = write(tmp_path_factory.getbasetemp() / "blocks.txt", head + b"".join(parts))
    with open_undecorated_text(path) as read:
        found = list(iter(lambda: read(block), ""))
        assert read(block) == "", "at the end it stays there"
    with path.open(
        encoding=guess_encoding(path.read_bytes()), errors="replace", newline="\n"
    ) as whole:
        expected = whole.read()
    assert "".join(found) == (expected.replace("\r", "\n") if "\n" not in expected else expected)
    assert all(0 < len(text) <= block + 2 for text in found)


# Reports that went through other systems: CR alone ends their lines, or JSON is UTF-16


SMI = "timestamp, index, utilization.gpu [%]\n" + "".join(
    f"2024/03/05 10:00:0{n}.250, 0, {n} %\n" for n in range(5)
)
TEXTS = {**ONCE, "nvidia-smi": SMI, "dmon": "# gpu sm\n0 5\n0 6\n"}


def held(report):
    """The report with its rows as lists and without its place."""
    rows: dict[str, Any] = {
        name: list(getattr(report, name))
        for name in ("kernels", "counters", "copies", "operations", "samples", "op_calls")
    }
    return replace(report, path=Path(), **rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("form", TEXTS)
def test_lines_that_end_with_cr_alone_read_as_lines(form, encoding, tmp_path):
    (tmp_path / "report.csv").write_text(TEXTS[form], newline="")
    plain = held(parse(tmp_path / "report.csv"))
    (tmp_path / "report.csv").write_text(
        TEXTS[form].replace("\n", "\r"), encoding=encoding, newline=""
    )
    assert held(parse(tmp_path / "report.csv")) == plain


# What was put around the lines of a tool is taken off, wherever in the text it begins


NCU = """\
==PROF== Connected to process 7 (/bin/a)
  gemm(float *) (8, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    OPT   This kernel exhibits low throughput.
          See the section below.
    Section: Launch Statistics
    Grid Size                 8
"""
TABLE = '==PROF== Connected\nID;Kernel Name;Metric Value\n0;"k(int, int)";{}\n1;k;{}\n'


def before_lines(prefix):
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(before_lines("[rank0]: "), id="torch's rank"),
        pytest.param(before_lines("[default0]: "), id="torchrun's rank"),
        pytest.param(before_lines("[1,0]<stdout>: "), id="mpirun's rank"),
        pytest.param(before_lines("[2026-11-20 21:06:57] "), id="a timestamp in brackets"),
        pytest.param(before_lines("    "), id="a block of code"),
        pytest.param(before_lines(" " * 10), id="a block of code in a list"),
        pytest.param(before_lines(">     "), id="a quoted block of code"),
    ],
)
def test_ncus_text_is_as_it_was_printed(wrap):
    assert apply_decoration_removers(wrap(NCU), find_decoration_removers(wrap(NCU))) == NCU


def test_semicolons_below_the_lines_of_a_tool_become_commas():
    text = TABLE.format("1.024,5", "8,25")
    expected = '==PROF== Connected\nID,Kernel Name,Metric Value\n0,"k(int, int)",1024.5\n1,k,8.25\n'
    assert apply_decoration_removers(text, find_decoration_removers(text)) == expected


@pytest.mark.parametrize("text", ['[\n{"name": "a; b; c",\n "ph": "X; d; e"}]', '[1,0,"x"]\n'])
def test_json_is_left_as_it_is(text):
    assert find_decoration_removers(text) == ()


# JSON that is read at once


def test_a_file_too_long_to_be_read_at_once_is_refused_before_it_is_read(tmp_path, monkeypatch):
    assert text_json.LIMIT == 64 * 1024 * 1024
    path = write(tmp_path / "record.json", '{"steps": [1, 2, NaN]}'.replace(" ", "", 2))
    monkeypatch.setattr(text_json, "LIMIT", 20)
    assert read_json_file(path, "workload", "Run it again") == {"steps": [1, 2, "NaN"]}, (
        "numbers that are none stay texts"
    )
    monkeypatch.setattr(text_json, "LIMIT", 19)
    with pytest.raises(ReportError, match=r"20 bytes of JSON exceed the limit\. Run it again"):
        read_json_file(path, "workload", "Run it again")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"steps": [1, 2', "the JSON is incomplete"),
        (b"[" * 100_000, "the JSON is incomplete"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_do(tmp_path, content, reason):
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError, match=rf"record.json: .*{reason}.*Run it again") as caught:
        read_json_file(path, "workload", "Run it again")
    assert caught.value.tool == "workload"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_json_is_read_in_its_encoding(encoding, tmp_path):
    path = write(tmp_path / "record.json", '{"network": "plain"}'.encode(encoding))
    assert read_json_file(path, "workload", "Run it again") == {"network": "plain"}
    path.write_bytes(b'{"network": "\xff"}')
    assert read_json_file(path, "workload", "Run it again") == {"network": "\ufffd"}
