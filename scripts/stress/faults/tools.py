"""Real nsys and ncu, made to fail in each way that has been seen: their exit code alone is
never trusted.

A shell script replaces the interpreter, so that a try takes a second. Faults that need a GPU
(counters that the driver forbids, or that DCGM holds) are covered by the tests, with recorded
messages of the tools.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scene import Broken, Fault, Scene, Skipped

from perfctl.orchestrator.launch.machine import tools as installed
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RunStatus
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.request import Profiler, SweepRequest

Before = Callable[[SweepRequest], None]
"""What is done to the run before a stage: nothing, or some harm."""


def _nothing(request: SweepRequest) -> None:
    pass


def _judged(
    scene: Scene,
    profiler: Profiler,
    lines: str,
    before: Before = _nothing,
    between: Before = _nothing,
) -> tuple[RunStatus, list[ProcessOutcome], SweepRequest]:
    """What perfctl makes of a program of these shell lines; ``between`` acts after the profile and
    before the export."""
    if installed.find_program(profiler.name) is None:
        raise Skipped(f"{profiler.name} is not installed")
    folder = scene.fresh(profiler.name)
    program = folder / "program.sh"
    program.write_text(f"#!/bin/bash\n{lines}\n")
    program.chmod(0o755 if lines else 0o644)
    request = SweepRequest(
        profiler=profiler,
        workload="mnist_cnn",
        device="cuda" if profiler.name == "ncu" else "cpu",
        host="host",
        python=str(program) if lines else "/no/such/python",
        batches=(16,),
        out=folder,
        sweep_name="sweep",
    )
    paths = request.paths
    paths.scratch.mkdir(parents=True)
    before(request)
    outcomes: list[ProcessOutcome] = []
    for command in profiler.build_commands(request):
        if command.needs is not None and not command.needs.exists():
            break

        def start(stage: str, command: Command = command) -> ProcessOutcome:
            logs = {"stdout": folder / f"{stage}.out", "stderr": folder / f"{stage}.err"}
            return run.run_command(
                command, cwd=folder, scratch=paths.scratch, **logs, timeout_s=60.0, grace_s=2.0
            )

        outcomes.append(
            sweep.start_and_retry_failed_startup(command, request, start)
        )  # nsys that was killed before may have left its lock
        between(request)
    scene.nothing_left()
    return profiler.determine_run_status(request, tuple(outcomes)), outcomes, request


def _is(
    status: str, says: str, scene: Scene, profiler: Profiler, lines: str, **harm: Before
) -> None:
    """Tried once: the verdict and its reason."""

    def once() -> str:
        verdict, outcomes, _ = _judged(scene, profiler, lines, **harm)
        if verdict.status != status or says not in (verdict.reason or ""):
            raise Broken(f"{verdict.status} ({verdict.reason}), not {status} ({says})")
        return (
            f"exit code {outcomes[0].exit_code}: {verdict.status}: "
            f"{(verdict.reason or '').splitlines()[0][:110]}"
        )

    scene.attempt(once)


def _nsys_programs(scene: Scene) -> None:
    for lines, says in (
        ("/bin/true; exit 3", "exit code 3"),
        ("kill -SEGV $$", "segmentation fault"),
        ("kill -KILL $$", "SIGKILL"),
    ):
        _is("partial", says, scene, Nsys(whole=True), lines)
    _is("failed", "/no/such/python", scene, Nsys(whole=True), "")
    _is("failed", "recorded nothing", scene, Nsys(), "exit 0")


def _ncu_programs(scene: Scene) -> None:
    for lines, says in (
        ("exit 3", "exit code 3"),
        ("kill -SEGV $$", "segmentation fault"),
        ("kill -KILL $$", "SIGKILL"),
        ("", "does not exist"),
        ("exit 0", "profiled no kernels"),
    ):
        _is("failed", says, scene, Ncu(metrics="fadd"), lines)


def _in_the_way(request: SweepRequest, suffix: str) -> None:
    report = request.paths.get_report_path(suffix)
    report.mkdir()
    (report / "of somebody else").touch()


def _nsys_cannot_write(scene: Scene) -> None:
    _is(
        "failed",
        "",
        scene,
        Nsys(whole=True),
        "/bin/true",
        before=partial(_in_the_way, suffix=".nsys-rep"),
    )


def _nsys_old_report(scene: Scene) -> None:
    """An existing report is replaced, and not taken for the run's."""

    def once() -> str:
        verdict, _, request = _judged(
            scene,
            Nsys(whole=True),
            "exec sleep 0.1",
            before=lambda asked: _write(asked.paths.get_report_path(".nsys-rep"), b"old"),
        )
        if request.paths.get_report_path(".nsys-rep").stat().st_size < 1000:
            raise Broken("the old file is still there")
        return f"replaced; {verdict.status}: {verdict.reason}"

    scene.attempt(once)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _cut(request: SweepRequest) -> None:
    report = request.paths.get_report_path(".nsys-rep")
    if not report.exists():
        raise Broken("nsys made no report that could be cut")
    if not request.paths.get_report_path(".sqlite").exists():
        _write(report, report.read_bytes()[:2000])


def _nsys_truncated(scene: Scene) -> None:
    _is("failed", "the export failed", scene, Nsys(whole=True), "/bin/true", between=_cut)


def _signalled(profiler: Profiler, scene: Scene) -> None:
    """The tool alone gets TERM, KILL, HUP: its program and its agent do not outlive the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP):

        def once(number: signal.Signals = number) -> str:
            stop = threading.Event()
            thread = threading.Thread(
                target=_signal_tool, args=(scene, profiler.name, number, stop)
            )
            thread.start()
            try:
                verdict, outcomes, _ = _judged(scene, profiler, "sleep 20")
            finally:
                stop.set()
                thread.join()
            if verdict.status == "ok":
                raise Broken(f"{number.name}: the run is called whole")
            return f"{number.name}: exit code {outcomes[0].exit_code}, {verdict.status}"

        scene.attempt(once)


def _signal_tool(scene: Scene, name: str, number: signal.Signals, stop: threading.Event) -> None:
    """To the process that perfctl started, once the program below it runs."""
    while not stop.wait(0.1):
        lines = scene.left_with_ids()
        tools = [
            pid
            for pid, line in lines
            if Path(line.split()[0]).name in (name, "bash") and f"{name} " in line
        ]
        if tools and any(line.startswith("sleep 20") for _, line in lines):
            time.sleep(0.5)
            os.kill(min(tools), number)
            return


def _foreign_lock(scene: Scene) -> None:
    """Another user's lock in a shared TMPDIR blocks nothing: each run has its own TMPDIR."""
    shared = scene.fresh("shared")
    (shared / "nsight-compute-lock").mkdir()
    outer = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(shared)
    try:
        _is("failed", "profiled no kernels", scene, Ncu(metrics="fadd"), "exit 0")
    finally:
        os.environ.pop("TMPDIR")
        if outer is not None:
            os.environ["TMPDIR"] = outer


FAULTS = (
    Fault(
        "nsys-programs",
        "a program under nsys exits 3, crashes, is killed, is missing, does nothing",
        _nsys_programs,
    ),
    Fault("nsys-cannot-write", "nsys cannot put its report in place", _nsys_cannot_write),
    Fault("nsys-old-report", "a report of the same name is there", _nsys_old_report),
    Fault("nsys-truncated", "the report is cut before its export", _nsys_truncated),
    Fault(
        "nsys-signalled",
        "nsys alone gets INT, TERM, KILL, HUP",
        partial(_signalled, Nsys(whole=True)),
    ),
    Fault(
        "ncu-programs",
        "a program under ncu exits 3, crashes, is killed, is missing, launches nothing",
        _ncu_programs,
    ),
    Fault(
        "ncu-signalled",
        "ncu alone gets INT, TERM, KILL, HUP",
        partial(_signalled, Ncu(metrics="fadd")),
    ),
    Fault("ncu-lock", "somebody else's lock file in TMPDIR", _foreign_lock),
)
