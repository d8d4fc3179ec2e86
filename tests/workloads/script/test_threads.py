"""Scripts that call models in several threads, or leave in a hurry: measured, and
never disturbed."""

from __future__ import annotations

import threading

import pytest

from perfctl.records.report import CPU_OTHERS, CPU_WAIT
from perfctl.workloads.script.counting import IDLE_AFTER, Lead
from tests.forked import Forks
from tests.workloads.script.ran import Ran, run_both

torch = pytest.importorskip("torch")

BEGIN = """
import os, sys, threading, torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.ones(6, 4)
def train(count):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        sgd.zero_grad(); loss = model(x).square().mean(); loss.backward(); sgd.step()
    print(loss.item())
def call(factor):
    with torch.no_grad(): return model(x * factor).sum().item()
def aside(function, *arguments):
    thread = threading.Thread(target=function, args=arguments); thread.start(); thread.join()
"""
SCRIPT_OF = {
    "warmed up in a thread": "aside(call, 1); train(8)",
    "warmed up in a pool": "pool = ThreadPoolExecutor(1); list(pool.map(call, range(4)))\n"
    "print(sum(call(n) for n in range(16)))",
    "forward in a thread": (
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\nfor _ in range(16):\n"
        "    out = []; sgd.zero_grad(); aside(lambda: out.append(model(x)))\n"
        "    out[0].mean().backward(); sgd.step()\nprint(out[0].sum().item())"
    ),
    "trained in a thread": "aside(train, 8)",
    "a thread for each call": (
        "out = []\nfor n in range(10): aside(lambda: out.append(call(n)))\nprint(sum(out))"
    ),
    "a pool": "turn = threading.Barrier(2)\ndef both(n):\n    turn.wait(); return call(n)\n"
    "with ThreadPoolExecutor(2) as pool: print(round(sum(pool.map(both, range(24))), 3))",
    "replicas": (
        "class Parallel(nn.Module):\n    def __init__(self):\n        super().__init__(); "
        "self.module = model\n"
        "    def forward(self, x):\n        out = [None, None]\n"
        "        def part(n, piece): out[n] = self.module(piece)\n"
        "        both = [threading.Thread(target=part, args=pair) for pair in "
        "enumerate(x.chunk(2))]\n"
        "        [one.start() for one in both]; [one.join() for one in both]\n"
        "        return torch.cat(out)\n"
        "whole = Parallel()\nmodel = whole\ntrain(8)"
    ),
    "leaves by os._exit": "train(8); sys.stdout.flush(); os._exit(0)",
    "leaves by os._exit with 3": "train(8); sys.stdout.flush(); os._exit(3)",
    "a model that perfctl cannot read": (
        "class Odd(nn.Linear):\n    def parameters(self, recurse=True):\n"
        "        if sys._getframe(1).f_globals['__name__'].startswith('perfctl'): raise "
        "LookupError('not for you')\n"
        "        return super().parameters(recurse)\nmodel = Odd(4, 2)\ntrain(8)"
    ),
}


@pytest.fixture(scope="module", params=SCRIPT_OF)
def named(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> tuple[str, Ran]:
    script = tmp_path_factory.mktemp("threads") / "script.py"
    options = "--steps 3 --window torch --trace t.json"
    return request.param, run_both(forks, script, BEGIN + SCRIPT_OF[request.param], options)


def test_it_is_measured_and_prints_and_ends_as_it_would_by_itself(named: tuple[str, Ran]) -> None:
    name, run = named
    assert (run.code, run.out) == run.alone, run.err
    assert "Traceback" not in run.err
    if name == "a model that perfctl cannot read":
        assert run.record["status"] == "failed"
        said = "script.py, which continued: internal error (LookupError: not for you)"
        assert run.record["reason"] == f"perfctl stopped watching {said}"
        return
    assert run.record["status"] == ("partial" if name.endswith("3") else "ok"), run.record["reason"]
    assert run.steps == [0, 1, 2]
    assert run.record["mode"] == (
        "train"
        if run.record["environment"]["step_ends_with"] == "the optimizer's step"
        else "infer"
    )
    if name.endswith("3"):
        assert run.record["reason"] == "script.py ended with exit code 3"


def test_what_other_threads_did_meanwhile_is_said(named: tuple[str, Ran]) -> None:
    name, run = named
    stated = {
        row["name"]: row["value"]
        for row in run.record["summaries"]
        if row["name"] not in (CPU_WAIT, CPU_OTHERS)
    }
    if name == "a pool":
        assert "models were also called in other threads" in run.gaps["layer_call"]
        # the two threads wait for each other before each call: a step of one has one or two calls
        # of the other
        assert 6 < stated["samples_per_step"] <= 3 * 6
        assert stated["samples_per_step"] == 6 * stated["batches_per_step"]
    elif name == "replicas":
        assert "another thread runs its forward (as in DataParallel)" in run.gaps["layer shapes"]
        assert stated == {}
    else:
        assert stated == {}


def test_the_thread_that_trains_leads_and_an_idle_or_ended_one_gives_way() -> None:
    taken: list[bool] = []
    lead = Lead(taken.append)
    answers: list[bool] = []

    def run(*events: dict[str, bool]) -> None:
        thread = threading.Thread(
            target=lambda: answers.extend(lead.leads(**event) for event in events)
        )
        thread.start()
        thread.join()

    run({"called": True})
    assert lead.leads(called=True)  # the first has ended
    assert taken == [True]
    run(*[{"called": True}] * (IDLE_AFTER + 1))
    assert answers == [True, *[False] * IDLE_AFTER, True]
    assert lead.leads(trains=True)
    run({"called": True}, {"trains": True})
    assert answers[-2:] == [False, False]
    assert taken == [True, False, True]
