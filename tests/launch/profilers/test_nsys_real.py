"""nsys itself, over tiny programs: what it leaves behind when all goes well, and when it
does not."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.base import ProcessOutcome, RunStatus
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.program import parse_user_program
from tests.launch.programs import assert_verdict

pytestmark = [
    pytest.mark.skipif(tools.find_program("nsys") is None, reason="nsys is not installed"),
    pytest.mark.xdist_group("nsys"),
]

RANGES = """
from torch.cuda import nvtx
for name in ("warm", "perfctl:window", "after"):
    nvtx.range_push(name)
    nvtx.range_push(f"fc1:forward")
    nvtx.range_pop()
    nvtx.range_pop()
"""


def run(profiler, request, processes, **options):
    """As a sweep does: each command in turn, the later ones when what they need is there."""
    outcomes: list[ProcessOutcome] = []
    for command in profiler.build_commands(request):
        if command.needs is not None and not command.needs.exists():
            break
        outcomes.append(processes.run(command, request, **options))
    return tuple(outcomes)


def range_names(database):
    with closing(sqlite3.connect(database)) as connection:
        join = "NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id"
        query = f"SELECT coalesce(text, value) FROM {join} WHERE eventType = 59 ORDER BY start"
        return [name for (name,) in connection.execute(query)]


def test_only_the_window_is_recorded(tmp_path, make_request, make_program, processes):
    nvtx = pytest.importorskip("torch.cuda.nvtx")
    if not hasattr(sys.modules["torch"]._C, "_nvtx"):
        pytest.skip(f"{nvtx.__name__} does nothing in this build of torch")
    (tmp_path / "ranges.py").write_text(RANGES)
    request = make_request(python=make_program(f"exec {sys.executable} {tmp_path}/ranges.py"))
    outcomes = run(Nsys(), request, processes)
    verdict = Nsys().determine_run_status(request, outcomes)
    assert verdict == RunStatus("ok", None), outcomes[0].stderr.read_text()
    assert range_names(request.paths.get_report_path(".sqlite")) == [
        "perfctl:window",
        "fc1:forward",
    ]


@pytest.mark.parametrize(
    ("lines", "whole", "exit_code", "status", "reason"),
    [
        ("exit 0", False, 0, "failed", "nsys recorded no measured step"),  # the window never opens
        ("kill -SEGV $$", True, 139, "partial", "the program crashed (segmentation fault)"),
    ],
)
def test_a_failing_program_is_told_and_so_is_nothing_recorded(
    make_request, make_program, processes, lines, whole, exit_code, status, reason
):
    request = make_request(python=make_program(f"/bin/true; {lines}"))
    outcomes = run(Nsys(whole=whole), request, processes)
    assert outcomes[0].exit_code == exit_code
    verdict = Nsys().determine_run_status(request, outcomes)
    assert_verdict(verdict, status, reason)


def test_out_of_time_leaves_no_agent_and_keeps_what_was_recorded(
    make_request, make_program, processes
):
    limit_s, began = 3, Path(make_program("exec true")).with_name("began")
    request = make_request(python=make_program(f"touch {began}; sleep 600"))
    while not began.exists():
        outcomes = run(Nsys(whole=True), request, processes, timeout_s=limit_s)
        limit_s *= 2
    assert outcomes[0].timed_out
    assert processes.alive() == []
    assert request.paths.get_report_path(".nsys-rep").exists()
    verdict = Nsys().determine_run_status(request, outcomes)
    assert_verdict(verdict, "partial", f"the time limit was reached after {limit_s // 2} s. Allow")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_perfctl_ends_nsys_its_agent_and_the_program(
    make_request, make_program, processes, number
):
    request = make_request(python=make_program("sleep 600 & sleep 600"))
    profile, _ = Nsys(whole=True).build_commands(request)
    for _ in range(3):  # nsys 2022.4 may not start beside another that is starting
        driver = processes.start_perfctl(request.paths.partial_folder, *profile.argv)
        # nsys, its launcher, its agent, its tee, the shell and two sleeps.
        if processes.wait_for(6, driver=driver):
            break
        driver.communicate()
    assert any("--start-agent" in line for line in processes.alive())
    driver.send_signal(number)
    processes.assert_gone_within(60.0)
    said, _ = driver.communicate(timeout=600.0)
    assert said.startswith("" if number == signal.SIGKILL else f"interrupted by {int(number)}")
    # Nothing stays in the way of the next run; an nsys of another test may be, for a moment.
    again = (
        run(Nsys(whole=True), make_request(python=make_program("/bin/true")), processes)[0]
        for _ in range(3)
    )
    assert any(outcome.exit_code == 0 for outcome in again)


SOLVER = """
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    for (int i = 0; i < atoi(argv[1]); i++) { nvtxRangePushA("solve"); nvtxRangePop(); }
    return 0;
}
"""
CHILDREN = """
import subprocess, sys
children = [subprocess.Popen([sys.argv[2], sys.argv[1]]) for _ in range(2)]
sys.exit(max(child.wait() for child in children))
"""
SERVER = """
import subprocess, sys, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        subprocess.run([sys.argv[2], sys.argv[1]], check=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()
subprocess.Popen(["sleep", "600"])  # a worker that nobody ends
"""


@pytest.fixture(scope="module")
def solver(tmp_path_factory):
    """A C program with NVTX ranges, compiled with the header that nsys brings."""
    nsys, compiler = tools.find_program("nsys"), shutil.which("gcc")
    folder = Path(nsys or "").resolve().parent / "nvtx" / "include"
    if compiler is None or not folder.is_dir():
        pytest.skip("no C compiler, or an nsys without the header of NVTX")
    source = tmp_path_factory.mktemp("solver") / "solver.c"
    source.write_text(SOLVER)
    binary = source.with_suffix("")
    subprocess.run([compiler, f"-I{folder}", source, "-o", binary, "-ldl"], check=True)
    return binary


@pytest.mark.parametrize(
    ("words", "exit_code", "ranges"),
    [
        pytest.param(("bash", "-c", "SOLVER {N}; exit 5"), 5, 3, id="a wrapper"),
        pytest.param(("python3", "HERE/children.py", "{N}", "SOLVER"), 0, 6, id="children"),
        pytest.param(("python3", "HERE/server.py", "{N}", "SOLVER"), 0, 3, id="a server"),
    ],
)
def test_any_program_leaves_its_report_and_exit_code_and_no_process(
    words, exit_code, ranges, solver, make_request, processes, tmp_path
):
    (tmp_path / "children.py").write_text(CHILDREN)
    (tmp_path / "server.py").write_text(SERVER)
    argv = [word.replace("SOLVER", str(solver)).replace("HERE", str(tmp_path)) for word in words]
    program = parse_user_program(argv, None, {}, runs_unannotated=True)
    request = replace(make_request(), program=program, batches=(), sweep=("N=3",))
    request.paths.scratch.mkdir(parents=True)
    outcomes = run(Nsys(), request, processes)
    assert outcomes[0].exit_code == exit_code
    assert Nsys().determine_run_status(request, outcomes).status == (
        "partial" if exit_code else "ok"
    )
    assert range_names(request.paths.get_report_path(".sqlite")) == ["solve"] * ranges


@pytest.mark.parametrize(
    ("script", "after", "duration", "status", "reason"),
    [
        ("trap 'exit 0' TERM; while true; do SOLVER 1; sleep 0.1; done", 2, 2, "ok", None),
        ("SOLVER 1", 60, 2, "failed", "the program ended before the recording began, 60 s after"),
        ("sleep 4; exit 5", 2, 60, "partial", "the program ended with exit code 5"),
    ],
    ids=["a server", "one that ends early", "one that fails inside"],
)
def test_a_time_window_of_any_program_is_recorded_and_no_process_stays(
    script, after, duration, status, reason, solver, make_request, processes
):
    words = ("bash", "-c", script.replace("SOLVER", str(solver)))
    profiler = Nsys(delay=after, duration=duration)
    program = parse_user_program(words, None, {}, runs_unannotated=True)
    request = replace(make_request(), profiler=profiler, program=program, batches=())
    request.paths.scratch.mkdir(parents=True)
    outcomes = run(profiler, request, processes)
    verdict = profiler.determine_run_status(request, outcomes)
    assert verdict.status == status
    assert (reason or "") in (verdict.reason or "")
    if status == "ok":
        assert set(range_names(request.paths.get_report_path(".sqlite"))) == {"solve"}
