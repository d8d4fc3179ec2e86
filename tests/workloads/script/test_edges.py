"""Scripts that raise, stop early, never step, train in other ways: each leaves a record that says
so, and is not disturbed."""

import json
from functools import cache

import pytest

from tests.workloads import started
from tests.workloads.script.ran import run_both

torch = pytest.importorskip("torch")

BEGIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
batches = [torch.randn(6, 4) for _ in range(8)]
def train(count, optimizer):
    for x in batches[:count]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
FUNCTIONAL = """
w = torch.randn(4, 2, requires_grad=True)
for x in batches:
    (x @ w).sum().backward()
    w.data -= 0.1 * w.grad
    w.grad = None
print(w.sum().item())
"""
SCRIPT_OF = {
    "trains": f"train(8, {SGD})",
    "raises": f"train(4, {SGD}); model(torch.randn(3, 3))",
    "raises in the window": f"o = {SGD}; train(3, o); model(torch.randn(3, 3))",
    "few steps": f"train(3, {SGD})",
    "too few": f"train(1, {SGD})",
    "never steps": "print('done')",
    "exits in the window": f"train(3, {SGD}); sys.exit(4)",
    "infers": "with torch.no_grad():\n    for x in batches: y = model(x)\nprint(y.sum().item())",
    "functional": FUNCTIONAL,
    "backward marks": FUNCTIONAL,
    "no warm-up": f"train(8, {SGD})",
    "another optimizer": f"train(8, {SGD})",
    "catches": "class Broken(nn.Module):\n    def forward(self, x): raise ValueError('broken')\n"
    f"o = {SGD}\nfor n in range(8):\n    try: nn.Sequential(nn.Identity(), Broken())(batches[0])\n"
    "    except ValueError: pass\n    train(1, o)",
    "half": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    with torch.no_grad():\n"
        "        for x in batches: y = model(x)"
    ),
    "mixed": (
        "model[2].double()\nwith torch.no_grad():\n    for x in batches: y = "
        "model[2](model[1](model[0](x)).double())"
    ),
    "closure": (
        f"o = {SGD}\ndef f():\n    o.zero_grad(); l = model(batches[0]).mean(); l.backward(); "
        "return l\n"
        "for _ in range(8): print(o.step(f).item())"
    ),
    "updates by hand": (
        "for x in batches:\n    model(x).square().mean().backward()\n    with torch.no_grad():\n"
        "        for p in model.parameters():\n            p -= 0.1 * p.grad\n"
        "            p.grad = None\nprint(p.sum().item())"
    ),
    "profiles itself": (
        f"o = {SGD}; train(3, o)\n"
        "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p: "
        "train(3, o)\n"
        "print(len(p.key_averages()) > 5)"
    ),
    "was profiling": (
        f"o = {SGD}; seen = []\nplan = torch.profiler.schedule(wait=1, warmup=1, active=4)\n"
        "with torch.profiler.profile(schedule=plan, on_trace_ready=lambda p: seen.append(p)) as "
        "p:\n"
        "    for _ in range(6): train(1, o); p.step()\nprint(len(seen))"
    ),
    "compiles": (
        "frames = []\ndef backend(graph, inputs):\n    frames.append(graph)\n"
        "    return graph.forward\n"
        "@torch.compile(backend=backend)\ndef loss_of(x): return second(model(x)).square().mean()\n"
        "second = nn.Linear(2, 2); second.compile(backend=backend)\n"
        f"o = {SGD}\nfor x in batches:\n    o.zero_grad(); loss_of(x).backward(); o.step()\n"
        "    y = second(torch.zeros(3, 2))\nprint(len(frames), y.sum().item())"
    ),
    "nothing left": (
        f"train(8, {SGD})\n"
        "from torch.nn.modules import module as m\nfrom torch.optim import optimizer as o\n"
        "assert not m._has_any_global_hook() and not o._global_optimizer_post_hooks and not "
        "o._global_optimizer_pre_hooks\n"
        "assert not hasattr(torch.autograd.backward, '__wrapped__') and not hasattr(torch.compile, "
        "'__wrapped__')\n"
        "assert not hasattr(nn.Module.zero_grad, '__wrapped__')\n"
        "assert not hasattr(o.Optimizer.__init__, '__wrapped__') and 'to' not in "
        "vars(torch.Tensor)\n"
        "assert 'script_import' not in repr(sys.meta_path)"
    ),
}
OPTIONS = {
    "backward marks": "--step-marker backward",
    "profiles itself": "--window torch --trace itself.json",
    "was profiling": "--window torch --trace was.json",
    "no warm-up": "--warmup 0",
    "another optimizer": "--step-marker optimizer:Adam",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("edges")

    @cache
    def ended(name):
        options = f"--steps 2 {OPTIONS.get(name, '')}"
        return run_both(forks, folder / f"{name}.py", BEGIN + SCRIPT_OF[name], options)

    return ended


@pytest.mark.parametrize("name", SCRIPT_OF)
def test_it_prints_and_ends_as_it_would_by_itself(ended, name):
    assert (ended(name).code, ended(name).out) == ended(name).alone, ended(name).err


@pytest.mark.parametrize(
    ("name", "status", "numbers", "reason"),
    [
        ("trains", "ok", [0, 1], None),
        ("raises", "partial", [0, 1], "raises.py raised RuntimeError: "),
        ("raises in the window", "partial", [0], "raises in the window.py raised RuntimeError: "),
        ("few steps", "ok", [0], None),
        (
            "too few",
            "failed",
            [],
            "too few.py ended after 1 steps (each ends with the optimizer's step;",
        ),
        (
            "never steps",
            "failed",
            [],
            "never steps.py: no optimizer stepped and no module was called. If it trains in",
        ),
        ("exits in the window", "partial", [0], "exits in the window.py ended with exit code 4"),
        ("infers", "ok", [0, 1], None),
        ("functional", "ok", [0, 1], None),
        ("updates by hand", "ok", [0, 1], None),
        ("profiles itself", "ok", [0], None),
        (
            "was profiling",
            "failed",
            [],
            "was profiling.py: the script runs torch.profiler itself, and two cannot",
        ),
        ("compiles", "ok", [0, 1], None),
        ("backward marks", "ok", [0, 1], None),
        ("no warm-up", "ok", [0, 1], None),
        (
            "another optimizer",
            "failed",
            [],
            "another optimizer.py: 8 optimizer steps and 8 calls of models, but "
            "--step-marker optimizer:Adam found no end of a step. Use another marker, or omit it",
        ),
        ("catches", "ok", [0, 1], None),
        ("closure", "ok", [0, 1], None),
        ("nothing left", "ok", [0, 1], None),
    ],
)
def test_the_record_says_how_far_it_came(ended, name, status, numbers, reason):
    run = ended(name)
    assert (run.record["status"], run.steps) == (status, numbers)
    assert (
        run.record["reason"] is None if reason is None else run.record["reason"].startswith(reason)
    )
    assert (run.record["duration_ns"] is None) == (not numbers)


def test_fewer_steps_than_requested_are_said_and_are_no_failure(ended):
    assert (
        ended("few steps")
        .gaps["step"]
        .startswith("few steps.py ended after 1 of 2 measured steps. Give it more data")
    )
    assert "perfctl: few steps.py ended after 1 of 2 measured steps" in ended("few steps").err
    said = "profiles itself.py: the script runs torch.profiler itself, and two cannot run at once"
    assert ended("profiles itself").gaps["step"].startswith(said)


def test_mode_and_marker_are_what_was_seen(ended):
    assert (ended("infers").record["mode"], ended("trains").record["mode"]) == ("infer", "train")
    assert ended("never steps").record["mode"] is None
    assert "batch_size" not in ended("trains").gaps
    names = ("infers", "trains", "backward marks")
    said = [ended(name).record["environment"]["step_ends_with"] for name in names]
    assert said == ["an outermost call of the model", "the optimizer's step", "a backward pass"]


def test_precision_is_what_the_layers_computed_in(ended):
    assert ended("trains").record["precision"] == "fp32"
    assert ended("half").record["precision"] == "bf16"
    assert ended("mixed").record["precision"] is None
    assert "fp32" in ended("mixed").gaps["precision"]
    assert "fp64" in ended("mixed").gaps["precision"]


def test_compiled_functions_and_modules_are_regions_that_a_note_names(ended):
    reasons = [gap for gap in ended("compiles").record["gaps"] if gap["quantity"] == "layer ranges"]
    assert {gap["scope"] for gap in reasons} == {"loss_of", "second"}


def test_shapes_are_of_one_whole_step(ended):
    for name in ("trains", "infers", "no warm-up"):
        forward = [
            op for op in ended(name).record["ops"] if op["direction"] == "forward" and op["layer"]
        ]
        assert [op["layer"] for op in forward] == ["model.0", "model.1", "model.2"]
        assert {op["calls"] for op in forward} == {1}


STOPS = """
import atexit, sys, threading
import torch
model, losses = torch.nn.Linear(4, 2), []
optimizer = torch.optim.SGD(model.parameters(), 0.1)
atexit.register(lambda: print("at exit"))
def train():
    try:
        for number in range(9):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    finally:
        print("steps", number + 1)
    print("the end")
if sys.argv[1:] == ["thread"]:
    thread = threading.Thread(target=train); thread.start(); thread.join()
else:
    train()
"""


@pytest.mark.parametrize(
    ("words", "variables", "printed"),
    [
        (("--stop",), {}, ["steps 5", "at exit"]),
        ((), {}, ["steps 9", "the end", "at exit"]),
        (("--stop",), {"RANK": "0", "WORLD_SIZE": "2"}, ["steps 9", "the end", "at exit"]),
        (("--stop", "thread"), {}, ["steps 9", "the end", "at exit"]),
    ],
    ids=["stops", "runs to its end", "one of two ranks", "in another thread"],
)
def test_a_script_that_stops_after_its_steps_exits_normally(tmp_path, words, variables, printed):
    script, record = tmp_path / "stops.py", tmp_path / "record.json"
    script.write_text(STOPS)
    own = (*started.PERFCTL, "--record", str(record), "--steps", "3", "--warmup", "2")
    stop = tuple(word for word in words if word == "--stop")
    asked = (*own, *stop, "--", str(script), *(word for word in words if word not in stop))
    done = started.start(tmp_path, *asked, **variables)
    assert (done.returncode, done.stdout.splitlines()) == (0, printed), done.stderr
    stopped = printed[0] == "steps 5"
    line = "perfctl: stops.py stopped after 5 steps; --to-end runs on"
    assert (line in done.stderr.splitlines()) == stopped
    content = json.loads(record.read_text())
    assert content["status"] == "ok"
    assert [row["number"] for row in content["steps"] if row["phase"] == "step"] == [0, 1, 2]
    assert content["environment"].get("stopped_after_steps") == ("5" if stopped else None)


CATCHES = """
import atexit
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
atexit.register(lambda: print("at exit"))
def train():
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("lines", "printed", "is_ended"),
    [
        (
            "for number in range(99):\n    try: train()\n    except: print('caught', number)",
            ["caught 2", "caught 3"],
            True,
        ),
        (
            "try:\n    while True: train()\nexcept: print('caught')\nmodel(torch.ones(3, 4))",
            ["caught", "at exit"],
            False,
        ),
        (
            "try:\n    while True: train()\nfinally: print(len(model(torch.ones(3, 4))))",
            ["3", "at exit"],
            False,
        ),
    ],
    ids=["in each step", "once", "a model in the handler"],
)
def test_a_script_that_catches_the_stop_ends_all_the_same(tmp_path, lines, printed, is_ended):
    script, record = tmp_path / "catches.py", tmp_path / "record.json"
    script.write_text(CATCHES + lines)
    own = (*started.PERFCTL, "--record", str(record), "--steps", "2", "--warmup", "1", "--stop")
    done = started.start(tmp_path, *own, "--", str(script))
    assert (done.returncode, done.stdout.splitlines()) == (0, printed), done.stderr
    ended = "perfctl: catches.py caught the stop and ran on: perfctl ended it"
    assert (ended in done.stderr.splitlines()) == is_ended
    content = json.loads(record.read_text())
    assert (content["status"], content["environment"]["stopped_after_steps"]) == ("ok", "3")
