"""What coverage-guided fuzzing (``make fuzz``) once found, kept small."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.ncu import csv as ncu_csv

ROW = '"0","42","a","127.0.0.1","gemm(int)","1","7"'


@pytest.mark.parametrize(("column", "cell"), [("", ""), (',"CC"', ',"8.0"')])
def test_an_ncu_header_whose_metric_stands_after_the_value_cuts_short_rows(
    tmp_path: Path, column: str, cell: str
) -> None:
    """A row that reached the value, but not the metric, was an IndexError; so was one that the
    launch ends."""
    path = tmp_path / "r.csv"
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"'
    columns = f'"Section Name","Metric Value","Metric Unit","Metric Name"{column}'
    whole = f'"Launch Statistics","256","","Block Size"{cell}'
    path.write_text(f'{header},{columns}\n{ROW},"Launch Statistics","256"\n{ROW},{whole}\n')
    report = ncu_csv.parse(path)
    assert [(counter.name, counter.value) for counter in report.counters] == [("Block Size", 256)]
