"""What one run says that can be compared: each figure from made-up records, worked out by hand."""

import pytest

from perfctl.orchestrator.compare.quantities import (
    ObservedQuantity,
    QuantityKey,
    compare_quantities,
    observe_all_quantities,
    observe_executed_flops,
    observe_times,
)
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Kernel, MemoryFigure, Sample, Step
from tests.make import synthetic
from tests.make.synthetic import cpu_run, gpu_pair, make_run, with_report
from tests.make.tables import table

HOST = "CPU timer around each step, while torch was recording"


def kernel(name, took, step, layer=None, **more):
    direction = "forward" if layer else None
    return Kernel(0, name, layer=layer, direction=direction, step=step, duration_ns=took)._replace(
        **more
    )


def times_of(**changes):
    return observe_times(PreparedRun(make_run(**changes)))


def of_kernels(found):
    return {key[3:]: seen for key, seen in found.items() if key.level == "kernel"}


def test_a_step_has_its_time_its_samples_per_second_and_its_phases():
    steps = (
        Step(1, "copy", None, 5),
        Step(0, "copy", None, 3),
        Step(0, "copy", None, 4),
        Step(1, "copy", None, None),
        Step(0, "step", None, 200),
        Step(1, "step", None, 400),
        Step(2, "step", None, None),
        Step(0, "epoch", None, 9),
        Step(1, "forward", None, 60),
        Step(0, "forward", None, 50),
        Step(0, "backward", None, None),
        Step(0, "rest", None, 8),
    )
    found = times_of(steps=steps, batch_size=8)
    assert found == {
        QuantityKey("step", "time", "step"): ObservedQuantity((200, 400), HOST),
        QuantityKey("step", "throughput", "samples per second"): ObservedQuantity(
            (4e7, 2e7), HOST
        ),  # 8 in 200 ns
        # both copies of step 0; the one without a time of step 1 is none
        QuantityKey("step", "time", "copy"): ObservedQuantity((7, 5), HOST),
        QuantityKey("step", "time", "forward"): ObservedQuantity((50, 60), HOST),
    }


@table("batch shortest speed", [(8, 1, True), (None, 1, False), (8, 0, False)])
def test_samples_per_second_need_a_batch_size_and_steps_that_take_time(batch, shortest, speed):
    steps = (Step(0, "step", None, 200), Step(1, "step", None, shortest))
    found = times_of(steps=steps, batch_size=batch)
    assert (QuantityKey("step", "throughput", "samples per second") in found) == speed
    assert found[QuantityKey("step", "time", "step")].values == (200, shortest)


def test_without_times_of_steps_there_are_none_of_phases():
    assert times_of(steps=(Step(0, "forward", None, 50),)) == {}
    assert times_of(profiler="ncu", steps=(Step(0, "step", None, 50),)) == {}, "ncu stretches steps"


def test_memory_is_in_bytes_one_value_each():
    sample = Sample(0, None, 900, None, None, None, None)
    run = make_run(memory=(MemoryFigure("peak", "allocated", 512),), samples=[sample])
    basis = "memory as the run recorded it"
    assert observe_all_quantities(PreparedRun(run)) == {
        QuantityKey("step", "memory", "peak allocated"): ObservedQuantity((512.0,), basis),
        QuantityKey("step", "memory", "device in use"): ObservedQuantity((900.0,), basis),
    }


def test_kernels_of_numbered_steps_add_up_within_each_step():
    kernels = [
        kernel("gemm", 10, 0, "fc", grid_x=4, grid_y=2, grid_z=1),
        kernel("gemm", 20, 0, "fc", grid_x=8),
        kernel("gemm", 30, 1, "fc", grid_x=8, grid_y=None),
        kernel("gemm", 99, None, "fc"),
        kernel("gemm", None, 1, "fc"),
        kernel("void copy<int>", 5, 1, short_name="copy"),
    ]
    found = times_of(profiler="nsys", kernels=kernels)
    nsys = "kernels, nsys"
    assert of_kernels(found) == {
        ("fc", "forward", "gemm"): ObservedQuantity((30, 30), nsys, True, ("8x1x1", "4x2x1"), 1.5),
        ("not attributed", "", "void copy<int>"): ObservedQuantity((0, 5), nsys, True, (), 0.5),
    }
    assert found[QuantityKey("step", "time", "kernels of a step")] == ObservedQuantity(
        (30, 35), nsys
    )
    assert found[QuantityKey("layer", "time", "", "fc", "forward")] == ObservedQuantity(
        (30, 30), nsys
    )
    assert found[QuantityKey("layer", "time", "", "not attributed")] == ObservedQuantity(
        (0, 5), nsys
    )


def test_without_numbers_the_kernels_are_spread_over_the_steps_measured():
    kernels = [kernel("gemm", took, None, "fc", grid_x=1) for took in (10, 30)] * 2
    steps = tuple(Step(number, "step", None, 100) for number in range(4))
    found = times_of(profiler="nsys", kernels=kernels, steps=steps)
    of_step = ObservedQuantity((80 / 4,), "kernels, nsys", True, ("1x1x1",), 1.0)
    assert of_kernels(found) == {("fc", "forward", "gemm"): of_step}
    assert not any(key.layer == "not attributed" for key in found), "all of it belongs to a layer"
    basis = "sums over the complete report, whose number of steps is unknown"
    assert of_kernels(times_of(profiler="nsys", kernels=kernels)) == {
        ("fc", "forward", "gemm"): ObservedQuantity((80,), basis, True, ("1x1x1",), 4.0)
    }


def test_grids_that_are_launched_as_often_stand_in_the_order_of_their_words():
    kernels = [kernel("gemm", 1, 0, grid_x=size) for size in (7, 30, 5, 5, 30)]
    (seen,) = of_kernels(times_of(profiler="nsys", kernels=kernels)).values()
    assert seen.grids == ("30x1x1", "5x1x1", "7x1x1")


@table(
    "profiler basis trusted layers",
    [
        ("nsys", "kernels, nsys", True, 2),
        ("torch", "kernels, torch (CUPTI)", True, 2),
        ("nvprof", "kernels, nvprof", True, 0),
        ("rocprofv3", "kernels, rocprofv3", True, 2),
        ("ncu", "kernels under ncu at locked clocks: not a realistic time", False, 2),
    ],
)
def test_the_clock_of_kernels_is_named_and_that_of_ncu_is_not_trusted(
    profiler, basis, trusted, layers
):
    found = times_of(profiler=profiler, kernels=[kernel("gemm", 10, 0, "fc")])
    (seen,) = of_kernels(found).values()
    assert (seen.basis, seen.trusted) == (basis, trusted)
    of_layers = [seen.trusted for key, seen in found.items() if key.level != "kernel"]
    assert of_layers == [trusted] * layers


def test_layers_of_a_cpu_are_those_of_its_ranges_and_no_kernels_are_made_up():
    found = observe_times(PreparedRun(cpu_run(1, 64)))
    assert QuantityKey("step", "time", "kernels of a step") not in found
    assert of_kernels(found) == {}
    assert found[QuantityKey("layer", "time", "", "conv2", "backward")].values == (64 * 4000,) * 3


def test_counted_flops_are_those_of_one_step_by_layer_and_in_all():
    found = observe_executed_flops(PreparedRun(COUNTING))
    # conv2 forward executes half of what is on paper; conv1 computes one gradient, all others two.
    paper = {layer: 2 * synthetic.macs(layer, 64) for layer in synthetic.LAYERS}
    expected = {(layer, "forward"): flops for layer, flops in paper.items()}
    expected |= {(layer, "backward"): 2 * flops for layer, flops in paper.items()}
    expected["conv2", "forward"] = paper["conv2"] // 2
    expected["conv1", "backward"] = paper["conv1"]
    expected["not attributed", ""] = 0
    assert {key[3:5]: seen.values for key, seen in found.items() if key.level == "layer"} == {
        place: (count,) for place, count in expected.items()
    }
    assert found[QuantityKey("step", "flops", "executed FLOPs")].values == (sum(expected.values()),)
    assert {(seen.basis, seen.note) for seen in found.values()} == {
        ("measured by ncu, per step", None)
    }


COUNTING = gpu_pair(1, 64)[1]


def flops_with(*counters):
    return observe_executed_flops(PreparedRun(with_report(COUNTING, counters=counters)))


def test_what_is_no_exact_count_says_so():
    key, counters = QuantityKey("layer", "flops", "", "fc1", "forward"), COUNTING.report.counters
    flops = 2 * synthetic.macs("fc1", 64)
    lower = flops_with(*(one for one in counters if "pipe_tensor" not in one.name))[key]
    assert lower.values == (flops,)
    assert lower.note == "a lower bound: tensor: tensor counters were not collected"
    rough = flops_with(
        *(one._replace(value=3) if "pipe_tensor" in one.name else one for one in counters)
    )[key]
    assert rough.values == (flops + 3 * 512,)
    assert rough.note == "estimated: 512 x tensor instructions (HMMA.884, fp32 accumulation)"


def test_without_a_single_count_there_is_no_total():
    def counts(run):
        return any(key.quantity == "flops" for key in observe_all_quantities(PreparedRun(run)))

    assert flops_with(*(one._replace(value=None) for one in COUNTING.report.counters)) == {}
    assert counts(COUNTING)
    assert not counts(gpu_pair(1, 64)[0])


def test_samples_per_second_are_those_of_the_median_step_also_of_two_runs():
    """Two runs of 200 and 400 ns: the median step is 300 ns, so 8 samples a step are 8 / 300 ns,
    and not the mean of both rates."""
    key = QuantityKey("step", "throughput", "samples per second")
    runs = [{key: ObservedQuantity((8e9 / took,), HOST)} for took in (200, 400)]
    (row,) = compare_quantities(runs, runs)
    assert row.before is not None and row.before.median == pytest.approx(8e9 / 300)


def test_a_step_whose_kernels_all_have_a_layer_is_counted_whole():
    """What is of no layer is nothing there, and not a part that is missing."""
    run = gpu_pair(1, 16)[1]
    mine = [one for one in run.report.kernels if one.layer is not None]
    counted = {one.launch for one in mine}
    kept = [one for one in run.report.counters if one.launch in counted]
    found = observe_executed_flops(PreparedRun(with_report(run, kernels=mine, counters=kept)))
    whole = found[QuantityKey("step", "flops", "executed FLOPs")]
    assert whole.note is None
    assert whole.values == (
        sum(seen.values[0] for key, seen in found.items() if key.level == "layer"),
    )
