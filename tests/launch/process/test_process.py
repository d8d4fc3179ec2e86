"""Real processes, some of them badly behaved."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import RunFailed, ToolMissing
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.process import watchdog
from perfctl.orchestrator.launch.profilers.base import Outcome
from tests.launch.programs import STUBBORN_DAEMON, run, run_python, wait_until


def test_output_is_added_to_files_and_the_exit_code_comes_back(tmp_path, monkeypatch):
    """stdin is empty, the session its own, and the guardian goes with the run. perfctl under
    perfctl keeps both marks."""
    monkeypatch.setenv(watchdog.VARIABLE, "outer")
    before = children()
    code = (
        "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), "
        f"*os.environ[{watchdog.VARIABLE!r}].split(':')); sys.stderr.write('b'); sys.exit(3)"
    )
    outcome = run_python(tmp_path, code)
    assert (outcome.exit_code, outcome.timed_out) == (3, False)
    stdin, own_session, outer, inner = outcome.stdout.read_text().split()
    assert (stdin, own_session, outer, len(inner)) == ("''", "True", "outer", 32)
    assert outcome.stderr.read_text() == "b"
    assert outcome.started_at.endswith("+00:00")
    assert 0 < outcome.duration_ns < 10e9
    killed = run_python(tmp_path, "import os; print(2, flush=True); os.kill(os.getpid(), 9)")
    assert killed.exit_code == 137, "as a shell shows it"
    assert killed.stdout.read_text().endswith("\n2\n")
    assert children() <= before


def children() -> set[str]:
    """Process ids of this process's own children."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_deep_tmpdir_still_has_room_for_a_socket(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with (
        pytest.raises(OSError, match="AF_UNIX path too long"),
        socket.socket(socket.AF_UNIX) as own,
    ):
        own.bind(str(deep / "tmp" / "listener"))
    code = (
        "import os, socket; name = os.path.join(os.environ['TMPDIR'], 'pymp-12345678', "
        "'listener-12345678'); os.mkdir(os.path.dirname(name)); "
        "socket.socket(socket.AF_UNIX).bind(name); print(os.environ['TMPDIR'])"
    )
    outcome = run_python(deep, code)
    assert outcome.exit_code == 0, outcome.stderr.read_text()
    assert (deep / "tmp" / "pymp-12345678" / "listener-12345678").is_socket()
    assert not Path(outcome.stdout.read_text().strip()).parent.exists()


def test_much_output_does_not_fill_memory(tmp_path):
    code = "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))"
    before = peak_memory_bytes()
    outcome = run_python(tmp_path, code)
    assert outcome.stdout.stat().st_size == 64 << 20
    assert peak_memory_bytes() - before < 16 << 20


def peak_memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_what_is_not_there_or_no_program_is_named(tmp_path):
    with pytest.raises(ToolMissing, match="no-such-tool was not found"):
        run(tmp_path, "no-such-tool")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RunFailed, match=r"text could not be started: Permission denied"):
        run(tmp_path, str(tmp_path / "text"))


def test_a_time_limit_ends_a_stubborn_program_and_its_daemon(tmp_path, processes):
    started = time.monotonic()
    outcome = run_python(
        tmp_path, STUBBORN_DAEMON, "600", processes=processes, timeout_s=3.0, grace_s=0.3
    )
    assert (outcome.exit_code, outcome.timed_out) == (None, True)
    assert outcome.stdout.read_text() == "ready\n"
    assert processes.alive() == []
    assert time.monotonic() - started < 60.0


def test_a_program_that_is_out_of_time_may_finish_writing(tmp_path, processes):
    code = (
        "import signal, sys, time\n"
        "def finish(*_):\n    time.sleep(0.5); print('written'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, finish); time.sleep(600)"
    )
    outcome = run_python(tmp_path, code, processes=processes, timeout_s=3.0)
    assert outcome.timed_out
    assert outcome.stdout.read_text() == "written\n"


def test_a_wrapper_that_dies_at_once_does_not_cut_the_tool_short(tmp_path, processes):
    tool = (
        "trap 'sleep 0.5; echo report written; exit 0' TERM; echo ready; while :; do sleep 0.05; "
        "done"
    )
    outcome = run(
        tmp_path, "bash", "-c", f'bash -c "{tool}"; true', processes=processes, timeout_s=3.0
    )
    assert outcome.stdout.read_text() == "ready\nreport written\n"


def test_a_daemon_is_ended_when_its_program_ends_well(tmp_path, processes, monkeypatch):
    monkeypatch.setattr(process_run, "LINGER_S", 0.3)
    outcome = run_python(tmp_path, STUBBORN_DAEMON, "0", processes=processes)
    assert outcome.exit_code == 0
    assert processes.alive() == []


WIPED = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.closerange(0, 64)\n"
    "        os.execve(sys.executable, [sys.executable, '-S', '-c', 'import time; "
    "time.sleep(600)', sys.argv[1]], {})\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "time.sleep(float(sys.argv[2]))\n"
)
"""Leaves a daemon that carries no mark, and no parent to find it by."""


RELAY = (
    "import os, sys, time\n"
    "for _ in range(60):\n"
    "    if os.fork():\n"
    "        os._exit(0)\n"
    "    time.sleep(0.002)\n"
    "time.sleep(600)\n"
)
"""Hands itself on from process to process, as daemons do while they start, and then stays."""


def named(text: str) -> list[str]:
    """Process ids of those that have ``text`` among their arguments; zombies have none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


def test_a_daemon_that_wiped_its_environment_is_ended_too_and_what_is_none_of_the_runs_is_left_alone(
    tmp_path,
):
    mark, other = f"wiped-{uuid.uuid4().hex}", f"other-{uuid.uuid4().hex}"
    code = (sys.executable, "-S", "-c", "import time; time.sleep(600)", other)
    with subprocess.Popen(code, start_new_session=True) as before:
        try:
            assert run_python(tmp_path, WIPED, mark, "0.5").exit_code == 0
            assert named(mark) == []
            assert before.poll() is None
        finally:
            before.kill()


def test_what_forks_and_ends_while_it_is_looked_for_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(process_run, "LINGER_S", 0.0)
    mark = f"relay-{uuid.uuid4().hex}"
    for turn in range(5):
        (tmp_path / str(turn)).mkdir()
        run_python(tmp_path / str(turn), RELAY, mark)
        assert named(mark) == []


def test_killing_perfctl_ends_a_daemon_that_wiped_its_environment(tmp_path, processes):
    mark = f"wiped-{uuid.uuid4().hex}"
    driver = processes.start_perfctl(tmp_path, sys.executable, "-S", "-c", WIPED, mark, "600")
    wait_until(lambda: len(named(mark)) >= 3)  # the driver, the program and the daemon
    time.sleep(0.5)  # perfctl tells the guardian of it within a tenth of that
    driver.kill()
    driver.communicate(timeout=600.0)
    processes.assert_gone_within(60.0)
    wait_until(lambda: named(mark) == [])


def test_a_child_without_the_mark_is_ended_with_its_parent(tmp_path, processes):
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)', "
        f"{processes.token!r}], "
        "env={}, start_new_session=True); print('ready', flush=True); time.sleep(600)"
    )
    run_python(tmp_path, code, processes=processes, timeout_s=1.0, grace_s=0.0)
    assert named(processes.token) == []


def test_an_error_while_it_waits_leaves_nothing_running(tmp_path, processes, monkeypatch):
    def fail() -> bool:
        raise ValueError("the disk broke")

    monkeypatch.setattr(process_run, "_stuck", lambda *anything: fail)
    with pytest.raises(ValueError, match="the disk broke"):
        run_python(tmp_path, STUBBORN_DAEMON, "600", processes=processes)
    assert processes.alive() == []


def test_it_works_outside_the_main_thread(tmp_path):
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run_python(tmp_path, "print(1)")))
    thread.start()
    thread.join()
    assert outcomes[0].exit_code == 0
