"""When a run counts as stuck, and how long a tool may write after it was told to stop."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from perfctl.orchestrator.launch.process import progress
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.process.progress import Stall, grace
from perfctl.orchestrator.launch.profilers.ncu import PROFILING, STALL_S, Ncu
from perfctl.orchestrator.launch.sampling.sampler import Sampling
from tests.launch.programs import run, run_python
from tests.launch.small_profiler import asked

NCU_HANGS = """
import sys, time
print("loading", flush=True)
time.sleep(float(sys.argv[1]))
print('==PROF== Profiling "gemm" - 0: 0%....100% - 3 passes', flush=True)
print('==PROF== Profiling "my_all_gather" - 1: 0%', flush=True)
time.sleep(600)
"""
"""As ncu does under a collective whose peers wait elsewhere: it prints that it begins a launch, and
nothing more."""


def test_a_replay_that_never_ends_is_stopped_and_its_last_line_is_the_reason(
    tmp_path, processes, make_request
):
    began = time.monotonic()
    stall = Stall(2.0, after=PROFILING)
    outcome = run_python(tmp_path, NCU_HANGS, "2.5", processes=processes, stall=stall, grace_s=0.2)
    assert (outcome.exit_code, outcome.timed_out, outcome.stalled_s) == (None, False, 2.0)
    assert outcome.duration_ns > 4e9, "the silence before the first launch does not count"
    assert time.monotonic() - began < 60
    verdict = Ncu().judge(make_request("cuda"), (outcome,))
    assert (verdict.status, verdict.reason) == (
        "failed",
        (
            "stopped, because its output and files did not change for 2 s (`stall`). The last line "
            "was: ==PROF== Profiling "
            '"my_all_gather" - 1: 0%. ncu cannot replay a kernel that waits for other ranks. '
            "Exclude it by name, or count "
            "with one rank"
        ),
    )


@pytest.mark.parametrize("moves", ["print('.', flush=True)", "open('data.bin', 'ab').write(b'x')"])
def test_output_and_growing_files_are_progress_and_the_samples_of_the_run_are_not(tmp_path, moves):
    code = f"import time\nfor _ in range(5):\n    time.sleep(0.8); {moves}\n"
    sampling = Sampling(0.02, tmp_path, False)
    outcome = run_python(tmp_path, code, stall=Stall(2.0), sampling=sampling)
    assert (outcome.exit_code, outcome.stalled_s) == (0, None)
    outcome = run_python(
        tmp_path, "import time; time.sleep(600)", stall=Stall(1.0), sampling=sampling, grace_s=0.2
    )
    assert outcome.stalled_s == 1.0


def test_the_user_says_how_long_for_any_profiler_and_ncu_has_a_default(tmp_path, make_request):
    profile, export = Ncu(metrics="fadd").commands(make_request("cuda"))
    plain = replace(profile, stall=None)
    by_default, never, own = (asked(tmp_path, stall=seconds) for seconds in (None, 0.0, 30.0))
    assert by_default.stall_of(profile) == Stall(STALL_S, after=PROFILING)
    assert by_default.stall_of(plain) is None
    assert [request.stall_of(profile) for request in (never, own)] == [None, Stall(30.0)]
    assert own.stall_of(plain) == Stall(30.0)
    assert own.stall_of(export) is None, "it may write at its end only"


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
    assert grace(argv, written) == seconds


SLOW_WRITER = """
import signal, sys, time
def finish(*_):
    with open("report.qdstrm", "wb", buffering=0) as report:
        for _ in range(20):
            report.write(b"x" * 1000)
            time.sleep(0.1)
    print("written"); sys.exit(0)
signal.signal(signal.SIGTERM, finish); print("ready", flush=True); time.sleep(600)
"""


def test_a_tool_that_is_still_writing_is_not_killed(tmp_path, processes, monkeypatch):
    monkeypatch.setattr(progress, "BASE_S", 0.5)
    monkeypatch.setattr(progress, "PLAIN_S", 0.4)
    monkeypatch.setattr(process_run, "GROWING_S", 1.0)
    tool = tmp_path / "nsys"
    tool.write_text(f"#!{sys.executable} -S\n{SLOW_WRITER}")
    tool.chmod(0o755)
    outcome = run_tool(tmp_path, tool, processes)
    assert outcome.stdout.read_text() == "ready\nwritten\n"
    tool.rename(tmp_path / "train")
    outcome.stdout.unlink()
    outcome = run_tool(tmp_path, tmp_path / "train", processes)
    assert outcome.stdout.read_text() == "ready\n", "only nsys and ncu are waited for"


def run_tool(folder, tool, processes):
    return run(folder, str(tool), processes=processes, timeout_s=2.0)
