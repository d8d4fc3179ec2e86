"""Times of layers: from steps of their own, each without what runs within it."""

import threading

import pytest

from perfctl.parsers.own import workload_record
from perfctl.workloads.models import families
from perfctl.workloads.models.plan import plan_model
from perfctl.workloads.run import loop
from perfctl.workloads.run.clock import DeviceClock
from perfctl.workloads.run.loop import MODEL, TimedRanges
from perfctl.workloads.spec import LEAST_STEPS, WorkloadOptions

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

MODEL_SPEC = "vgg:depth=5,stages=1,width=2,hidden=4,image=4"


class Counting(DeviceClock):
    """A clock that goes on by one with each mark."""

    now = 0

    def record_mark(self):
        self.now += 1
        return self.now


def run(**changes):
    options = WorkloadOptions(**{"batch_size": 2, "steps": 2, "warmup": 1} | changes)
    return loop.run_workload(families, options, families.Own(model=MODEL_SPEC, samples=4))


def test_a_range_counts_without_those_within_it_and_calls_of_one_name_add_up():
    ranges = TimedRanges(Counting())
    ranges.push("outer")  # 1
    for _ in range(2):
        ranges.push("inner")  # 2, 4
        ranges.pop()  # 3, 5
    ranges.pop()  # 6
    assert ranges.pop_exclusive_ns_by_name() == {"inner": 2, "outer": 5 - 2}
    assert ranges.pop_exclusive_ns_by_name() == {}


def test_ranges_of_two_threads_do_not_nest_in_each_other():
    ranges = TimedRanges(Counting())
    ranges.push("forward")

    def backward():
        ranges.push("backward")
        ranges.pop()

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    ranges.pop()
    assert ranges.pop_exclusive_ns_by_name() == {"backward": 1, "forward": 3}


def test_each_layer_of_a_model_is_timed_in_both_directions_in_steps_of_its_own(tmp_path):
    record = run(layer_steps=3, record=tmp_path / "workload.json")
    assert list(workload_record.parse(tmp_path / "workload.json").layer_times) == record.layer_times
    assert [row.phase for row in record.steps].count("step") == 2
    forward = {row.layer for row in record.layer_times if row.direction == "forward"}
    backward = {row.layer for row in record.layer_times if row.direction != "forward"}
    layers = plan_model(MODEL_SPEC).layers
    assert forward == {layer.name for layer in layers} | {MODEL}
    assert {
        layer.name
        for layer in layers
        if layer.parameters or layer.kind in ("activation", "max_pool")
    } <= backward
    for row in record.layer_times:
        assert row.low_ns <= row.duration_ns <= row.high_ns
        assert row.steps == 3
    kinds = {row.layer: row.kind for row in record.layer_times}
    assert (kinds["stage1.0.conv"], kinds["fc3"], kinds[MODEL]) == ("Conv2d", "Linear", "Planned")


def test_slow_steps_are_measured_a_few_times_and_fast_ones_as_often_as_asked():
    slow, fast = run(steps=40, within=1e-9), run(steps=7, within=60.0)
    assert [row.phase for row in slow.steps].count("step") == LEAST_STEPS
    assert [row.phase for row in fast.steps].count("step") == 7
    assert fast.layer_times == []
