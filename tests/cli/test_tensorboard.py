"""perfctl tensorboard, with a stand-in for TensorBoard on PATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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


def test_what_is_missing_is_said_in_one_line(
    perfctl: Callable[..., Any], study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfctl.orchestrator.launch.tools.find", lambda program: None)
    said = perfctl("tensorboard", str(study))
    assert said.code == 1
    assert said.err == "perfctl: TensorBoard is not installed. pip install tensorboard torch-tb-profiler\n"
    assert perfctl("tensorboard", str(tmp_path / "nowhere")).code == 2
    (tmp_path / "empty").mkdir()
    said = perfctl("tensorboard", str(tmp_path / "empty"))
    assert said.code == 2
    assert "no *.pt.trace.json* is in it" in said.err
