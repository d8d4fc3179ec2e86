"""One question that a child with a limit on memory answers: what the plain step before ncu left is
read so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator import pool
from perfctl.orchestrator.errors import PerfctlError, RunFailed
from perfctl.orchestrator.ingest.sweep import estimate_ncu_cost
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_sweep

LIMIT = 64 << 20


def too_much() -> int:
    return len(bytearray(8 * LIMIT))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def unforeseen() -> None:
    raise ZeroDivisionError


def test_the_answer_comes_from_another_process() -> None:
    process, said = pool.call("a step", lambda: [os.getpid(), {"layers": ["conv1", None]}], LIMIT)
    assert process != os.getpid()
    assert said == {"layers": ["conv1", None]}


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (too_much, "more than 64 MiB of memory"),
        (killed, "killed by signal 9"),
        (unforeseen, "a step: "),
    ],
)
def test_work_that_fails_is_one_line(work: Callable[[], Any], says: str) -> None:
    with pytest.raises(PerfctlError) as error:
        pool.call("a step", work, LIMIT)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plain_step_whose_report_is_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: True)
    batch = tmp_path / "recorded" / "b16"
    batch.mkdir(parents=True)
    (batch / "report.pt.trace.json").write_text(
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ca'
    )
    (batch / "run.json").write_text(
        '{"profiler": "torch", "workload": "mnist_cnn", "device": "cuda", "batch_size": 16, '
        '"status": "ok", "artifact": "report.pt.trace.json"}'
    )
    with pytest.raises(RunFailed, match=r"step without ncu.*report\.pt\.trace\.json"):
        asked = SweepOptions(batches=(16,), device="cuda")
        plain = plan_sweep(Replay(tmp_path / "recorded"), asked)
        estimate_ncu_cost(plan_sweep(Ncu(), asked), plain)
