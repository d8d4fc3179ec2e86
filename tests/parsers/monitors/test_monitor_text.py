"""Logs of monitors as files: one that was joined to itself is refused, and so is one that does not
fit into memory."""

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
    "query": (HEADER + QUERY, 1),
    "dmon": (
        DMON + "".join(f" 20240305   10:00:0{second}      0    70\n" for second in range(5)),
        1,
    ),
    "DCGM": (
        DCGM + "".join(f"0,170963280{second}000000,power_usage,70.5\n" for second in range(5)),
        1,
    ),
    "of a job": ("job 7 on node 3\n\n" + HEADER + QUERY, 1),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_stands_in_a_file_twice_is_refused_with_the_line_where_it_begins_again(
    tmp_path: Path, name: str
) -> None:
    text, first = LOGS[name]
    (tmp_path / "once.csv").write_text(text)
    (tmp_path / "twice.csv").write_text(text * 2)
    assert len(list(parse(tmp_path / "once.csv").samples)) == 5
    with pytest.raises(
        ReportError, match=rf"twice \(again at line {text.count(chr(10)) + first}\b"
    ):
        parse(tmp_path / "twice.csv")


def test_rounds_with_headers_of_their_own_are_one_log(tmp_path: Path) -> None:
    rounds = "".join(HEADER + line for line in QUERY.splitlines(keepends=True))
    (tmp_path / "smi.csv").write_text(rounds)
    assert len(list(parse(tmp_path / "smi.csv").samples)) == 5


def test_readings_of_one_second_that_are_alike_are_one_log(tmp_path: Path) -> None:
    alike = " 20240305   10:00:00      0    70\n"
    (tmp_path / "smi.txt").write_text((DMON + alike) * 4)
    assert len(list(parse(tmp_path / "smi.txt").samples)) == 4


def test_a_log_of_too_many_lines_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "LINES", 4)
    (tmp_path / "smi.csv").write_text(HEADER + QUERY)
    with pytest.raises(ReportError, match=r"more than 4 lines.*head, tail"):
        parse(tmp_path / "smi.csv")
    (tmp_path / "smi.csv").write_text(HEADER + "".join(QUERY.splitlines(keepends=True)[:3]))
    assert len(list(parse(tmp_path / "smi.csv").samples)) == 3


def begins_again(tmp_path: Path, lines: list[str]) -> int | None:
    """The line from which the log is said to stand in the file twice."""
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    try:
        list(MonitorText(path, "nvidia-smi"))
    except ReportError as error:
        return int(error.reason.partition("at line ")[2].partition(")")[0])
    return None


A, B, C, D = (f"10:00:0{second} 1 %" for second in range(4))


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["head", A, B, C, "head", A, B], 5),
        (["head", A, B, C, "", "head", "", A, B], 6),  # blank lines are none, but count
        (["head", A, B, C, "head", "head", A, B], 6),  # the first of these two began nothing
        (["head", A, B, C, "head", A, C, D, "head", A, B, C], 9),
        (["head", A, B, C, "head", A, C, D], None),
        (["head", A, B, C, "head", A], None),
        (["head", A, B, A, "head", A, B], None),  # no other time came between
        # a clock that was set back shows another time too
        (["head", C, "x", A, "head", C, "x"], 5),
        (["head", "more", A, B, "head", "more", A], 5),
        ([A, B, C, D, A, B, C], 5),
        (["1709632800000000 1", "x", "y", "1709632800000001 1", "1709632800000000 1", "x", "y"], 5),
        # 15 digits
        (["170963280000000 1", "x", "y", "170963280000001 1", "170963280000000 1", "x", "y"], None),
        (["10:00:00.250 1", "x", "y", "10:00:00.750 1", "10:00:00.250 1", "x", "y"], 5),
        ([*map(str, range(11)), A, B, *map(str, range(11)), A], 14),
        # no time among the first twelve
        ([*map(str, range(12)), A, B, *map(str, range(12)), A, B], None),
        (["h" * 152 + A[:8], B, C, D, "h" * 152 + A[:8], B, C], 5),
        # a time beyond 160 characters is none
        (["h" * 153 + A[:8], "x", "y", D, "h" * 153 + A[:8], "x", "y"], None),
    ],
)
def test_a_log_begins_again_where_its_first_lines_come_after_another_time(
    tmp_path: Path, lines: list[str], line: int | None
) -> None:
    assert begins_again(tmp_path, lines) == line


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
        Diagnostic("info", "perfctl", f"6 of 6 lines are not readings, for example {shown}")
    ]


def test_lines_come_without_their_ends_and_a_last_one_that_is_cut_is_told(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"a \r\n\nb\0\nc\n")
    text = MonitorText(tmp_path / "log.txt", "nvidia-smi")
    assert list(text) == ["a ", "", "c"]
    assert text.ends_whole
    assert "1 of 4 lines are not readings, for example 'b?'" in text.diagnostics()[0].text
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


def moments(readings: Readings) -> list[int]:
    return [sample.at_ns for sample in readings.samples]


def reason_of(readings: Readings) -> str | None:
    return next((gap.reason for gap in readings.gaps() if gap.quantity == "sample.at_ns"), None)


NO_ZONE = Diagnostic("warning", "perfctl", "the timestamps have no time zone and were read as UTC")


def test_stamps_have_a_start_and_a_length_whatever_their_order() -> None:
    assert (Readings().started_at, Readings().span) == (None, None)
    seconds = (4 * 10**9, 10**9, 3 * 10**9)
    readings = timed(*(Stamp(ns, zoned=True) for ns in seconds), interval_ns=5)
    assert moments(readings) == list(seconds)
    assert (readings.started_at, readings.span) == ("1970-01-01T00:00:01Z", (10**9, 4 * 10**9))
    assert (reason_of(readings), readings.diagnostics()) == (None, [])


def test_one_stamp_without_a_zone_leaves_the_start_unknown_and_says_how_it_was_taken() -> None:
    readings = timed(Stamp(10**9, zoned=True), Stamp(3 * 10**9, zoned=False))
    assert (readings.started_at, readings.span) == (None, (10**9, 3 * 10**9))
    assert (reason_of(readings), readings.diagnostics()) == (None, [NO_ZONE])


@pytest.mark.parametrize(
    ("interval_ns", "counted", "reason"),
    [
        (
            250,
            [0, 250, 500],
            (
                "no timestamps: times were counted from the first reading with the stated interval "
                "of 250 ns"
            ),
        ),
        (None, [0, 1, 2], "no timestamps: the value is the number of the reading, not a time"),
    ],
)
def test_readings_without_stamps_are_counted(
    interval_ns: int | None, counted: list[int], reason: str
) -> None:
    readings = timed(None, None, None, Stamp(10**9, zoned=True), interval_ns=interval_ns)
    assert moments(readings) == [*counted, 10**9]
    assert reason_of(readings) == reason
    assert (readings.started_at, readings.span, readings.diagnostics()) == (None, None, [])


def test_times_of_day_are_no_start_and_their_missing_date_is_the_gap() -> None:
    readings = timed(Stamp(10**9, zoned=False), Stamp(4 * 10**9, zoned=False))
    readings.since_midnight = True
    assert (readings.started_at, readings.span) == (None, (10**9, 4 * 10**9))
    assert readings.diagnostics() == []
    assert reason_of(readings) == (
        "times of day without a date: times count from the first midnight"
    )
