"""A sweep whose batch sizes run at the same time in processes that know nothing of each other, and
may be stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import Interrupted, UsageError
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import Command, RunStatus
from perfctl.orchestrator.launch.program import UserProgram
from perfctl.orchestrator.launch.sweep import folders, sweep
from perfctl.orchestrator.launch.sweep.request import RunResult, SweepListener
from tests.launch import small_profiler
from tests.launch.programs import wait_until
from tests.launch.small_profiler import Small


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch):
    """Two signals at once count as one, however far apart they are handled."""
    monkeypatch.setattr(run, "_SAME_S", 60.0)


WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('first half')"
SLEEPS = WRITES + "; import time; time.sleep(600)"
SLOW_TO_STOP = (
    "import signal, sys, time, pathlib; stop = lambda *a: (time.sleep(1.5), "
    "pathlib.Path(sys.argv[1]).write_text('all'),sys.exit(0)); signal.signal(signal.SIGTERM, "
    "stop); pathlib.Path(sys.argv[1]).write_text('half'); time.sleep(600)"
)
EXPORTS = (
    "import sys, pathlib; pathlib.Path(sys.argv[2]).write_text('exported ' + "
    "pathlib.Path(sys.argv[1]).read_text())"
)


@dataclass(frozen=True, slots=True)
class Exporting(Small):
    """A profiler in two steps: what it records is exported to what perfctl reads."""

    program: str = WRITES
    name: str = "exporting"

    def build_commands(self, request):
        raw, report = request.paths.get_report_path(".raw"), self.get_report_path(request.paths)
        profile = Command((sys.executable, "-S", "-c", self.program, str(raw)), "profile")
        return profile, Command(
            (sys.executable, "-S", "-c", EXPORTS, str(raw), str(report)), "export", needs=raw
        )

    def determine_run_status(self, request, outcomes):
        if not self.get_report_path(request.paths).exists():
            return RunStatus("failed", "there is no report")
        return (
            RunStatus("ok", None)
            if outcomes[0].exit_code == 0
            else RunStatus("partial", "it did not end by itself")
        )


class Judging(Exporting):
    """One whose verdict is that of perfctl's own profilers."""

    def determine_run_status(self, request, outcomes):
        failure = outcome.explain_program_failure(request, outcomes[0])
        return RunStatus("failed", failure) if failure else RunStatus("ok", None)


def asked(tmp_path, program=WRITES, batches=(16,), **fields):
    named = {"no_store": True, "sweep_name": "named-elsewhere", **fields}
    return small_profiler.asked(tmp_path, Exporting(program), batches, **named)


def stop_once(path):
    """TERM to this process when ``path`` is there."""

    def wait_and_stop():
        wait_until(lambda: path.exists() and path.stat().st_size)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm and the job script both send it

    threading.Thread(target=wait_and_stop, daemon=True).start()


def stopped(request, once="report.raw", **listening):
    """Run it, and stop it when this file is there."""
    stop_once(request.folder / "b16.part" / once)
    with pytest.raises(Interrupted) as caught:
        sweep.run_incomplete_settings(request, SweepListener(**listening))
    return caught.value


def record(folder):
    return dict(json.loads((folder / "run.json").read_text()))


def test_a_run_that_is_told_to_stop_is_exported_and_kept_as_partial(tmp_path):
    request = asked(tmp_path, SLEEPS)
    heard: list[RunResult] = []
    assert stopped(request, stopped=heard.append).signal_number == signal.SIGTERM
    assert sorted(path.name for path in request.folder.glob("b*")) == ["b16"]
    assert (request.folder / "b16" / "report.txt").read_text() == "exported first half"
    said = record(request.folder / "b16")
    assert said["status"] == "partial"
    assert str(said["reason"]).startswith("stopped by SIGTERM during profile")
    assert [result.status for result in heard] == ["partial"]
    assert [
        result.status for result in sweep.run_incomplete_settings(asked(tmp_path), SweepListener())
    ] == ["ok"], "takes the partial one's place"
    assert sorted(path.name for path in request.folder.glob("b*")) == ["b16"]
    assert [
        result.skipped for result in sweep.run_incomplete_settings(asked(tmp_path), SweepListener())
    ] == [True]


STEPS = {"status": "ok", "options": {"steps": 1}, "steps": [{"phase": "step"}]}
RECORDS = (
    f"import sys, pathlib; path = pathlib.Path(sys.argv[1]); "
    f"path.with_name('workload.json').write_text({json.dumps(STEPS)!r})"
)


@pytest.mark.parametrize("no_store", [True, False])
def test_a_run_that_is_stopped_after_all_its_steps_is_complete(tmp_path, no_store):
    program = f"{RECORDS}; path.write_text('all'); import time; time.sleep(600)"
    request = replace(
        asked(tmp_path, program, no_store=no_store),
        profiler=Judging(program),
        program=UserProgram(sys.executable, (), ("x.py",), "x.py", None),
    )
    heard: list[RunResult] = []
    stopped(request, stopped=heard.append)
    assert [(result.status, result.reason) for result in heard] == [("ok", None)]
    assert (request.folder / "b16" / "report.txt").read_text() == "exported all"
    assert sweep.run_incomplete_settings(request, SweepListener())[0].skipped


def test_a_run_that_is_stopped_before_it_has_a_report_is_failed_and_says_why(tmp_path):
    request = asked(tmp_path, "import sys, time; print('on', flush=True); time.sleep(600)")
    stopped(request, "stdout.log")
    said = record(request.folder / "b16")
    assert said["status"] == "failed"
    assert "before there was a profiler report: there is no report" in str(said["reason"])


def test_a_profiler_gets_the_time_to_write_its_report_that_was_asked_for(tmp_path):
    request = asked(tmp_path, SLOW_TO_STOP, grace=20.0)
    stopped(request)
    assert (request.folder / "b16" / "report.txt").read_text() == "exported all"


def test_a_run_cut_off_between_its_last_byte_and_its_name_is_whole(tmp_path):
    request = asked(tmp_path)
    sweep.run_incomplete_settings(request, SweepListener())
    (request.folder / "b16").rename(request.folder / "b16.part")
    result = sweep.run_incomplete_settings(request, SweepListener())[0]
    assert (result.status, result.skipped, result.folder.name) == ("ok", True, "b16")


def test_one_batch_size_is_locked_and_the_others_are_free(tmp_path):
    request = asked(tmp_path, batches=(32,))
    request.folder.mkdir(parents=True)
    with folders.lock_sweep_or_setting(request.folder, folders.SweepSetting(16)):
        assert [
            result.status for result in sweep.run_incomplete_settings(request, SweepListener())
        ] == ["ok"]
        with pytest.raises(UsageError, match="running batch 16"):
            sweep.run_incomplete_settings(asked(tmp_path), SweepListener())
        with (
            pytest.raises(UsageError, match="running the sweep"),
            folders.lock_sweep_or_setting(request.folder),
        ):
            pass
    with (
        folders.lock_sweep_or_setting(request.folder),
        pytest.raises(UsageError, match="running the sweep"),
    ):
        sweep.run_incomplete_settings(asked(tmp_path), SweepListener())


def test_the_record_of_the_sweep_is_written_once(tmp_path):
    request = asked(tmp_path)
    sweep.run_incomplete_settings(request, SweepListener())
    path = request.folder / "sweep.json"
    path.write_text(path.read_text().replace("perfctl exporting", "as it was rendered"))
    sweep.run_incomplete_settings(asked(tmp_path, batches=(32,)), SweepListener())
    assert json.loads(path.read_text())["command"] == "as it was rendered"


def test_tmpdir_can_lie_on_a_disk_of_the_machines_own_and_goes_with_the_run(tmp_path):
    own = tmp_path / "node"
    own.mkdir()
    program = "import os, sys, pathlib; pathlib.Path(sys.argv[1]).write_text(os.environ['TMPDIR'])"
    request = asked(tmp_path, program, scratch=own)
    sweep.run_incomplete_settings(request, SweepListener())
    said = Path((request.folder / "b16" / "report.raw").read_text())
    assert said.parent == own
    assert list(own.iterdir()) == []
