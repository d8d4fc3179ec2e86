"""Shared fixtures. What needs material outside the repository skips, saying so."""

import difflib
import gc
import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers import nsys
from tests import forked

# before torch: on a busy machine its threads wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers: no test asks or waits for a network

# every test traces its own model; those of the cache itself switch it on
os.environ["PERFCTL_NO_CACHE"] = "1"

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "browser": "browser",
    "cluster": "slurm",
    "image": "image",
    "shared": "reports",
    "forks": "torch",
    "bf16_lstm": "torch",
}
"""Fixture -> the marker that its tests get."""


def pytest_addoption(parser):
    parser.addoption(
        "--accept",
        action="store_true",
        help="write golden texts and expected values as they are now, in place of comparing them",
    )


def pytest_collection(session):
    """Collecting makes a million objects, nearly all of which stay: nobody looks for garbage
    among them."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the parts that can be run alone, and say which tests stay together where several
    processes test at once.

    A file's tests do, and those of all files with a browser: it is started once. nsys 2022.4 may
    not start (sem_open) while another does: such files carry ``xdist_group("nsys")``.
    """
    with_browser = set()
    for item in items:
        for name in {PARTS.get(fixture) for fixture in getattr(item, "fixturenames", ())} - {None}:
            item.add_marker(name)
        if item.path == ROOT / "tests" / "test_docs.py":
            item.add_marker("docs")
        if item.get_closest_marker("browser"):
            with_browser.add(item.path)
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is None:
            item.add_marker(
                pytest.mark.xdist_group("browser" if item.path in with_browser else str(item.path))
            )
        elif not (item.get_closest_marker("docs") or item.get_closest_marker("slurm")):
            item.add_marker("nsight")


def pytest_collection_finish(session):
    """Groups must reach xdist: with pytest 9.2, xdist 3.8 ignores them without a word, and several
    nsys start at once."""
    if session.config.getoption("loadgroup", default=False) and not all(
        "@" in item.nodeid for item in session.items
    ):
        raise pytest.UsageError("xdist ignores the groups of tests: install pytest below 9.2")
    # nor later, least of all in children, which would copy the memory that holds them, nor at
    # the end
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Remove the lock that an nsys killed by the test before may have left; a sweep does so too."""
    group = item.get_closest_marker("xdist_group")
    if group is not None and group.args == ("nsys",):
        nsys.remove_stale_nsys_lock()


@pytest.fixture(scope="session")
def shared():
    """The folder with real reports and public measurements, which is not part of the repository.

    ``PERFCTL_SHARED`` names it; else ``shared`` beside the checkout is taken.
    """
    folder = Path(os.environ.get("PERFCTL_SHARED", ROOT.parent / "shared"))
    if not (folder / "reports").is_dir():
        pytest.skip("no folder of real reports here (set PERFCTL_SHARED to one)")
    return folder


@pytest.fixture(scope="session")
def reports(shared):
    """The real profiler reports inside ``shared``."""
    return shared / "reports"


@pytest.fixture(scope="session")
def accept(request):
    """Whether what is now is written down in place of being compared."""
    return bool(request.config.getoption("--accept"))


@pytest.fixture(scope="session")
def golden(accept):
    """Compare a text with tests/golden/NAME; with ``--accept``, write it.

    A name with folders is a path in the checkout: scripts/jobs/array.sbatch.
    """

    def compare(name, text):
        path = ROOT / name if "/" in name else ROOT / "tests" / "golden" / name
        if accept:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if there != text:
            lines = difflib.unified_diff(
                there.splitlines(),
                text.splitlines(),
                str(path.relative_to(ROOT)),
                "made now",
                lineterm="",
            )
            pytest.fail(
                "\n".join([*lines, "If this is right: pytest --accept -k golden"]),
                pytrace=False,
            )

    return compare


@pytest.fixture(scope="session")
def bf16_lstm(forks, tmp_path_factory):
    """Skips where torch has no LSTM in bf16 for this CPU: oneDNN's needs AVX-512."""
    folder = tmp_path_factory.mktemp("bf16")
    code = (
        "import torch\nwith torch.autocast('cpu', torch.bfloat16): torch.nn.LSTM(4, "
        "4)(torch.randn(2, 3, 4))"
    )
    (folder / "lstm.py").write_text(code)
    done = forks.run(folder, str(folder / "lstm.py"))
    if done.returncode:
        pytest.skip(f"no LSTM in bf16 on this CPU: {done.stderr.strip().splitlines()[-1][:80]}")


@pytest.fixture(scope="session")
def forks():
    """Starts scripts in processes that need not load torch."""
    with forked.forks() as found:
        yield found


@pytest.fixture
def quick_sweeps(forks, monkeypatch):
    """Sweeps fork the profiled program: its interpreter need not load torch for each batch size.

    test_script_sweep starts one under each profiler as a user does: by nsys, and under torch by
    another interpreter.
    """
    _fork_sweeps(forks, monkeypatch)


@pytest.fixture(scope="module")
def quick_sweeps_of_module(forks):
    """The same, for fixtures that make something once for a file."""
    with pytest.MonkeyPatch.context() as patch:
        _fork_sweeps(forks, patch)
        yield


def _fork_sweeps(forks, patch):
    real = run._start_process

    def start(command, *rest):
        python, *argv = command.argv
        own = python == sys.executable and tuple(argv[:2]) == forked.PERFCTL
        if not own:
            return real(command, *rest)
        for path in rest[2:]:
            path.parent.mkdir(parents=True, exist_ok=True)
        return forks.start(argv, *rest)

    patch.setattr(run, "_start_process", start)


@pytest.fixture(scope="session")
def recorded():
    """Real recordings of mnist_cnn under torch.profiler and nsys on a CPU; see HOW.md there."""
    return ROOT / "tests" / "data" / "recorded-cpu"


@pytest.fixture
def repeated(recorded, tmp_path):
    """A sweep's folder made of a real recording: b16 so many times, its steps stretched by the
    given factors."""

    def make(name, factors, **environment):
        folder = tmp_path / name
        for number, factor in enumerate(factors, 1):
            run = folder / ("b16" if number == 1 else f"b16.{number}")
            shutil.copytree(recorded / "torch" / "b16", run)
            trace = run / "report.pt.trace.json.gz"
            trace.write_bytes(
                gzip.compress(
                    gzip.decompress(trace.read_bytes()), mtime=hash((name, number)) % 2**31
                )
            )
            record = json.loads((run / "workload.json").read_text())
            record["environment"] |= environment
            for step in record["steps"]:
                step["duration_ns"] = int(step["duration_ns"] * factor)
            (run / "workload.json").write_text(json.dumps(record))
            about = json.loads((run / "run.json").read_text())
            (run / "run.json").write_text(
                json.dumps(about | {"artifact_bytes": trace.stat().st_size})
            )
        return folder

    return make
