"""Worker processes that share items: order, events, errors and warnings; what a worker that dies
costs; and a store whose studies are shared so."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from pathlib import Path

import pytest

from perfctl.orchestrator import pool, stored_runs
from perfctl.orchestrator.commands import export
from perfctl.orchestrator.errors import LostWarning, PerfctlError, UsageError
from tests.make.stored import execute

ITEMS = list(range(7))


@contextmanager
def opened(work):
    yield work


def run(work, processes=2, **options):
    """The events of each item."""
    running = pool.run_in_workers(ITEMS, partial(opened, work), processes=processes, **options)
    return [list(events) for _, events in running]


def twice(item, tell):
    tell(f"item {item}")
    return 2 * item, os.getpid()


def die_at_3(how):
    def work(item, tell):
        if item == 3:
            tell("before")
            how()
        return item

    return work


@pytest.mark.parametrize("processes", [1, 3])
def test_events_come_in_the_order_of_the_items_from_so_many_processes(processes):
    found = run(twice, processes)
    assert [told for told, _ in found] == [f"item {item}" for item in ITEMS]
    assert [done.result[0] for _, done in found] == [2 * item for item in ITEMS]
    pids = {done.result[1] for _, done in found}
    assert len(pids) == processes
    assert os.getpid() not in pids


def test_beside_threads_of_others_a_new_interpreter_works(monkeypatch):
    monkeypatch.setattr(pool, "_is_main_perfctl_or_rich_thread", lambda thread: False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert not pool.can_fork_safely()
    running = pool.run_in_workers(
        [4], partial(opened, divmod_of_10), processes=1, memory_limit_bytes=1 << 30
    )
    assert [list(events) for _, events in running] == [[pool.WorkDone((2, 2))]]


def test_a_store_that_is_open_here_is_not_forked_with(tmp_path):
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (c)")
        assert not pool.can_fork_safely(path)
        assert pool.can_fork_safely(tmp_path / "other.db")
    assert pool.can_fork_safely(path)


def test_a_thread_that_draws_progress_does_not_keep_a_worker_from_being_forked():
    def work():
        stop.wait()

    work.__module__ = "perfctl.cli"
    stop = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert pool._is_main_perfctl_or_rich_thread(thread)
    stop.set()
    thread.join()


def test_a_warning_of_a_worker_is_warned_of_here():
    def work(item, tell):
        if item == 3:
            warnings.warn(LostWarning("run 3 is left out"), stacklevel=1)
        return item

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(work) == [[pool.WorkDone(item)] for item in ITEMS]
    assert [(one.category, str(one.message)) for one in caught] == [
        (LostWarning, "run 3 is left out")
    ]


def test_what_comes_before_an_error_is_given_and_the_error_keeps_its_kind_and_remedy():
    def work(item, tell):
        if item == 4:
            raise UsageError("no such layer", "There are others")
        return item

    found = []
    with pytest.raises(UsageError) as raised:
        for item, events in pool.run_in_workers(ITEMS, partial(opened, work), processes=2):
            found.append((item, list(events)))
    assert found == [(item, [pool.WorkDone(item)]) for item in ITEMS[:4]]
    assert (raised.value.message, raised.value.remedy) == ("no such layer", "There are others")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "was killed by signal 9, probably because memory",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by signal 11"),
        (lambda: os._exit(9), "ended with exit code 9"),
        (lambda: time.sleep(600), "did not end within 1 s"),
    ],
    ids=["killed", "crash", "exit", "hangs"],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_dies_costs_its_item_only(how, why, processes):
    limit_s = 1.0 if "within" in why else inf
    found = run(
        die_at_3(how), processes, get_time_limit_s=lambda item: limit_s if item == 3 else inf
    )
    others = [events for item, events in enumerate(found) if item != 3]
    assert others == [[pool.WorkDone(item)] for item in ITEMS if item != 3]
    told, lost = found[3]
    assert told == "before"
    assert why in lost.why


def test_an_item_that_needs_more_memory_than_its_worker_may_take_is_an_error_of_that_worker():
    def work(item, tell):
        return len(bytearray((item == 0) << 28))

    with pytest.raises(MemoryError):
        run(work, memory_limit_bytes=64 << 20)


def test_a_call_is_answered_by_another_process():
    process, answer = pool.call_in_worker(
        "a step", lambda: [os.getpid(), {"layers": ["conv1", None]}], 64 << 20
    )
    assert process != os.getpid()
    assert answer == {"layers": ["conv1", None]}


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: len(bytearray(512 << 20)), "more than 64 MiB of memory"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by signal 9"),
        (lambda: 1 // 0, "a step: "),
    ],
    ids=["memory", "killed", "unforeseen"],
)
def test_a_call_that_fails_is_one_line(work, why):
    with pytest.raises(PerfctlError) as error:
        pool.call_in_worker("a step", work, 64 << 20)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_who_stops_listening_leaves_no_worker():
    def work(item, tell):
        tell(os.getpid())
        if item:
            time.sleep(600)
        return item

    running = pool.run_in_workers(ITEMS, partial(opened, work), processes=2)
    pids = {next(next(running)[1]), next(next(running)[1])}
    running.close()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def divmod_of_10(item, tell):
    return divmod(10, item)


@pytest.fixture
def shared(monkeypatch):
    """Two processes also for a store of few runs, and on a machine with one core."""
    monkeypatch.setattr(stored_runs, "MANY", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def store(tmp_path, perfctl):
    """Three studies of two runs each, synthetic."""
    bench = Path(__file__).parents[2] / "scripts" / "speed" / "make_sweeps.py"
    subprocess.run(
        [sys.executable, str(bench), "3", "2", "2", "30", str(tmp_path / "made")], check=True
    )
    assert perfctl("ingest", tmp_path / "made").code == 0
    return tmp_path / "perfctl.db"


@pytest.mark.parametrize("words", [(), ("--json", "--batches", "16"), ("--layer", "nothing")])
def test_a_ledger_made_by_two_processes_is_the_same(words, store, perfctl, request):
    alone = perfctl("ledger", *words)
    request.getfixturevalue("shared")
    assert perfctl("ledger", *words) == alone
    assert alone.out or alone.code


def test_the_rows_of_an_export_are_made_in_children(store, shared, monkeypatch):
    monkeypatch.setattr(export, "compute_ledger_rows", lambda runs: [{"pid": os.getpid()}])
    rows = list(export.compute_ledger_values(store, None))
    assert len(rows) == 3, "one a study"
    assert len({pid for (pid,) in rows}) == 2, "of two processes"
    assert [os.getpid()] not in rows


def test_a_damaged_run_is_left_out_by_a_child_and_the_exit_code_says_so(store, shared, perfctl):
    execute(store, "UPDATE op_shape SET record = '[1, {' WHERE run_id = 1")
    said = perfctl("ledger")
    assert said.code == 4
    assert said.err.count("run 1 cannot be analysed: op_shape.record") == 1
    assert said.out
