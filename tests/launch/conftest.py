"""What the launcher's tests share: requests, outcomes, and a look at /proc that does not use
perfctl's own."""

import shutil
import subprocess
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers.base import ProcessOutcome
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from tests.launch import image_root
from tests.launch import slurm_cluster as slurm
from tests.launch.programs import wait_until, write_program

TOKEN = "PERFCTL_TEST_TOKEN"
DRIVER = """
import signal, sys
from pathlib import Path
from perfctl.orchestrator.errors import Interrupted
from perfctl.orchestrator.launch.process import run as process, watchdog_client
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.sampling.sampler import SamplingSettings
folder, token, grace, *argv = sys.argv[1:]
folder = Path(folder)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # tests that a shell runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
reap_and_find_orphans, times_found = watchdog_client.reap_and_find_orphans, []
def find_and_note(mark):
    if times_found:  # what was found before has been sent to the watchdog since
        (folder / "told").touch()
    found = reap_and_find_orphans(mark)
    times_found.extend(found)
    return found
watchdog_client.reap_and_find_orphans = find_and_note
try:
    process.run_command(
        Command(tuple(argv), "profile", {"PERFCTL_TEST_TOKEN": token}), cwd=folder, scratch=folder / "tmp",
        stdout=folder / "out.log", stderr=folder / "err.log", grace_s=float(grace),
        sampling=SamplingSettings(0.02, folder, False),
    )
    print("ended by itself")
except Interrupted as stop:
    print(f"interrupted by {stop.signal_number}: {stop}")
assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
"""


class Processes:
    """Finds the processes that carry this test's token in their environment."""

    def __init__(self):
        self.token = uuid.uuid4().hex
        self.environment = {TOKEN: self.token}

    def alive(self):
        """Command lines of those that run; zombies have none and no environment."""
        return [line for line, _ in self._found()]

    def values_of(self, variable):
        """What an environment variable is for each of them."""
        entries = (
            entry.partition("=") for _, environment in self._found() for entry in environment
        )
        return [value for name, _, value in entries if name == variable]

    def _found(self):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if f"{TOKEN}={self.token}" in environment:
                    yield (
                        (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(),
                        environment,
                    )
            except OSError:
                continue

    def start_perfctl(self, folder, *argv, grace="1", **options):
        """A process that runs ``argv`` as perfctl does, so that it can be killed."""
        driver = (sys.executable, "-c", DRIVER, str(folder), self.token, grace, *argv)
        return subprocess.Popen(
            driver, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )

    def run(self, command, request, **options):
        """Run a command of a profiler as a sweep does: once more where nsys could not start
        beside another."""
        marked = replace(command, environment={**command.environment, **self.environment})

        def once(stage):
            logs = {
                name: request.paths.partial_folder / f"{stage}-{name}.log"
                for name in ("stdout", "stderr")
            }
            return run.run_command(
                marked,
                cwd=request.paths.partial_folder,
                scratch=request.paths.scratch,
                **logs,
                **options,
            )

        return sweep.start_and_retry_failed_startup(marked, request, once)

    def wait_for(self, count, limit_s=120.0, driver=None):
        """Until at least ``count`` of them run. False if ``driver`` ended before that."""

        def told():
            return len(self.alive()) >= count or (driver is not None and driver.poll() is not None)

        wait_until(told, lambda: f"{count} processes, only {self.alive()} started", limit_s)
        return driver is None or driver.poll() is None

    def assert_gone_within(self, limit_s):
        wait_until(lambda: not self.alive(), lambda: f"the end of {self.alive()}", limit_s)


@pytest.fixture
def processes():
    found = Processes()
    yield found
    found.assert_gone_within(60.0)


@pytest.fixture
def make_request(tmp_path):
    """A request for batch size 16 whose run's folder is ``tmp_path``/sweep/b16.part, made
    and empty."""

    def make(device="cpu", python="/opt/python"):
        request = SweepRequest(
            profiler=TorchProfiler(),
            workload="mnist_cnn",
            workload_arguments=("--steps", "2"),
            device=device,
            host="host",
            python=python,
            batches=(16,),
            out=tmp_path,
            sweep_name="sweep",
        )
        request.paths.scratch.mkdir(parents=True, exist_ok=True)
        return request

    return make


@pytest.fixture
def make_outcome(tmp_path):
    """An outcome with the given logs, as if a process had left it."""

    def make(exit_code=0, stdout="", stderr="", timed_out=False):
        number = len(list(tmp_path.glob("out*.log")))
        out, err = tmp_path / f"out{number}.log", tmp_path / f"err{number}.log"
        out.write_text(stdout)
        err.write_text(stderr)
        return ProcessOutcome(
            exit_code, timed_out, "2026-01-02T03:04:05.000+00:00", 7_000_000_000, out, err
        )

    return make


@pytest.fixture
def make_program(tmp_path):
    """An executable that runs the given shell lines and ignores its arguments: stands in for the
    interpreter."""

    def make(lines):
        return str(write_program(tmp_path / "program.sh", lines))

    return make


@pytest.fixture(scope="session")
def cluster():
    """A real Slurm, started once. Skips where it is missing."""
    yield from slurm.started()


@pytest.fixture(scope="session")
def image():
    """A real image, built once. Not below pytest's own folder, which only its owner may enter: root
    builds as nobody."""
    if reason := image_root.why_not():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="perfctl-image-"))
    folder.chmod(0o755)
    try:
        yield image_root.build(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
