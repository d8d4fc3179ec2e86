"""The store's door: what cannot be is NULL with a gap; a row that cannot do without it is left out,
and counted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.records.report import (
    Copy,
    Counter,
    Device,
    Kernel,
    Range,
    Report,
    Sample,
    Step,
    Summary,
)

_LAST = 1 << 62
_TEN_YEARS = 10 * 365 * 86_400 * 10**9


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """One run with one good and some impossible rows of each kind."""
    path = tmp_path / "s.db"
    report = Report(
        tool="nsys",
        form="test",
        path=tmp_path / "r",
        devices=(Device("G", "gpu", sm_count=-1, memory_bytes=80 << 30),),
        ranges=(
            Range(0, "outer", None, 0, 10, 1, 0, None),
            Range(1, "gone", None, _LAST + 1, 5, 1, 1, 0),
            Range(2, "inner", None, -5, 5, 1, 2, 1),
        ),
        kernels=(
            Kernel(0, "k", start_ns=-_TEN_YEARS, range_number=1),
            Kernel(1, "k", start_ns=_LAST + 1, duration_ns=3),
        ),
        counters=(
            Counter(0, "good", 0, None),
            Counter(0, "negative", -1, None),
            Counter(1, "endless", inf, None),
        ),
        copies=(Copy("HtoD", 5, _LAST, 1), Copy("HtoD", -5, -_TEN_YEARS - 1, 1)),
        samples=(
            Sample(1, 1.0, None, None, 0.0, -40.0, None),
            Sample(2, 1.5, None, None, -1.0, 5000.0, None),
            Sample(_LAST + 1, 0.5, None, None, None, None, None),
        ),
        steps=(
            Step(0, "step", 1, 2, loss=-3.5),
            Step(1, "step", 1, 2, loss=inf, accuracy=2.0),
            Step(-1, "step", 1, 2),
        ),
        summaries=(Summary("low", -2.5, None), Summary("endless", -inf, None)),
    )
    with database.writing(path) as connection:
        facts = RunFacts("nsys", "ok", "ingested", batch_size=-4)
        write_run(
            connection,
            SweepFacts("s", "ingest", None, None),
            facts,
            report,
        )
    with closing(sqlite3.connect(path)) as store:
        yield store


def test_values_that_cannot_be_are_null_and_others_stay(written: Any) -> None:
    def rows(sql: str) -> list[Any]:
        return written.execute(sql).fetchall()

    assert rows("SELECT batch_size FROM run") == [(None,)]
    assert rows("SELECT sm_count, memory_bytes FROM device") == [(None, 80 << 30)]
    assert rows("SELECT start_ns, duration_ns FROM kernel ORDER BY launch") == [
        (-_TEN_YEARS, None),
        (None, 3),
    ]
    assert rows("SELECT name, value FROM counter ORDER BY rowid") == [
        ("good", 0),
        ("negative", None),
        ("endless", None),
    ]
    assert rows("SELECT bytes, start_ns FROM copy") == [(5, _LAST), (None, None)]
    assert rows("SELECT gpu_utilisation, power_w, temperature_c FROM sample") == [
        (1, 0, -40),
        (None, None, None),
    ]
    assert rows("SELECT number, loss, accuracy FROM step") == [(0, -3.5, None), (1, None, None)]
    assert rows("SELECT name, value FROM summary") == [("low", -2.5), ("endless", None)]


def test_a_row_that_goes_takes_along_what_refers_to_it(written: Any) -> None:
    assert written.execute("SELECT name, parent FROM range").fetchall() == [
        ("outer", None),
        ("inner", None),
    ]
    assert written.execute("SELECT range_id FROM kernel").fetchall() == [(None,), (None,)]


def test_each_column_has_its_gap(written: Any) -> None:
    gaps = dict(written.execute("SELECT quantity, reason FROM gap WHERE state = 'unreadable'"))
    assert (
        gaps["range.start_ns"]
        == f"1 value is above the maximum of {_LAST:,}, so that row is left out"
    )
    assert gaps["sample.at_ns"] == gaps["range.start_ns"]
    assert gaps["step.number"] == "1 value is below 0 or not a number, so that row is left out"
    assert gaps["sample.gpu_utilisation"] == "1 value is above the maximum of 1"
    assert gaps["sample.power_w"] == "1 value is below 0 or not a number"
    assert gaps["sample.temperature_c"] == "1 value is above the maximum of 1,000"
    assert gaps["counter.value"] == "2 values are below 0 or not a number"
    assert gaps["summary.value"] == gaps["step.loss"] == "1 value is infinite or not a number"
    assert {
        "run.batch_size",
        "kernel.start_ns",
        "copy.start_ns",
        "copy.bytes",
        "step.accuracy",
    } <= gaps.keys()
