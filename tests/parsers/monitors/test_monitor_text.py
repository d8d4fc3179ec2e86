"""Logs of monitors as files: one that was joined to itself takes no longer, and one that does not
fit into memory is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common import lines as text_lines
from perfctl.parsers.common.lines import head_lines
from perfctl.parsers.common.numbers import Stamp
from perfctl.parsers.common.tables import Column
from perfctl.parsers.monitors.readings import MonitorText, Readings
from perfctl.records.report import Diagnostic

HEADER = "timestamp, index, utilization.gpu [%]\n"
QUERY = "".join(f"2024/03/05 10:00:0{second}.250, 0, 40 %\n" for second in range(5))
DMON = "#Date       Time        gpu   pwr\n#YYYYMMDD   HH:MM:SS    Idx     W\n"
DCGM = "GPUId,TimeStampUs,Field,Values\n"
LOGS = {
    "dmon": DMON + "".join(f" 20240305   10:00:0{second}      0    70\n" for second in range(5)),
    "DCGM": DCGM + "".join(f"0,170963280{second}000000,power_usage,70.5\n" for second in range(5)),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_stands_in_a_file_twice_takes_no_longer_than_once(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOGS[name])
    once = parse(path)
    assert len(list(once.samples)) == 5
    path.write_text(LOGS[name] * 2)
    assert parse(path).duration_ns == once.duration_ns


def test_a_log_of_too_many_lines_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    tmp_path: Path, command: str, interval_ns: int | None
) -> None:
    text = MonitorText(tmp_path / "log.txt", "nvidia-smi")
    text.stray(command)
    assert text.interval_ns == interval_ns
    text.stray("nvidia-smi dmon -d 7")
    assert text.interval_ns == (interval_ns or 7 * 10**9)


def test_five_strays_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    text = MonitorText(tmp_path / "log.txt", "nvidia-smi")
    assert text.diagnostics() == []
    for line in ("  one\t2 ", "x" * 161, "b\0ad", "four", "five", "six"):
        text.stray(line)
    shown = f"'one?2'; '{'x' * 160}'; 'b?ad'; 'four'; 'five'"
    assert text.diagnostics() == [
        Diagnostic("info", "perfctl", f"6 of 6 lines are not samples, such as {shown}")
    ]


def test_lines_come_without_their_ends_and_a_last_one_that_is_cut_is_told(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"a \r\n\nb\0\nc\n")
    text = MonitorText(tmp_path / "log.txt", "nvidia-smi")
    assert list(text) == ["a ", "", "c"]
    assert text.ends_whole
    assert "1 of 4 lines are not samples, such as 'b?'" in text.diagnostics()[0].text
    (tmp_path / "log.txt").write_bytes(b"a\nb")
    text = MonitorText(tmp_path / "log.txt", "nvidia-smi")
    assert list(text) == ["a", "b"]
    assert not text.ends_whole


def test_a_kind_is_told_from_the_first_400_lines_without_nul() -> None:
    found = head_lines(b"".join(b"%d\n" % n if n != 7 else b"\0\n" for n in range(500)))
    assert found == [str(n) for n in range(400) if n != 7]


def timed(*stamps: Stamp | None, interval_ns: int | None = None) -> Readings:
    readings = Readings(interval_ns)
    for number, stamp in enumerate(stamps):
        readings.add(stamp, number, 0, [(Column("power.draw", "W", "power_w"), "50")])
    return readings


def reason_of(readings: Readings) -> str | None:
    return next((gap.reason for gap in readings.gaps() if gap.quantity == "sample.at_ns"), None)


NO_ZONE = Diagnostic(
    "warning", "perfctl", "the timestamps have no time zone; perfctl read them as UTC"
)


def test_one_stamp_without_a_zone_leaves_the_start_unknown_and_says_how_it_was_taken() -> None:
    readings = timed(Stamp(10**9, zoned=True), Stamp(3 * 10**9, zoned=False))
    assert (readings.started_at, readings.span) == (None, (10**9, 3 * 10**9))
    assert (reason_of(readings), readings.diagnostics()) == (None, [NO_ZONE])
