"""perfctl tensorboard, with a stand-in for TensorBoard on PATH."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STAND_IN = f"""#!{sys.executable}
import json, os, sys, time
print(json.dumps([os.getpid(), *sys.argv[1:]]), flush=True)
time.sleep(60)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study's folder with one (empty, synthetic) trace, in a folder with an odd name."""
    trace = tmp_path / "my; runs" / "lstm_cpu" / "b8" / "report.pt.trace.json.gz"
    trace.parent.mkdir(parents=True)
    trace.touch()
    return tmp_path / "my; runs"


def test_it_starts_on_the_folder_and_ends_with_perfctl(study: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tensorboard"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "perfctl", "tensorboard", str(study), "--port", "6007"],
        env={**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        said = json.loads(started.stdout.readline())
        assert said[1:] == [f"--logdir={study.resolve()}", "--host=127.0.0.1", "--port=6007"]
        started.terminate()
        assert started.wait(10) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(said[0], 0)


def test_a_real_tensorboard_serves_the_traces_and_all_of_it_ends(study: Path) -> None:
    place = os.environ.get("PERFCTL_TENSORBOARD") or shutil.which("tensorboard")
    if place is None:
        pytest.skip("TensorBoard is not installed: set PERFCTL_TENSORBOARD to its program")
    (trace,) = study.rglob("*.pt.trace.json.gz")
    with gzip.open(trace, "wt", encoding="utf-8") as opened:
        json.dump({"schemaVersion": 1, "traceEvents": []}, opened)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = subprocess.Popen(
        [sys.executable, "-m", "perfctl", "tensorboard", str(study), "--port", str(port)],
        env={**os.environ, "PATH": f"{Path(place).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert "scalars" in _answer(f"http://127.0.0.1:{port}/data/plugins_listing", started)
        started.send_signal(signal.SIGINT)
        started.wait(30)
        with pytest.raises(ProcessLookupError):
            _until_gone(started.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _answer(address: str, started: subprocess.Popen[bytes]) -> str:
    """What the server says, as soon as it does."""
    for _ in range(240):
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            return str(answer.read(), "utf-8")
        assert started.poll() is None, "it ended"
        time.sleep(0.25)
    return "no answer within a minute"


def _until_gone(group: int) -> None:
    """Returns when a process of the group is still there after 10 seconds; raises when there is none."""
    for _ in range(40):
        os.killpg(group, 0)
        time.sleep(0.25)


def test_what_is_missing_is_said_in_one_line(
    perfctl: Callable[..., Any], study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfctl.orchestrator.launch.machine.tools.find", lambda program: None)
    said = perfctl("tensorboard", str(study))
    assert said.code == 1
    assert said.err == "perfctl: TensorBoard is not installed. pip install tensorboard torch-tb-profiler\n"
    assert perfctl("tensorboard", str(tmp_path / "nowhere")).code == 2
    (tmp_path / "empty").mkdir()
    said = perfctl("tensorboard", str(tmp_path / "empty"))
    assert said.code == 2
    assert "no *.pt.trace.json* is in it" in said.err
