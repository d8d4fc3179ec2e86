"""Logs of monitors as files: one that was joined to itself takes no longer, one that does not fit
into memory is refused, and damaged ones never break a parser."""

from __future__ import annotations

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common import lines as text_lines
from perfctl.parsers.common.lines import decode_head_lines
from perfctl.parsers.monitors import dcgm
from perfctl.parsers.monitors.readings import MonitorTextFile
from perfctl.records.report import Diagnostic
from tests.make.files import read, write

HEADER = "timestamp, index, utilization.gpu [%]\n"
QUERY = "".join(f"2024/03/05 10:00:0{second}.250, 0, 40 %\n" for second in range(5))
DMON = "#Date       Time        gpu   pwr\n#YYYYMMDD   HH:MM:SS    Idx     W\n"
DCGM = "GPUId,TimeStampUs,Field,Values\n"
LOGS = {
    "dmon": DMON + "".join(f" 20240305   10:00:0{second}      0    70\n" for second in range(5)),
    "DCGM": DCGM + "".join(f"0,170963280{second}000000,power_usage,70.5\n" for second in range(5)),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_stands_in_a_file_twice_takes_no_longer_than_once(tmp_path, name):
    path = write(tmp_path / "log.csv", LOGS[name])
    once = parse(path)
    assert len(list(once.samples)) == 5
    path.write_text(LOGS[name] * 2)
    assert parse(path).duration_ns == once.duration_ns


@pytest.mark.parametrize("name", LOGS)
def test_a_log_with_a_hole_of_nul_bytes_is_told_to_be_incomplete(tmp_path, name):
    report = read(tmp_path, LOGS[name] + "\0" * 200)
    assert len(report.samples) == 5
    assert [gap.quantity for gap in report.gaps if gap.state == "unreadable"] == ["sample"]


def test_a_log_of_too_many_lines_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LINES", 4)
    (tmp_path / "smi.csv").write_text(HEADER + QUERY)
    with pytest.raises(ReportError, match=r"more than 4 lines.*head, tail"):
        parse(tmp_path / "smi.csv")
    (tmp_path / "smi.csv").write_text(HEADER + "".join(QUERY.splitlines(keepends=True)[:3]))
    assert len(list(parse(tmp_path / "smi.csv").samples)) == 3


@pytest.mark.parametrize(
    ("command", "interval_ns"),
    [
        ("$ nvidia-smi dmon -s pum -d 5", 5 * 10**9),
        ("nvidia-smi pmon --delay 4 -c 3", 4 * 10**9),
        ("nvidia-smi --query-gpu=power.draw --format=csv -l 2", 2 * 10**9),
        ("nvidia-smi --query-gpu=power.draw -lms 200", 200 * 10**6),
        ("nvidia-smi --query-gpu=x --loop=3", 3 * 10**9),
        ("nvidia-smi --query-gpu=x --loop-ms=50", 50 * 10**6),
        ("nvidia-smi -i 0 dmon -d 1", 10**9),
        ("dcgmi dmon -e 203 -d 100", 100 * 10**6),
        ("dcgmi dmon --delay=1000", 10**9),
        ("dcgmi dmon -d 0", None),
        ("nvidia-smi dmon -d 0", None),
        ("nvidia-smi -q -l 2", None),
        ("sleep 5; nvidia-smi", None),
        ("nvidia-smi dmon -s pum | grep -d 5", None),
        ("nvidia-smi dmon -d 5".ljust(499, "."), 5 * 10**9),
        ("nvidia-smi dmon -d 5".ljust(500, "."), None),
    ],
)
def test_the_command_that_stands_in_a_log_states_the_time_between_readings(
    tmp_path, command, interval_ns
):
    text = MonitorTextFile(tmp_path / "log.txt", "nvidia-smi")
    text.record_stray_line(command)
    assert text.interval_ns == interval_ns
    text.record_stray_line("nvidia-smi dmon -d 7")
    assert text.interval_ns == (interval_ns or 7 * 10**9)


def test_five_strays_are_shown_and_all_are_counted(tmp_path):
    text = MonitorTextFile(tmp_path / "log.txt", "nvidia-smi")
    assert list(text.make_skipped_lines_diagnostics()) == []
    for line in ("  one\t2 ", "x" * 161, "b\0ad", "four", "five", "six"):
        text.record_stray_line(line)
    shown = f"'one?2'; '{'x' * 160}'; 'b?ad'; 'four'; 'five'"
    assert list(text.make_skipped_lines_diagnostics()) == [
        Diagnostic("info", "perfctl", f"6 of 6 lines are not samples, such as {shown}")
    ]


def test_lines_come_without_their_ends_and_a_last_one_that_is_cut_is_told(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"a \r\n\nb\0\nc\n")
    text = MonitorTextFile(tmp_path / "log.txt", "nvidia-smi")
    assert list(text) == ["a ", "", "c"]
    assert text.ends_whole
    assert (
        "1 of 4 lines are not samples, such as 'b?'"
        in next(text.make_skipped_lines_diagnostics()).text
    )
    (tmp_path / "log.txt").write_bytes(b"a\nb")
    text = MonitorTextFile(tmp_path / "log.txt", "nvidia-smi")
    assert list(text) == ["a", "b"]
    assert not text.ends_whole


def test_a_kind_is_told_from_the_first_400_lines_without_nul():
    found = decode_head_lines(b"".join(b"%d\n" % n if n != 7 else b"\0\n" for n in range(500)))
    assert found == [str(n) for n in range(400) if n != 7]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2024/03/05 10:00:00.500, 40, 100, 1000\n", "header line above the rows"),
        ("timestamp, index, name, utilization.gpu [%]\n", "no complete row below it"),
        ("index, pstate, timestamp\n0, P0, 2024/03/05 10:00:01.2", "no complete row fits"),
        ("# gpu   pwr    sm\n# Idx     W     %\n", "header of dmon or pmon has no complete row"),
        ("# gpu sm fb\n0 1\n", "header of dmon or pmon has no complete row"),
        ("# Time sm gpu\n10:00:01 60 1", "header of dmon or pmon has no complete row"),
        ("| NVIDIA-SMI 545.23.08   Driver Version: 545.23.08 |\n", "no complete row of a GPU"),
        (DCGM, "no complete sample"),
    ],
)
def test_a_log_without_a_complete_reading_is_refused(tmp_path, text, reason):
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, text)


# DCGM's two forms: tests/data/dcgm-synthetic (made up) and the real long CSV


@pytest.mark.parametrize(
    "text",
    [
        "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,gpu_temp,40\n{}\n",
        "#Entity TMPTR\nGPU 0 40\n{}\n",
    ],
)
def test_a_line_of_4096_characters_is_nobody_s_reading(tmp_path, text):
    last = text.splitlines()[1]
    found = [
        list(read(tmp_path, text.format(last.replace("40", "50").ljust(length))).samples)
        for length in (4095, 4096)
    ]
    assert [samples[-1].temperature_c for samples in found] == [50, 40]
    assert len(list(read(tmp_path, text.format(last.ljust(5000))).samples)) == 1


def test_a_file_without_a_header_is_refused(tmp_path):
    with pytest.raises(ReportError, match="the DCGM header has no complete sample below it"):
        dcgm.parse(write(tmp_path / "d.csv", "GPU 0 40\n"))
