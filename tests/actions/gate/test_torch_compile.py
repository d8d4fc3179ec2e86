"""What the gate holds of a model under torch.compile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfctl.orchestrator.actions import trace_cache
from perfctl.orchestrator.actions.estimate import Request
from perfctl.orchestrator.actions.gate import compiled, gate
from perfctl.orchestrator.analyse.gate.judge import judge
from perfctl.orchestrator.analyse.gate.quantities import of_model
from perfctl.orchestrator.analyse.gate.records import MISSING, WORSE, Place
from perfctl.records.compiled import CompiledGraph, CompiledStep

BATCH, WIDTH = 4, 8
NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, value):
        return torch.tanh(torch.sigmoid(value) + 1)
"""


def step(*kernels: int, why: str = "") -> CompiledStep:
    graphs = tuple(CompiledGraph("forward", 6, one, 2) for one in kernels)
    return CompiledStep(graphs, ((why, 1),) if why else (), "2.14")


def test_graphs_of_one_direction_are_added_up_and_a_break_says_why() -> None:
    before, after = (of_model({}, {BATCH: one}) for one in (step(5), step(3, 4, why="print")))
    assert before.places[Place(batch=BATCH, direction="forward")]["compiled_kernels"] == 5
    found = judge("net", before, after, {})
    worse = {row.quantity: (row.before, row.after) for row in found.of(WORSE)}
    assert worse == {
        "graph_breaks": (0, 1), "compiled_operations": (6, 12), "compiled_kernels": (5, 7), "library_calls": (2, 4)
    }  # fmt: skip
    assert found.differences == ("graph breaks: none before, print now",)


def test_a_step_that_stopped_has_no_breaks_rather_than_0() -> None:
    after = of_model({}, {BATCH: CompiledStep(None, (), "2.14", "it looks at its data", broke=True)})
    found = judge("net", of_model({}, {BATCH: step(5)}), after, {})
    assert {row.quantity for row in found.of(MISSING)} >= {"graph_breaks", "compiled_kernels"}
    assert next(row.said for row in found.rows if row.quantity == "graph_breaks") == "it looks at its data"


@pytest.mark.filterwarnings("ignore")
def test_operations_of_one_chain_become_one_kernel_and_two_where_a_graph_breaks_between() -> None:
    torch = pytest.importorskip("torch")
    from perfctl.workloads.compiling.inductor import compiled_step
    from perfctl.workloads.models.source import Source

    class Chain(torch.nn.Module):  # type: ignore[misc, name-defined]
        between = "nothing"

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = torch.sigmoid(value) + 1
            if self.between == "a break":
                torch._dynamo.graph_break()
            if self.between == "a look" and value.sum().item() > 0:
                value = value + 1
            return torch.tanh(value)

    def made(between: str) -> CompiledStep:
        model = Chain()
        model.between = between
        return compiled_step(Source(model, "chain"), [(BATCH, WIDTH)], ["float32"], train=False, precision="fp32")

    whole, broken = made("nothing"), made("a break")
    assert whole.graphs is not None and broken.graphs is not None
    assert [(one.kernels, one.library_calls) for one in whole.graphs] == [(1, 0)]
    assert whole.breaks == ()
    assert [one.kernels for one in broken.graphs] == [1, 1]
    assert sum(times for _, times in broken.breaks) == 1
    assert made("a look").broke


@pytest.mark.filterwarnings("ignore")
def test_under_autocast_the_casts_are_operations_of_the_graph() -> None:
    torch = pytest.importorskip("torch")
    from perfctl.workloads.compiling.inductor import compiled_step
    from perfctl.workloads.models.source import Source

    def made(precision: str) -> CompiledStep:
        model = torch.nn.Linear(WIDTH, WIDTH)
        return compiled_step(Source(model, "net.py"), [(BATCH, WIDTH)], ["float32"], train=False, precision=precision)

    (plain,) = made("fp32").graphs or ()
    for precision in ("bf16", "fp16"):
        (cast,) = made(precision).graphs or ()
        assert cast.operations == plain.operations + 3, "of the input, the weight and the bias"
        assert cast.library_calls == plain.library_calls == 1
    assert made("fp8").problem == "torch.compile is not followed in fp8"


def test_a_model_is_compiled_in_another_process_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv(trace_cache.OFF)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, baseline = tmp_path / "code" / "net.py", tmp_path / "gate.json"
    file.parent.mkdir()
    file.write_text(NET, encoding="utf-8")
    os.utime(file, (1e9, 1e9))  # what is newer than the process that imports it is not kept
    request = Request(f"{file}:Net", (str(WIDTH),), "infer")
    gate.update(baseline, [gate.model(request, [BATCH], compiled=True)])
    with monkeypatch.context() as patch:
        patch.setattr(compiled.subprocess, "run", None)  # a second call starts no process
        (same,) = gate.gate(baseline)
    assert not same.failed and not same.undecided
    assert [row.after for row in same.rows if row.quantity == "compiled_kernels"] == [1]
