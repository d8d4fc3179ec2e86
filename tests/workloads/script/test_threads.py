"""Scripts that call models in several threads, or leave in a hurry: measured, and
never disturbed."""

from __future__ import annotations

import json
import threading

import pytest

from perfctl.records.report import CPU_OTHERS, CPU_WAIT
from perfctl.workloads.script.counting import IDLE_AFTER, LeadThread
from tests.forked import PERFCTL
from tests.workloads.script.ran import run_both

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
def named(request, tmp_path_factory, forks):
    script = tmp_path_factory.mktemp("threads") / "script.py"
    options = "--steps 3 --window torch --trace t.json"
    return request.param, run_both(forks, script, BEGIN + SCRIPT_OF[request.param], options)


def test_it_is_measured_and_prints_and_ends_as_it_would_by_itself(named):
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


def test_what_other_threads_did_meanwhile_is_said(named):
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


def test_the_thread_that_trains_leads_and_an_idle_or_ended_one_gives_way():
    taken: list[bool] = []
    lead = LeadThread(taken.append)
    answers: list[bool] = []

    def run(*events):
        thread = threading.Thread(
            target=lambda: answers.extend(
                lead.is_or_becomes_lead_thread(**event) for event in events
            )
        )
        thread.start()
        thread.join()

    run({"called": True})
    assert lead.is_or_becomes_lead_thread(called=True)  # the first has ended
    assert taken == [True]
    run(*[{"called": True}] * (IDLE_AFTER + 1))
    assert answers == [True, *[False] * IDLE_AFTER, True]
    assert lead.is_or_becomes_lead_thread(trains=True)
    run({"called": True}, {"trains": True})
    assert answers[-2:] == [False, False]
    assert taken == [True, False, True]


# Where the window of a script on a GPU opens. torch.cuda is a stand-in: no GPU is needed


GPU_WINDOW_BEGIN = """
from types import SimpleNamespace
import torch
from torch import nn

class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def elapsed_time(self, end): return 1.0

GPU = SimpleNamespace(
    name="GPU of a test", major=9, minor=0, multi_processor_count=132, total_memory=80
)
ANSWERS = dict(
    is_initialized=True, synchronize=None, current_device=0, get_device_properties=GPU,
    get_device_capability=(9, 0), mem_get_info=(70, 80), memory_allocated=1, memory_reserved=2,
    max_memory_allocated=3, max_memory_reserved=4, is_current_stream_capturing=False,
)
for name, answer in ANSWERS.items():
    setattr(torch.cuda, name, lambda *given, answer=answer: answer)
torch.cuda.Event = Event
torch.cuda.profiler.start = lambda: print("start")
torch.cuda.profiler.stop = lambda: print("stop")
"""
SCRIPTS = {
    "modules": """
class Kernel(nn.Module):
    def forward(self, x):
        return x + 1

class Known(nn.Module):
    def __init__(self):
        super().__init__()
        self.add = Kernel()

    def forward(self, x):
        print("step")
        return self.add(x)

model = Known()
for _ in range(5):
    model(torch.zeros(8))
""",
    "tensors": """
weight = torch.zeros(8, requires_grad=True)
for _ in range(5):
    print("step")
    (weight * 2).sum().backward()
""",
}
"""Programs without a parameter in a module: kernels of their own, tensors alone."""
MARKERS = {"modules": ("--step-marker", "forward:Known"), "tensors": ()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_without_parameters_that_uses_a_gpu_is_measured_on_it(tmp_path, forks, name):
    (tmp_path / "known.py").write_text(GPU_WINDOW_BEGIN + SCRIPTS[name])
    words = "--batch 8 --annotate none --window cuda --steps 1 --warmup 1 --record record.json"
    argv = (*PERFCTL, *words.split(), *MARKERS[name], "--", "known.py")
    code, out, err = forks.run(tmp_path, *argv)
    assert code == 0, err
    lines = out.splitlines()
    assert lines.count("start") == lines.count("stop") == 1
    assert lines[lines.index("start") : lines.index("stop") + 1] == ["start", "step", "stop"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "ok"
    assert record["device"]["name"] == "GPU of a test"
    assert not [gap for gap in record["gaps"] if gap["quantity"] == "window:cuda"]


# Whose layers are recorded when a script's steps differ: those of the measured steps, and what is


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, *, x):
        return self.fc(x)
model = Model() if sys.argv[1] == "by name" else nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for size in map(int, sys.argv[2:]):
    x = torch.randn(size, 4)
    optimizer.zero_grad()
    loss = (model(x=x) if sys.argv[1] == "by name" else model(x)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
WARMUP, STEPS = 2, 3
SIZES = {
    "the last batch is smaller": ("plain", 6, 3, 6, 6, 3, 6),
    "first seen inside, and again": ("plain", 3, 3, 6, 6, 6, 3, 6, 6),
    "first seen inside, and never again": ("plain", 6, 6, 6, 5, 6, 6, 6),
    "each one once": ("plain", 1, 2, 3, 4, 5),
    "given by name": ("by name", 3, 6, 6, 6, 3, 6, 6, 6),
}
"""Case -> how the model is called, and the batch sizes of its steps: two of warm-up, three
measured, the rest."""


@pytest.mark.parametrize(
    ("case", "recorded", "steps", "reasons"),
    [
        ("the last batch is smaller", {6}, "0-1", ["measured steps 0-1 with inputs 6x4", "2: 3x4"]),
        ("first seen inside, and again", {6}, "0-2", []),
        (
            "first seen inside, and never again",
            {6},
            "0, 2",
            [
                "measured steps 0, 2 with inputs 6x4",
                "first occurred in the measured steps",
                "1: 5x4",
            ],
        ),
        ("each one once", {1, 2}, "none", ["which no measured step had", "0: 3x4; 1: 4x4; 2: 5x4"]),
        ("given by name", {6}, "0-1", ["2: 3x4"]),
    ],
)
def test_the_layers_are_those_of_most_measured_steps_and_the_others_are_named(
    tmp_path, forks, case, recorded, steps, reasons
):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = f"--steps {STEPS} --warmup {WARMUP} --annotate record_function --record r.json --"
    argv = (*PERFCTL, *options.split(), "script.py", *map(str, SIZES[case]))
    done = forks.run(tmp_path, *argv)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    ops = [op for op in found["ops"] if op["op"] == "aten.addmm" and op["direction"] == "forward"]
    assert [op["calls"] for op in ops] == [1]
    assert ops[0]["outputs"][0][0] in recorded
    assert found["environment"]["layer_calls_of_steps"] == steps
    said = [gap["reason"] for gap in found["gaps"] if gap["quantity"] == "layer_call"]
    assert len(said) == bool(reasons)
    assert all(reason in said[0] for reason in reasons)
    if case == "the last batch is smaller":
        assert "first occurred" not in said[0], "a step of that size was recorded in the warm-up"
