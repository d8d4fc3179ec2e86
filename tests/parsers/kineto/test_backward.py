"""Backward operations of a trace: by sequence numbers where no range says whose they are."""

from __future__ import annotations

import json
import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import parse
from perfctl.parsers.kineto.events import collect
from perfctl.parsers.kineto.nesting import Nesting, assign_layers
from perfctl.records.report import Operation
from tests.forked import PERFCTL, Forks

Event = dict[str, Any]
SCRIPTS = Path(__file__).resolve().parents[2] / "data/scripts"


def operation(
    name: str, start: int, length: int, *, thread: int = 1, number: int = -1, backward: bool = False
) -> Event:
    """Times in microseconds."""
    args = {} if number < 0 else {"Sequence number": number, "Fwd thread id": int(backward)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args}


def annotation(name: str, start: int, length: int, *, thread: int = 1) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


def module(name: str, start: int, length: int, *, thread: int = 1) -> Event:
    return {**annotation(f"nn.Module: {name}", start, length, thread=thread), "cat": "python_function"}


def operations(tmp_path: Path, *events: Event) -> dict[str, Operation]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return {entry.name: entry for entry in parse(path).operations}


def place(entry: Operation) -> tuple[str | None, str | None]:
    return entry.layer, entry.direction


def test_a_backward_operation_has_the_layer_of_the_forward_one_with_its_number(tmp_path: Path) -> None:
    found = operations(
        tmp_path,
        annotation("conv:forward", 0, 10), operation("aten::conv2d", 1, 8, number=5),
        annotation("fc:forward", 20, 10), operation("aten::linear", 21, 8, number=6),
        operation("ConvolutionBackward0", 50, 10, thread=2, number=5, backward=True),
        operation("aten::convolution_backward", 51, 5, thread=2),
        operation("AddmmBackward0", 40, 5, thread=2, number=6, backward=True),
    )  # fmt: skip
    assert place(found["ConvolutionBackward0"]) == ("conv", "backward")
    assert place(found["aten::convolution_backward"]) == ("conv", "backward")
    assert place(found["AddmmBackward0"]) == ("fc", "backward")


def test_two_threads_with_the_same_number_in_different_layers_settle_nothing(tmp_path: Path) -> None:
    found = operations(
        tmp_path,
        annotation("left:forward", 0, 10, thread=1), operation("aten::mm", 1, 8, number=5, thread=1),
        annotation("right:forward", 0, 10, thread=2), operation("aten::mm", 1, 8, number=5, thread=2),
        operation("MmBackward0", 40, 5, thread=3, number=5, backward=True),
    )  # fmt: skip
    assert found["MmBackward0"].layer is None


def test_a_number_of_nothing_that_a_layer_did_settles_nothing(tmp_path: Path) -> None:
    found = operations(
        tmp_path, annotation("fc:forward", 0, 10), operation("aten::nll_loss", 20, 8, number=5),
        operation("NllLossBackward0", 40, 5, number=5, backward=True),
        operation("MmBackward0", 50, 5, number=77, backward=True),
    )  # fmt: skip
    assert found["NllLossBackward0"].layer is found["MmBackward0"].layer is None


def test_a_range_says_more_than_a_number(tmp_path: Path) -> None:
    found = operations(
        tmp_path,
        annotation("a:forward", 0, 10), operation("aten::mm", 1, 8, number=5),
        annotation("b:grad_input", 39, 10), operation("MmBackward0", 40, 5, number=5, backward=True),
    )  # fmt: skip
    assert place(found["MmBackward0"]) == ("b", "grad_input")


def test_modules_name_layers_by_instance_and_a_module_called_in_backward_is_recomputed(tmp_path: Path) -> None:
    found = operations(
        tmp_path,
        module("Net_0", 0, 100), module("Sequential_0", 10, 50), module("Linear_1", 20, 10),
        operation("aten::linear", 21, 5, number=3), operation("aten::relu", 90, 5, number=4),
        operation("CheckpointFunctionBackward", 200, 50, number=9, backward=True),
        module("Linear_1", 210, 10), operation("aten::addmm", 211, 5),
        operation("AddmmBackward0", 300, 10, number=3, backward=True),
    )  # fmt: skip
    assert place(found["aten::linear"]) == ("Sequential_0.Linear_1", "forward")
    assert place(found["aten::relu"]) == ("Net_0", "forward")
    assert place(found["aten::addmm"]) == ("Sequential_0.Linear_1", "recompute")
    assert place(found["AddmmBackward0"]) == ("Sequential_0.Linear_1", "backward")


def test_modules_are_no_layers_where_ranges_name_some(tmp_path: Path) -> None:
    found = operations(
        tmp_path,
        module("Net_0", 0, 100), module("Linear_0", 10, 50), annotation("fc:forward", 11, 10),
        operation("aten::linear", 12, 5), operation("aten::relu", 70, 5),
    )  # fmt: skip
    assert (found["aten::linear"].layer, found["aten::relu"].layer) == ("fc", None)


def test_the_optimizers_work_has_its_direction_by_torchs_own_range(tmp_path: Path) -> None:
    found = operations(tmp_path, annotation("Optimizer.step#SGD.step", 0, 10), operation("aten::add_", 1, 5))
    assert place(found["aten::add_"]) == (None, "optimizer")


def run_workload(forks: Forks, folder: Path, *arguments: str, before: tuple[str, ...] = (), batch: int = 8) -> Path:
    """A trace of three steps on one thread of the CPU: with more, waiting for one another would count as work."""
    out = folder / "trace.json"
    options = ["--annotate", "record_function", "--window", "torch", "--trace", str(out), "--batch", str(batch)]
    options += ["--steps", "3", "--warmup", "2", "--record", str(folder / "record.json")]
    made = forks.run(folder, *PERFCTL, *before, *options, *arguments)
    assert made.returncode == 0, made.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def mnist(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_workload(forks, tmp_path_factory.mktemp("mnist"), before=("mnist_cnn",))


LOSS = re.compile(r"aten::.*(log_softmax|nll_loss|cross_entropy)|(LogSoftmax|NllLoss|BinaryCrossEntropy)")


def attributed(path: Path) -> tuple[float, dict[str, int]]:
    """(share of the operators' own time that has a layer or is the optimizer's, the rest by name).

    A loss computed by a function, after the model has returned, is in no layer. It is left out of the sum.
    """
    known, rest = 0, defaultdict(int)
    for entry in parse(path).operations:
        assert entry.self_cpu_ns is not None
        if entry.layer is not None or entry.direction == "optimizer":
            known += entry.self_cpu_ns
        elif not LOSS.match(entry.name):
            rest[entry.name] += entry.self_cpu_ns
    return known / (known + sum(rest.values())), dict(sorted(rest.items(), key=lambda item: -item[1])[:8])


def test_operator_time_of_a_real_cpu_trace_goes_to_layers_and_the_optimizer(mnist: Path) -> None:
    share, rest = attributed(mnist)
    assert share >= 0.95, rest


@pytest.mark.parametrize("name", ["mnist", "resnet_shared", "bilstm", "transformer", "gan"])
def test_operator_time_of_an_unedited_script_goes_to_layers_and_optimizers(
    forks: Forks, name: str, tmp_path: Path
) -> None:
    """At batch 64: the networks are tiny, and what does not grow with the batch (clipping, the loader) is in no layer."""
    shares = []
    for _ in range(4):  # again where another process took the core in the middle of an operation
        path = run_workload(forks, tmp_path, "--", str(SCRIPTS / f"{name}.py"), "--batch-size", "64", batch=64)
        share, rest = attributed(path)
        if share >= 0.95:
            return
        shares.append((share, rest))
    pytest.fail(f"less than 95 % of operator time has a layer: {shares}")


def test_sequence_numbers_alone_tell_the_layers_that_backward_ranges_tell(mnist: Path) -> None:
    """The same real trace once with its backward ranges and once without them."""
    events = json.loads(mnist.read_text())["traceEvents"]

    def layers(some: list[Event]) -> dict[tuple[str, int, int], str | None]:
        found = collect(some)
        nesting = Nesting(found, [])
        assign_layers(found, nesting)
        spans = [(s, c.layer) for s, c in zip(found.spans, nesting.contexts, strict=True) if not s.is_range]
        return {(span.name, span.thread, span.external): layer for span, layer in spans}

    for event in events:
        event.update({key: str(event[key]) for key in ("ts", "dur") if key in event})  # as the parser gets them
    told = layers(events)
    derived = layers([event for event in events if ":backward" not in event.get("name", "")])
    nodes = [key for key in told if key[0].endswith(("Backward0", "Backward1")) and told[key] is not None]
    assert len({told[key] for key in nodes}) >= 8
    assert {key: derived[key] for key in nodes} == {key: told[key] for key in nodes}


def test_a_training_step_traced_with_stacks_by_somebody_else_is_attributed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch speaks of drivers where there is no GPU
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
            model(torch.randn(8, 1, 8, 8)).sum().backward()
            optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    by_name = defaultdict(set)
    for entry in parse(tmp_path / "trace.json").operations:
        by_name[entry.name].add(place(entry))
    (conv,) = by_name["aten::conv2d"]
    (linear,) = by_name["aten::linear"]
    assert conv[0] and conv[0].startswith("Conv2d_") and conv[1] == "forward"
    assert linear[0] and linear[0].startswith("Linear_")
    assert by_name["aten::convolution_backward"] == {(conv[0], "backward")}
    assert by_name["AddmmBackward0"] == {(linear[0], "backward")}
    assert (None, "optimizer") in by_name["aten::add_"] | by_name["aten::_foreach_add_"]
