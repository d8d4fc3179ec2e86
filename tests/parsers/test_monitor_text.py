"""Logs of monitors as files: one that was joined to itself is refused, and so is one that does not fit into memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, monitor_text, parse

HEADER = "timestamp, index, utilization.gpu [%]\n"
QUERY = "".join(f"2024/03/05 10:00:0{second}.250, 0, 40 %\n" for second in range(5))
DMON = "#Date       Time        gpu   pwr\n#YYYYMMDD   HH:MM:SS    Idx     W\n"
DCGM = "GPUId,TimeStampUs,Field,Values\n"
LOGS = {
    "query": (HEADER + QUERY, 1),
    "query without header": (QUERY, 1),
    "dmon": (DMON + "".join(f" 20240305   10:00:0{second}      0    70\n" for second in range(5)), 1),
    "DCGM": (DCGM + "".join(f"0,170963280{second}000000,power_usage,70.5\n" for second in range(5)), 1),
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
    with pytest.raises(ReportError, match=rf"twice, the second time from line {text.count(chr(10)) + first}\b"):
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
    monkeypatch.setattr(monitor_text, "LINES", 4)
    (tmp_path / "smi.csv").write_text(HEADER + QUERY)
    with pytest.raises(ReportError, match=r"more than 4 lines.*head, tail"):
        parse(tmp_path / "smi.csv")
