"""The loop: what is measured, what is marked, and what is left behind when it fails."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from typing import Any

import pytest
import torch

from perfctl.records.paper import OpShape
from perfctl.records.report import Device, Gap, MemoryFigure, Step
from perfctl.workloads.models import mnist_cnn
from perfctl.workloads.run import loop
from perfctl.workloads.run.memory import MemoryWatch
from perfctl.workloads.run.options import parse_workload_arguments
from perfctl.workloads.spec import WorkloadError, WorkloadOptions
from tests.workloads import small
from tests.workloads.autograd_truth import Seen
from tests.workloads.small import Small

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

KEYS = [
    "perfctl_workload_record",
    "workload",
    "batch_size",
    "mode",
    "precision",
    "seed",
    "status",
    "reason",
    "variant",
    "options",
    "environment",
    "device",
    "started_at",
    "duration_ns",
    "clock",
    "steps",
    "memory",
    "summaries",
    "ops",
    "layer_times",
    "parameters",
    "gaps",
]


def run(tmp_path, workload=None, **changes):
    """(the record, what was written) of a short run."""
    record = small.run(tmp_path, workload, **changes)
    return record, json.loads((tmp_path / "record.json").read_text())


def test_the_record_has_its_keys_and_rows_have_the_records_fields(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2-secret")
    record, written = run(tmp_path, epochs=2)
    assert "hunter2-secret" not in (tmp_path / "record.json").read_text()
    assert list(written) == KEYS
    assert (written["workload"], written["batch_size"], written["mode"]) == ("small", 4, "train")
    assert (written["status"], written["reason"], written["clock"]) == ("ok", None, "monotonic")
    for key, kind in (("steps", Step), ("memory", MemoryFigure), ("gaps", Gap)):
        assert written[key]
        assert all(tuple(row) == kind._fields for row in written[key])
    assert all(
        list(row) == [field.name for field in dataclasses.fields(OpShape)] for row in written["ops"]
    )
    assert list(written["device"]) == [field.name for field in dataclasses.fields(Device)]
    assert written["parameters"] == {"fc": 6 * 3 + 3}
    assert all(isinstance(value, str) for value in written["environment"].values())
    assert not list(tmp_path.glob(".*"))
    rows = [row for row in record.steps if row.phase in ("epoch", "test")]
    assert [(row.number, row.phase) for row in rows] == [
        (number, phase) for number in (0, 1) for phase in ("epoch", "test")
    ]
    assert all(
        row.loss is not None and row.accuracy is not None and 0 <= row.accuracy <= 1 for row in rows
    )


def test_each_measured_step_has_its_phases_inside_it_and_the_shapes_are_of_one(tmp_path):
    record, _ = run(tmp_path)
    assert Counter(row.phase for row in record.steps) == dict.fromkeys(
        ("step", "data", "copy", "forward", "backward", "optimizer"), 3
    )
    for number in range(3):
        rows = {row.phase: row for row in record.steps if row.number == number}
        whole = rows.pop("step")
        assert whole.loss is not None
        parts = sum(row.duration_ns or 0 for row in rows.values())
        assert 0 < parts <= (whole.duration_ns or 0) <= (record.duration_ns or 0)
        assert all((whole.start_ns or 0) <= (row.start_ns or 0) for row in rows.values())
    products = [op for op in record.ops if op.op == "aten.addmm"]
    assert [(op.layer, op.calls, op.outputs) for op in products] == [("fc", 1, ((4, 3),))]
    assert {op.direction for op in record.ops} >= {"forward", "backward"}


def test_inference_has_no_loss_and_one_phase_of_its_own(tmp_path):
    record, _ = run(tmp_path, mode="infer")
    assert {row.phase for row in record.steps} == {"step", "data", "copy", "inference"}
    assert all(row.loss is None for row in record.steps)
    assert {op.direction for op in record.ops} == {"forward"}


def test_a_seed_gives_the_same_losses_and_another_seed_others():
    def losses(seed):
        options, own = parse_workload_arguments(
            "mnist_cnn", f"--batch 8 --steps 2 --warmup 1 --seed {seed}".split()
        )
        return [
            row.loss
            for row in loop.run_workload(mnist_cnn, options, own).steps
            if row.phase == "step"
        ]

    first = losses(3)
    assert None not in first
    assert first == losses(3)
    assert first != losses(4)


def test_the_losses_are_those_of_a_plain_training_loop(tmp_path):
    record, _ = run(tmp_path, annotate="record_function", seed=5)
    torch.manual_seed(5)
    parts = Small().build(WorkloadOptions(batch_size=4), Small.Own())
    dataset: Any = parts.train_data
    expected = []
    # two steps of warm-up, then three measured ones from the beginning
    for first in (0, 4, 0, 4, 8):
        inputs, labels = dataset[first : first + 4]
        parts.optimizer.zero_grad()
        loss = parts.loss(parts.model(inputs), labels)
        loss.backward()
        parts.optimizer.step()
        expected.append(loss.item())
    assert [row.loss for row in record.steps if row.phase == "step"] == expected[2:]


def test_only_measured_steps_are_marked(tmp_path, monkeypatch):
    seen = Seen()
    monkeypatch.setattr("perfctl.workloads.run.setup.make_range_backend", lambda kind: seen)
    run(tmp_path, annotate="nvtx", epochs=1)
    inside = "perfctl:window / perfctl:step:2 / perfctl:phase"
    assert seen.paths[0] == "perfctl:window"
    assert all(path.startswith("perfctl:window") for path in seen.paths)
    assert {path.split(" / ")[1] for path in seen.paths[1:]} == {
        f"perfctl:step:{n}" for n in range(3)
    }
    assert f"{inside}:forward / Layer:forward / fc:forward" in seen.paths
    assert f"{inside}:backward / fc:grad_weight" in seen.paths
    assert f"{inside}:optimizer" in seen.paths
    assert seen.open == []


def test_only_measured_steps_lie_in_the_torch_trace(tmp_path):
    trace = tmp_path / "deep" / "trace.json.gz"
    run(tmp_path, annotate="record_function", window="torch", trace=trace, warmup=4, epochs=1)
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = Counter(event["name"] for event in events if event.get("ph") == "X")
    # one product forwards and one for the weight's gradient (the input needs none) in each of the
    # 3 steps
    assert names["aten::addmm"] == 3
    assert names["aten::mm"] == 3
    assert names["fc:forward"] == 3
    assert [names[f"perfctl:step:{n}"] for n in range(4)] == [1, 1, 1, 0]
    assert names["perfctl:window"] == 1
    assert list(trace.parent.iterdir()) == [trace]


def test_the_mean_loss_weighs_a_short_last_batch_by_its_samples(tmp_path):
    class Frozen(Small):
        def build(self, options, own):
            parts = super().build(options, own)
            parts.optimizer.param_groups[0]["lr"] = 0.0
            return parts

    # 20 samples in batches of 8, 8 and 4; with nothing learnt, train and test see the same mean
    # over samples.
    record, _ = run(tmp_path, Frozen(), batch_size=8, epochs=1)
    train, test = (row for row in record.steps if row.phase in ("epoch", "test"))
    assert train.loss == pytest.approx(test.loss, rel=1e-6)


def test_drawn_digits_can_be_learnt():
    options, own = parse_workload_arguments(
        "mnist_cnn", ["--batch", "64", "--steps", "1", "--warmup", "1", "--epochs", "1"]
    )
    record = loop.run_workload(mnist_cnn, options, own)
    (epoch,) = (row for row in record.steps if row.phase == "epoch")
    assert epoch.accuracy is not None
    assert epoch.accuracy > 0.5  # chance is 0.1


def test_a_process_that_is_killed_leaves_a_failed_record(tmp_path):
    class Looks(Small):
        def build(self, options, own):
            self.found = json.loads((tmp_path / "record.json").read_text())
            return super().build(options, own)

    workload = Looks()
    run(tmp_path, workload)
    assert workload.found["status"] == "failed"
    assert "killed" in workload.found["reason"]


def test_a_loss_that_is_no_number_is_null_with_a_gap(tmp_path):
    class Diverges(Small):
        def build(self, options, own):
            parts = super().build(options, own)
            return dataclasses.replace(parts, loss=lambda out, target: out.sum() * float("nan"))

    _, written = run(tmp_path, Diverges(), steps=1)
    assert [row["loss"] for row in written["steps"] if row["phase"] == "step"] == [None]
    assert [gap["scope"] for gap in written["gaps"] if gap["quantity"] == "step.loss"] == ["step 0"]


def test_a_cpu_run_says_why_it_has_no_device_memory_and_no_window(tmp_path):
    record, _ = run(tmp_path, window="cuda")
    memory = {f"memory:{name}" for name in ("allocated", "reserved", "device_free", "device_total")}
    assert {gap.quantity for gap in record.gaps} == {"window:cuda", *memory}
    assert record.status == "ok"
    found = {(row.moment, row.quantity) for row in record.memory}
    assert {
        ("before", "host_resident"),
        ("after", "host_available"),
        ("peak", "host_resident"),
    } <= found


def test_memory_is_read_before_loading_after_loading_and_after_the_last_test(tmp_path, monkeypatch):
    happened: list[str] = []
    read, build, epochs = MemoryWatch.record_memory_amounts, Small.build, loop.train_and_test_epochs
    monkeypatch.setattr(
        MemoryWatch,
        "record_memory_amounts",
        lambda self, moment: (happened.append(moment), read(self, moment))[1],
    )
    monkeypatch.setattr(Small, "build", lambda *given: (happened.append("build"), build(*given))[1])
    monkeypatch.setattr(
        loop, "train_and_test_epochs", lambda *given: (happened.append("epochs"), epochs(*given))[1]
    )
    record, _ = run(tmp_path, epochs=1)
    assert happened == ["start", "build", "before", "epochs", "after"]
    order = list(dict.fromkeys(row.moment for row in record.memory))
    assert order == ["start", "before", "peak", "after"]


def test_memory_is_read_to_the_end_when_the_training_fails(tmp_path):
    forward_passes = 2 + 3  # warm-up and measured steps: the next one is the training's first
    with pytest.raises(RuntimeError, match="the layer broke"):
        run(tmp_path, Small(fail_at=forward_passes), epochs=1)
    written = json.loads((tmp_path / "record.json").read_text())
    assert {row["moment"] for row in written["memory"]} == {"start", "before", "peak", "after"}


def test_a_record_that_cannot_be_written_is_found_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkloadError, match=r"cannot write the record.*file"):
        run(tmp_path, record=tmp_path / "file" / "record.json")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_the_precision_is_what_the_layers_compute_in(tmp_path, precision, dtype):
    record, _ = run(tmp_path, precision=precision)
    (product,) = (op for op in record.ops if op.op == "aten.addmm")
    assert product.dtypes[-1] == dtype
    assert (record.environment["tf32_conv"], record.environment["tf32_matmul"]) == ("off", "off")
