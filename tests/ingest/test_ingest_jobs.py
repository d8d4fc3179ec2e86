"""Reports read by several processes: the same store and the same lines as with one, and nobody is
left behind."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.ingest.find import ReportSource
from perfctl.orchestrator.ingest.ingest import WORTH_BYTES, choose_job_count
from perfctl.orchestrator.store import schema
from tests.cli.test_ingest import NCU, told
from tests.launch.programs import wait_until

Perfctl = Callable[..., Any]
DATA = Path(__file__).resolve().parent.parent / "data"


def study(recorded):
    """Good and bad reports, one twice, one with a secret, a log of several runs, run folders: what
    to pass to ingest."""
    folder = Path("study")
    folder.mkdir()
    for batch in (1, 2, 4, 8):
        (folder / f"b{batch}.csv").write_text(NCU.format(count=batch))
    (folder / "copy_b1.csv").write_text(NCU.format(count=1))
    (folder / "secret.csv").write_text(
        NCU.format(count=7).replace('"app"', '"HF_TOKEN=hf_' + "a1" * 17 + '"')
    )
    (folder / "empty.csv").touch()
    for log in sorted((DATA / "ncu-logs").iterdir()):
        shutil.copy(log, folder)
    shutil.copy(DATA / "kineto-synthetic" / "trace.json", folder)
    return ["study", "gone.csv", str(recorded)]


def rows(store):
    """Every table, without the moments of writing; of the views, which have no numbers of their
    own, all rows."""
    found = {}
    with closing(sqlite3.connect(store)) as connection:
        for name in (*schema.describe_store_tables(), *schema.describe_store_views()):
            columns = [
                column
                for column in schema.read_column_types(name)
                if column not in ("created_at", "ingested_at")
            ]
            if name not in ("store_info", "sweep"):
                found[name] = connection.execute(
                    f"SELECT {schema.format_column_list(columns)} FROM {name} ORDER BY 1, 2, 3"
                ).fetchall()
    return found


def test_three_processes_give_the_same_store_and_say_the_same_as_one(perfctl, recorded):
    paths = study(recorded)
    said = {
        jobs: perfctl("ingest", *paths, "--jobs", jobs, "--store", f"{jobs}.db") for jobs in (1, 3)
    }
    one, three = said[1], said[3]
    assert (one.code, three.code) == (4, 4)
    lines = [
        [
            line
            for line in told(one_or_three)
            if "files done" not in line and line != "looking for reports"
        ]
        for one_or_three in (one, three)
    ]
    assert lines[0] == lines[1]
    assert three.out == one.out.replace("1.db", "3.db")
    assert "already in the database as run" in one.out
    assert rows(Path("3.db")) == rows(Path("1.db"))
    assert sorted(path.name for path in Path().iterdir()) == ["1.db", "3.db", "study"], (
        "nothing temporary is left"
    )


def test_what_is_in_the_store_is_not_read_again_by_any_process(perfctl, recorded):
    paths = study(recorded)
    perfctl("ingest", *paths, "--jobs", 1)
    before = rows(Path("perfctl.db"))
    said = perfctl("ingest", *paths, "--jobs", 2)
    assert ": run " not in said.out
    assert rows(Path("perfctl.db")) == before
    perfctl("ingest", *paths, "--jobs", 2, "--again")
    assert len(rows(Path("perfctl.db"))["run"]) == 2 * len(before["run"]) + 1, (
        "the copy is taken in, too"
    )


def test_files_that_are_small_together_are_read_by_this_process_and_more_by_one_a_core(tmp_path):
    (tmp_path / "r.csv").write_text("x")
    (tmp_path / "large.csv").touch()
    os.truncate(tmp_path / "large.csv", WORTH_BYTES)
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "report.sqlite").write_bytes(bytes(100_000))
    small, large, folder = (
        ReportSource(tmp_path / name, tmp_path / name) for name in ("r.csv", "large.csv", "b1")
    )
    cores = len(os.sched_getaffinity(0))
    assert choose_job_count(None, [small] * 1000) == 1
    assert choose_job_count(None, [folder] * (WORTH_BYTES // 100_000)) == 1
    assert choose_job_count(None, [folder] * (WORTH_BYTES // 100_000 + 1)) == cores
    assert choose_job_count(None, [large, small]) == 1
    assert choose_job_count(None, [large] * 2) == min(2, cores)
    assert choose_job_count(8, [small]) == 1
    assert choose_job_count(8, [small] * 9) == 8


def children(pid):
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(status.parent.name)
        except OSError:
            continue


def begun(tmp_path):
    """An ingest whose two workers are stopped in the middle, and their process ids."""
    names = ("a.csv", "b.csv")
    for name in names:
        (tmp_path / name).write_text(NCU.format(count=1) * 20_000)
    words = (sys.executable, "-m", "perfctl", "ingest", "a.csv", "b.csv", "--jobs", "2")
    program = subprocess.Popen(
        (*words, "--batch", "1"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    found: dict[int, str] = {}

    def both_read():
        """Each is stopped as soon as it reads its file: by then it has said with whom it ends."""
        for worker in set(children(program.pid)) - set(found):
            for file in Path(f"/proc/{worker}/fd").iterdir():
                with suppress(OSError):
                    name = file.readlink().name
                    if name in names and worker not in found:
                        os.kill(worker, signal.SIGSTOP)
                        found[worker] = name
        return sorted(found.values()) == list(names)

    wait_until(both_read)
    return program, list(found)


def wait_until_gone(processes):
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


def test_ctrl_c_ends_the_workers_and_leaves_nothing_temporary(tmp_path):
    program, workers = begun(tmp_path)
    program.send_signal(signal.SIGINT)
    assert program.wait() == 130
    wait_until_gone(workers)
    assert not list(tmp_path.glob(".perfctl*"))


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_workers_end_with_the_process_that_started_them_and_the_next_ingest_removes_their_files(
    tmp_path, jobs
):
    program, workers = begun(tmp_path)
    program.kill()
    program.wait()
    wait_until_gone(workers)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(NCU.format(count=1))
    again = (sys.executable, "-m", "perfctl", "ingest", "a.csv", "b.csv", "--jobs", jobs)
    done = subprocess.run((*again, "--batch", "1"), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv", "perfctl.db"}
