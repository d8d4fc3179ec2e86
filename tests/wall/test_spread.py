"""Several children that share items, and a store whose studies are shared so: the same result,
errors and warnings."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.actions.tables import values_of_ledger
from perfctl.orchestrator.actions.wall import runs
from perfctl.orchestrator.actions.wall.items import spread
from perfctl.orchestrator.errors import Lost, PerfctlError, UsageError
from tests.cli.conftest import Said

ITEMS = list(range(7))


def opening(work: Callable[[int], Any]) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[Callable[[int], Any]]:
        yield work

    return opened


def test_items_come_back_in_order_from_as_many_processes_as_were_asked_for() -> None:
    found = list(spread(ITEMS, opening(lambda item: (item, os.getpid())), 3))
    assert [item for item, _ in found] == ITEMS
    pids = [pid for _, pid in found]
    assert len(set(pids)) == 3
    assert os.getpid() not in pids
    assert pids[:3] == pids[3:6], "they take turns"


def test_a_warning_of_a_child_is_warned_of_here() -> None:
    def work(item: int) -> int:
        if item == 3:
            warnings.warn(Lost("run 3 is left out"), stacklevel=1)
        return item

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(spread(ITEMS, opening(work), 2)) == ITEMS
    assert [(one.category, str(one.message)) for one in caught] == [(Lost, "run 3 is left out")]


def test_what_comes_before_an_error_is_given_and_the_error_keeps_its_kind_and_remedy() -> None:
    def work(item: int) -> int:
        if item == 4:
            raise UsageError("no such layer", "There are others")
        return item

    found = []
    with pytest.raises(UsageError) as raised:
        found.extend(spread(ITEMS, opening(work), 2))
    assert (raised.value.message, raised.value.remedy) == ("no such layer", "There are others")


def test_a_child_that_is_killed_is_one_line() -> None:
    def work(item: int) -> int:
        if item == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(PerfctlError, match="ended by signal 9"):
        list(spread(ITEMS, opening(work), 2))


def test_who_stops_listening_leaves_no_child() -> None:
    told = spread(ITEMS, opening(lambda _: os.getpid()), 2)
    pids = {next(told), next(told)}
    told.close()  # type: ignore[attr-defined]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes also for a store of few runs, and on a machine with one core."""
    monkeypatch.setattr(runs, "MANY", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def store(tmp_path: Path, perfctl: Callable[..., Said]) -> Path:
    """Three studies of two runs each, synthetic."""
    bench = Path(__file__).parents[2] / "scripts" / "speed" / "make_sweeps.py"
    subprocess.run(
        [sys.executable, str(bench), "3", "2", "2", "30", str(tmp_path / "made")], check=True
    )
    assert perfctl("ingest", tmp_path / "made").code == 0
    return tmp_path / "perfctl.db"


@pytest.mark.parametrize(
    "words", [(), ("--json",), ("--batches", "16"), ("--layer", "nothing"), ("--format", "md")]
)
def test_a_ledger_made_by_two_processes_is_the_same(
    words: tuple[str, ...],
    store: Path,
    perfctl: Callable[..., Said],
    request: pytest.FixtureRequest,
) -> None:
    alone = perfctl("ledger", *words)
    request.getfixturevalue("shared")
    assert perfctl("ledger", *words) == alone
    assert alone.out or alone.code


def test_the_rows_of_an_export_are_made_in_children(
    store: Path, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfctl.orchestrator.actions import tables

    monkeypatch.setattr(tables, "_rows", lambda some: [{"pid": os.getpid()}])
    rows = list(values_of_ledger(store, None))
    assert len(rows) == 3, "one a study"
    assert len({pid for (pid,) in rows}) == 2, "of two processes"
    assert [os.getpid()] not in rows


def test_a_damaged_run_is_left_out_by_a_child_and_the_exit_code_says_so(
    store: Path, shared: None, perfctl: Callable[..., Said]
) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE layer_call SET macs = 'many' WHERE run_id = 1")
        connection.commit()
    said = perfctl("ledger")
    assert said.code == 4
    assert said.err.count("run 1:") == 1
    assert said.out
