"""Real processes, some of them badly behaved; when one counts as stuck, and what stays of perfctl when it is killed: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.errors import RunFailed, ToolMissing
from perfctl.orchestrator.launch.process import progress, watchdog
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.process.progress import (
    FileActivity,
    StallRule,
    choose_kill_grace_seconds,
)
from perfctl.orchestrator.launch.profilers.base import ProcessOutcome
from perfctl.orchestrator.launch.profilers.ncu import PROFILING, STALL_S, Ncu
from perfctl.orchestrator.launch.sampling.sampler import FILE, SamplingSettings
from tests.launch.programs import STUBBORN_DAEMON, run, run_past_ready, run_python, wait_until
from tests.launch.small_profiler import asked

PYTHON = (sys.executable, "-S", "-c")


def test_output_is_added_to_files_and_the_exit_code_comes_back(tmp_path, monkeypatch):
    """stdin is empty, the session its own, and the guardian goes with the run. perfctl under
    perfctl keeps both marks."""
    monkeypatch.setenv(watchdog.VARIABLE, "outer")
    before = children()
    code = (
        "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), "
        f"*os.environ[{watchdog.VARIABLE!r}].split(':')); sys.stderr.write('b'); sys.exit(3)"
    )
    started = time.monotonic_ns()
    outcome = run_python(tmp_path, code)
    assert 0 < outcome.duration_ns < time.monotonic_ns() - started
    assert (outcome.exit_code, outcome.timed_out) == (3, False)
    stdin, own_session, outer, inner = outcome.stdout.read_text().split()
    assert (stdin, own_session, outer, len(inner)) == ("''", "True", "outer", 32)
    assert outcome.stderr.read_text() == "b"
    assert outcome.started_at.endswith("+00:00")
    killed = run_python(tmp_path, "import os; print(2, flush=True); os.kill(os.getpid(), 9)")
    assert killed.exit_code == 137, "as a shell shows it"
    assert killed.stdout.read_text().endswith("\n2\n")
    assert children() <= before


def children():
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


def peak_memory_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_what_is_not_there_or_no_program_is_named(tmp_path):
    with pytest.raises(ToolMissing, match="no-such-tool was not found"):
        run(tmp_path, "no-such-tool")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RunFailed, match=r"text could not be started: Permission denied"):
        run(tmp_path, str(tmp_path / "text"))


def test_a_time_limit_ends_a_stubborn_program_and_its_daemon(tmp_path, processes):
    outcome = run_past_ready(
        tmp_path, *PYTHON, STUBBORN_DAEMON, "600", processes=processes, grace_s=0.3
    )
    assert (outcome.exit_code, outcome.timed_out) == (None, True)
    assert processes.alive() == []


def test_a_program_that_is_out_of_time_may_finish_writing(tmp_path, processes):
    code = (
        "import signal, sys, time\n"
        "def finish(*_):\n    time.sleep(0.5); print('written'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, finish); print('ready', flush=True); time.sleep(600)"
    )
    outcome = run_past_ready(tmp_path, *PYTHON, code, processes=processes, grace_s=60.0)
    assert outcome.timed_out
    assert outcome.stdout.read_text() == "ready\nwritten\n"


def test_a_wrapper_that_dies_at_once_does_not_cut_the_tool_short(tmp_path, processes):
    tool = (
        "trap 'sleep 0.5; echo report written; exit 0' TERM; echo ready; while :; do sleep 0.05; "
        "done"
    )
    words = ("bash", "-c", f'bash -c "{tool}"; true')
    outcome = run_past_ready(tmp_path, *words, processes=processes, grace_s=60.0)
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


def named(text):
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
    wait_until((tmp_path / "told").exists, "the guardian to be told of it")
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
    run_past_ready(tmp_path, *PYTHON, code, processes=processes, grace_s=0.0)
    assert named(processes.token) == []


def test_an_error_while_it_waits_leaves_nothing_running(tmp_path, processes, monkeypatch):
    def fail():
        raise ValueError("the disk broke")

    monkeypatch.setattr(process_run, "_make_stall_check", lambda *anything: fail)
    with pytest.raises(ValueError, match="the disk broke"):
        run_python(tmp_path, STUBBORN_DAEMON, "600", processes=processes)
    assert processes.alive() == []


def test_it_works_outside_the_main_thread(tmp_path):
    outcomes: list[ProcessOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run_python(tmp_path, "print(1)")))
    thread.start()
    thread.join()
    assert outcomes[0].exit_code == 0


# perfctl itself told to stop, or killed: nothing that it started stays


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_perfctl_ends_everything_and_is_told(tmp_path, processes, number):
    driver = processes.start_perfctl(
        tmp_path,
        sys.executable,
        "-S",
        "-c",
        STUBBORN_DAEMON,
        "600",
        # the tests themselves may run under nohup
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    processes.wait_for(2)
    driver.send_signal(number)
    said, _ = driver.communicate(timeout=600.0)
    assert said.startswith(f"interrupted by {int(number)}: stopped by {number.name} during profile")
    assert processes.alive() == []
    assert driver.returncode == 0


def test_a_second_signal_cuts_the_grace_short(tmp_path, processes):
    driver = processes.start_perfctl(
        tmp_path, sys.executable, "-S", "-c", STUBBORN_DAEMON, "600", grace="600"
    )
    processes.wait_for(2)
    driver.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert processes.alive()
    while driver.poll() is None:  # a busy machine may hand over two at once, which count as one
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
    said, _ = driver.communicate(timeout=600.0)
    assert said.startswith("interrupted by 2")


def test_nohup_stays_nohup(tmp_path, processes):
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    waits = f"until [ -e {tmp_path}/hung-up ]; do sleep 0.05; done"
    driver = processes.start_perfctl(tmp_path, "sh", "-c", waits, **ignore)
    processes.wait_for(1)
    driver.send_signal(signal.SIGHUP)
    (tmp_path / "hung-up").touch()
    assert driver.communicate(timeout=600.0)[0] == "ended by itself\n"


def test_killing_perfctl_with_its_whole_group_spares_the_guardian_which_ends_everything_and_its_link(
    tmp_path, processes
):
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    words = (sys.executable, "-S", "-c", STUBBORN_DAEMON, "600")
    driver = processes.start_perfctl(deep, *words, start_new_session=True)
    processes.wait_for(2)
    link = Path(processes.values_of("TMPDIR")[0])
    assert link.is_symlink()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    processes.assert_gone_within(60.0)
    wait_until(lambda: not link.parent.exists(), f"{link} to be removed", 60.0)


def test_a_program_that_does_not_end_is_ended_when_all_is_recorded(tmp_path, processes):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('asked'))\n"
        "open('trace', 'w').close(); os.fork(); time.sleep(600)"
    )
    ended = run_python(
        tmp_path,
        code,
        processes=processes,
        is_recorded=lambda seconds: seconds > 1 and (tmp_path / "trace").exists(),
    )
    assert (ended.exit_code, ended.timed_out) == (None, False)
    assert ended.stderr.read_text().count("asked") == 2, "both of its processes, by SIGTERM"
    assert 1e9 < ended.duration_ns < 60e9


# When a run counts as stuck, and how long a tool may write after it was told to stop


NCU_HANGS = """
import sys, time
print("loading", flush=True)
time.sleep(float(sys.argv[1]))
print('==PROF== Profiling "gemm" - 0: 0%....100% - 3 passes')
print('==PROF== Profiling "my_all_gather" - 1: 0%', flush=True)
time.sleep(600)
"""
"""As ncu does under a collective whose peers wait elsewhere: it prints that it begins a launch, and
nothing more."""


def test_a_replay_that_never_ends_is_stopped_and_its_last_line_is_the_reason(
    tmp_path, processes, make_request
):
    stall = StallRule(1.0, after=PROFILING)
    outcome = run_python(
        tmp_path, NCU_HANGS, "1.5", processes=processes, stall_rule=stall, grace_s=0.2
    )
    assert (outcome.exit_code, outcome.timed_out, outcome.stalled_s) == (None, False, 1.0)
    assert outcome.duration_ns > 2.5e9, "the silence before the first launch does not count"
    verdict = Ncu().determine_run_status(make_request("cuda"), (outcome,))
    assert (verdict.status, verdict.reason) == (
        "failed",
        (
            "stopped, because its output and files did not change for 1 s (`stall`). The last line "
            "was: ==PROF== Profiling "
            '"my_all_gather" - 1: 0%. ncu cannot replay a kernel that waits for other ranks. '
            "Exclude it by name, or count "
            "with one rank"
        ),
    )


def test_output_and_growing_files_are_progress_and_the_samples_of_the_run_are_not(
    tmp_path, monkeypatch
):
    clock = [0]
    for module in (progress, process_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    log, samples = tmp_path / "out.log", tmp_path / FILE
    activity = FileActivity((tmp_path,), without=(samples,))
    is_stalled = process_run._make_stall_check(StallRule(20), activity, (log, log))
    for file in (log, tmp_path / "deep" / "data.bin", log):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{clock}")
        assert not is_stalled()
        clock[0] += 19
        assert not is_stalled()
    clock[0] += 1
    samples.write_text("more")
    assert is_stalled()


def test_a_run_whose_samples_alone_grow_is_stopped(tmp_path):
    sampling = SamplingSettings(0.02, tmp_path, False)
    code = "import time; time.sleep(600)"
    outcome = run_python(tmp_path, code, stall_rule=StallRule(1.0), sampling=sampling, grace_s=0.2)
    assert outcome.stalled_s == 1.0


def test_the_user_says_how_long_for_any_profiler_and_ncu_has_a_default(tmp_path, make_request):
    profile, export = Ncu(metrics="fadd").build_commands(make_request("cuda"))
    plain = replace(profile, stall=None)
    by_default, never, own = (asked(tmp_path, stall=seconds) for seconds in (None, 0.0, 30.0))
    assert by_default.make_stall_rule(profile) == StallRule(STALL_S, after=PROFILING)
    assert by_default.make_stall_rule(plain) is None
    assert [request.make_stall_rule(profile) for request in (never, own)] == [None, StallRule(30.0)]
    assert own.make_stall_rule(plain) == StallRule(30.0)
    assert own.make_stall_rule(export) is None, "it may write at its end only"


MIB = 2**20


@pytest.mark.parametrize(
    ("argv", "written", "seconds"),
    [
        (("python", "train.py"), 800 * MIB, 3.0),
        (("nsys", "profile", "python"), 0, 15.0),
        (("/usr/bin/ncu", "--export", "x"), 800 * MIB, 15 + 400.0),
        (("apptainer", "exec", "x.sif", "nsys", "profile"), 100 * MIB, 15 + 50.0),
        (
            ("python", "-m", "perfctl.workloads", "--under", '["ncu", "--nvtx"]'),
            100 * MIB,
            15 + 50.0,
        ),
        (("nsys", "profile"), 10**13, progress.LONGEST_S),
    ],
)
def test_the_grace_before_the_kill_grows_with_what_the_tool_has_recorded(argv, written, seconds):
    assert choose_kill_grace_seconds(argv, written) == seconds


SLOW_WRITER = """
import signal, sys, time
def finish(*_):
    with open("report.qdstrm", "wb", buffering=0) as report:
        for _ in range(int(sys.argv[1])):
            report.write(b"x" * 1000)
            time.sleep(0.1)
    print("written"); sys.exit(0)
signal.signal(signal.SIGTERM, finish); print("ready", flush=True); time.sleep(600)
"""


def test_a_tool_that_is_still_writing_is_not_killed(tmp_path, processes, monkeypatch):
    monkeypatch.setattr(progress, "BASE_S", 0.5)
    monkeypatch.setattr(progress, "PLAIN_S", 0.4)
    monkeypatch.setattr(process_run, "GROWING_S", 60.0)
    tool = tmp_path / "nsys"
    tool.write_text(f"#!{sys.executable} -S\n{SLOW_WRITER}")
    tool.chmod(0o755)
    outcome = run_past_ready(tmp_path, str(tool), "12", processes=processes)
    assert outcome.stdout.read_text() == "ready\nwritten\n"
    other = tool.rename(tmp_path / "train")
    outcome.stdout.unlink()
    outcome = run_past_ready(tmp_path, str(other), "6000", processes=processes)
    assert outcome.stdout.read_text() == "ready\n", "only nsys and ncu are waited for"
