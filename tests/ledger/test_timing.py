"""Time per layer: self time, medians over measured steps, and clocks that are named."""

from __future__ import annotations

from dataclasses import replace

from perfctl.orchestrator.ledger import timing
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Kernel, Range, Step
from tests.make import synthetic
from tests.make.synthetic import with_report


def test_a_module_that_holds_others_counts_for_what_is_left_of_it() -> None:
    times = PreparedRun(synthetic.cpu_run(1, 64)).layer_times
    assert times is not None
    assert times.rows["conv2", "forward"].median == 64 * 2000
    assert times.rows["block", "forward"].median == 100


def test_ranges_outside_of_measured_steps_do_not_count() -> None:
    times = PreparedRun(synthetic.cpu_run(1, 64)).layer_times
    assert times is not None and times.rows["conv2", "forward"].high == 64 * 2000
    assert times.rows["conv2", "forward"].count == synthetic.STEPS


def test_the_step_is_split_without_rest_into_layers_optimizer_and_what_is_left() -> None:
    run = synthetic.cpu_run(1, 64)
    run = with_report(run, ranges=[r for r in run.report.ranges if r.step in (None, 1)])
    times = PreparedRun(run).layer_times
    assert times is not None
    parts = sum(row.median for row in times.rows.values()) + times.unattributed.median
    assert parts == times.total.median == 64 * 10_100 + 1000
    assert times.rows[timing.OPTIMIZER].median == 64 * 300


def test_host_ranges_on_a_gpu_are_launches_and_no_time() -> None:
    run = replace(synthetic.cpu_run(1, 64), device=synthetic.V100)
    assert PreparedRun(run).layer_times is None


def test_kernel_times_are_summed_by_step_and_the_median_is_taken() -> None:
    kernels = [
        Kernel(n, "k", layer="fc", direction="forward", step=step, duration_ns=ns)
        for n, (step, ns) in enumerate([(0, 10), (0, 5), (1, 100), (2, 20), (None, 999)])
    ]
    run = synthetic.make_run(profiler="nsys", device=synthetic.V100, kernels=kernels)
    times = PreparedRun(run).layer_times
    assert times is not None and times.basis == "kernels, nsys"
    spread = times.rows["fc", "forward"]
    assert (spread.median, spread.low, spread.high, spread.count) == (20, 15, 100, 3)


def test_kernels_without_step_numbers_are_divided_by_the_steps_measured() -> None:
    kernels = [Kernel(n, "k", layer="fc", direction="forward", duration_ns=30) for n in range(4)]
    steps = tuple(Step(n, "step", None, 1000) for n in range(4))
    run = synthetic.make_run(profiler="nsys", device=synthetic.V100, kernels=kernels, steps=steps)
    times = PreparedRun(run).layer_times
    assert times is not None and times.rows["fc", "forward"].median == 30
    row = times.rows["fc", "forward"]
    assert (row.count, row.over) == (1, 4), "one value, which is the mean of four steps"
    assert PreparedRun(with_report(run, steps=())).layer_times is None


def test_gradients_of_a_layer_are_one_row_where_some_work_computes_both() -> None:
    kernels = [
        Kernel(n, "k", layer=layer, direction=direction, step=0, duration_ns=ns)
        for n, (layer, direction, ns) in enumerate(
            [
                ("fc", "backward", 50),
                ("fc", "grad_weight", 4),
                ("first", "grad_weight", 7),
                ("relu", "grad_input", 3),
                ("fc", "forward", 20),
            ]
        )
    ]
    run = synthetic.make_run(profiler="nsys", device=synthetic.V100, kernels=kernels)
    times = PreparedRun(run).layer_times
    assert times is not None
    assert {key: row.median for key, row in times.rows.items()} == {
        ("fc", "backward"): 54,
        ("first", "grad_weight"): 7,
        ("relu", "grad_input"): 3,
        ("fc", "forward"): 20,
    }


def test_adding_a_gradient_on_the_cpu_is_part_of_its_layers_backward() -> None:
    run = synthetic.make_run(
        ranges=[
            Range(0, "perfctl:step:4", None, 100, 50, 1, 0, None, step=4),
            Range(1, "fc:backward", None, 110, 20, 1, 1, 0, layer="fc", direction="backward"),
            Range(2, "fc:grad_weight", None, 130, 5, 1, 1, 0, layer="fc", direction="grad_weight"),
        ]
    )
    times = PreparedRun(run).layer_times
    assert times is not None
    assert {key: row.median for key, row in times.rows.items()} == {("fc", "backward"): 25}


def test_a_step_of_which_no_kernel_has_a_time_has_none() -> None:
    kernels = [Kernel(0, "k", step=0), Kernel(1, "k", duration_ns=5)]
    assert (
        PreparedRun(
            synthetic.make_run(profiler="nsys", device=synthetic.V100, kernels=kernels)
        ).layer_times
        is None
    )


def test_work_in_the_optimizers_phase_is_the_optimizers() -> None:
    phase = Range(7, "perfctl:phase:optimizer", None, 0, 10, 1, 0, None, phase="optimizer")
    kernel = Kernel(0, "k", step=0, duration_ns=3, range_number=7)
    run = synthetic.make_run(
        profiler="nsys", device=synthetic.V100, ranges=[phase], kernels=[kernel]
    )
    assert PreparedRun(run).keys == [timing.OPTIMIZER]


def test_clocks_are_preferred_in_a_fixed_order_and_ncu_is_never_the_one_of_a_sweep() -> None:
    order = ("nsys", "torch", "none", "dlprof", "ncu")
    assert [timing.preference(name) for name in order] == [0, 1, 2, 2, 9]
    assert [timing.preference(name, "torch") for name in order] == [0, -1, 2, 2, 9]
    assert [timing.preference(name, "zzz") for name in order] == [0, 1, 2, 2, 9]
    assert timing.preference("ncu", "ncu") == 9


def test_how_many_steps_were_measured_is_read_where_it_is_said_first() -> None:
    kernels = [Kernel(n, "k", step=step, duration_ns=5) for n, step in enumerate((3, 3, 4, None))]
    ranges = [
        Range(n, name, None, 0, 5, 1, 0, None, step=step)
        for n, (name, step) in enumerate(
            (("perfctl:step:0", 0), ("perfctl:step:x", None), ("fc", 7))
        )
    ]
    steps = (
        Step(0, "step", None, 5),
        Step(0, "step", None, 5),
        Step(1, "step", None, None),
        Step(2, "step", None, 5),
        Step(9, "data", None, 5),
    )
    make = synthetic.make_run
    assert timing.kernel_steps(make(profiler="nsys", steps=steps, ranges=ranges)) == 3
    assert timing.kernel_steps(make(profiler="nsys", ranges=ranges)) == 1
    assert timing.kernel_steps(make(profiler="nsys")) is None
    for profiler in ("nsys", "ncu", "torch", "dlprof"):
        assert timing.kernel_steps(make(profiler=profiler, steps=steps, kernels=kernels)) == 2
    for profiler, count in (("nsys", 3), ("ncu", 3), ("torch", 3), ("dlprof", None)):
        assert (
            timing.kernel_steps(make(profiler=profiler, steps=steps, kernels=kernels[3:])) == count
        )


def test_the_time_of_a_step_is_the_host_s_or_that_of_its_range() -> None:
    steps = (
        Step(0, "step", None, 30),
        Step(1, "step", None, None),
        Step(2, "step", None, 10),
        Step(0, "data", None, 99),
    )
    ranges = [
        Range(0, "perfctl:step:0", None, 0, 8, 1, 0, None, step=0),
        Range(1, "perfctl:step:1", None, 9, None, 1, 0, None, step=1),
    ]
    make = synthetic.make_run
    told = {
        profiler: timing.step_time(make(profiler=profiler, steps=steps, ranges=ranges))
        for profiler in ("none", "nsys", "ncu")
    }
    assert told["none"] == (
        timing.spread([30, 10]),
        "CPU timer around each step, with no profiler",
    )
    assert told["nsys"] == (
        timing.spread([30, 10]),
        "CPU timer around each step, while nsys was recording",
    )
    assert told["ncu"] is None
    assert timing.step_time(make(ranges=ranges)) == (timing.spread([8]), "step ranges, torch")
    assert timing.step_time(make(ranges=ranges[1:])) is None


def test_a_step_holds_its_first_moment_and_not_its_last() -> None:
    def layer(number: int, start: int) -> Range:
        return Range(
            number, "fc:forward", None, start, 3, 1, 0, None, layer="fc", direction="forward"
        )

    steps = [
        Range(n, f"perfctl:step:{n}", None, start, 50, 1, 0, None, step=n)
        for n, start in ((1, 200), (0, 100))
    ]
    inside = {100: (3, 0), 149: (3, 0), 200: (0, 3), 249: (0, 3)}
    for start, values in (inside | dict.fromkeys((99, 150, 199, 250))).items():
        found = PreparedRun(synthetic.make_run(ranges=[*steps, layer(5, start)])).layer_times
        assert found is not None
        assert {key: sorted(row.values) for key, row in found.rows.items()} == (
            {("fc", "forward"): sorted(values)} if values else {}
        )
        assert (found.total.median, found.basis, found.whole) == (
            50,
            "host ranges, torch on the CPU",
            timing.ALL_STEPS,
        )
        assert found.unattributed.low == (47 if values else 50)


def test_ranges_within_a_layer_that_are_no_layers_are_its_own_time_and_one_without_an_end_has_none() -> (
    None
):
    found = PreparedRun(
        synthetic.make_run(
            ranges=[
                Range(0, "perfctl:step:0", None, 0, 100, 1, 0, None, step=0),
                Range(1, "fc:forward", None, 5, 50, 1, 1, 0, layer="fc", direction="forward"),
                Range(2, "aten::addmm", None, 6, 30, 1, 2, 1),
                Range(3, "act:forward", None, 7, 20, 1, 3, 2, layer="act", direction="forward"),
                Range(4, "cut:forward", None, 8, None, 1, 4, 3, layer="cut", direction="forward"),
                Range(5, "deep:forward", None, 9, 4, 1, 5, 4, layer="deep", direction="forward"),
            ]
        )
    ).layer_times
    assert found is not None
    assert {key[0]: row.median for key, row in found.rows.items()} == {
        "fc": 50 - 20,
        "act": 20 - 4,
        "deep": 4,
    }
    assert (found.total.median, found.unattributed.median) == (100, 50)


def test_kernels_that_no_layer_explains_are_what_is_left() -> None:
    kernels = [
        Kernel(n, "k", layer=layer, direction=direction, step=step, duration_ns=ns)
        for n, (layer, direction, step, ns) in enumerate(
            (
                ("fc", "forward", 0, 10),
                ("fc", None, 0, 3),
                (None, None, 1, 4),
                (None, "optimizer", 1, 5),
                ("fc", "forward", 1, None),
            )
        )
    ]
    found = PreparedRun(synthetic.make_run(profiler="ncu", kernels=kernels)).layer_times
    assert found is not None
    assert {key: row.values for key, row in found.rows.items()} == {
        ("fc", "forward"): (10, 0),
        timing.OPTIMIZER: (0, 5),
    }
    assert (found.total.values, found.unattributed.values) == ((13, 9), (3, 4))
    assert (found.basis, found.trusted, found.whole) == (
        timing.KERNEL_BASIS["ncu"],
        False,
        timing.KERNELS_OF_STEPS,
    )
    assert found.rows["fc", "forward"].mean == 5
