"""Time per layer: self time, medians over measured steps, and clocks that are named."""

from dataclasses import replace

from perfctl.orchestrator.ledger import timing
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.unattributed import (
    BETWEEN,
    BETWEEN_THREADS,
    explain_unattributed_time,
)
from perfctl.records.report import Kernel, Range, Step
from tests.make import synthetic
from tests.make.synthetic import cpu_run, make_run, with_report
from tests.make.tables import table


def layer_times(run):
    found = PreparedRun(run).layer_times
    assert found is not None
    return found


def kernels_of(*rows, profiler="nsys"):
    """Kernels (layer, direction, step, ns) of a GPU."""
    kernels = [
        Kernel(number, "k", layer=layer, direction=direction, step=step, duration_ns=ns)
        for number, (layer, direction, step, ns) in enumerate(rows)
    ]
    return make_run(profiler=profiler, device=synthetic.V100, kernels=kernels)


def step_range(number, start, length):
    return Range(number, f"perfctl:step:{number}", None, start, length, 1, 0, None, step=number)


def layer_range(number, layer, start, length, direction="forward", parent=None):
    name = f"{layer}:{direction}"
    return Range(number, name, None, start, length, 1, 0, parent, layer=layer, direction=direction)


def medians(times):
    return {key: row.median for key, row in times.rows.items()}


def test_the_step_is_split_without_rest_into_layers_optimizer_and_what_is_left():
    run = cpu_run(1, 64)
    one_step = [item for item in run.report.ranges if item.step in (None, 1)]
    times = layer_times(with_report(run, ranges=one_step))
    parts = sum(medians(times).values()) + times.unattributed.median
    assert parts == times.total.median == 64 * 10_100 + 1000
    assert times.rows[timing.OPTIMIZER].median == 64 * 300


def test_host_ranges_on_a_gpu_are_launches_and_no_time():
    run = replace(cpu_run(1, 64), device=synthetic.V100)
    assert PreparedRun(run).layer_times is None


def test_kernel_times_are_summed_by_step_and_the_median_is_taken():
    times = layer_times(
        kernels_of(
            *(
                ("fc", "forward", step, ns)
                for step, ns in ((0, 10), (0, 5), (1, 100), (2, 20), (None, 999))
            )
        )
    )
    assert times.basis == "kernels, nsys"
    spread = times.rows["fc", "forward"]
    assert (spread.median, spread.low, spread.high, spread.count) == (20, 10 + 5, 100, 3)


def test_kernels_without_step_numbers_are_divided_by_the_steps_measured():
    run = kernels_of(*[("fc", "forward", None, 30)] * 4)
    steps = tuple(Step(number, "step", None, 1000) for number in range(4))
    row = layer_times(with_report(run, steps=steps)).rows["fc", "forward"]
    assert (row.median, row.count, row.over) == (30, 1, 4), (
        "one value, which is the mean of four steps"
    )
    assert PreparedRun(run).layer_times is None


def test_gradients_of_a_layer_are_one_row_where_some_work_computes_both():
    times = layer_times(
        kernels_of(
            ("fc", "backward", 0, 50),
            ("fc", "grad_weight", 0, 4),
            ("first", "grad_weight", 0, 7),
            ("relu", "grad_input", 0, 3),
            ("fc", "forward", 0, 20),
        )
    )
    assert medians(times) == {
        ("fc", "backward"): 50 + 4,
        ("first", "grad_weight"): 7,
        ("relu", "grad_input"): 3,
        ("fc", "forward"): 20,
    }


def test_adding_a_gradient_on_the_cpu_is_part_of_its_layers_backward():
    ranges = [
        step_range(0, 100, 50),
        layer_range(1, "fc", 110, 20, "backward", 0),
        layer_range(2, "fc", 130, 5, "grad_weight", 0),
    ]
    times = layer_times(make_run(ranges=ranges))
    assert medians(times) == {("fc", "backward"): 20 + 5}


def test_a_step_of_which_no_kernel_has_a_time_has_none():
    run = kernels_of((None, None, 0, None), (None, None, None, 5))
    assert PreparedRun(run).layer_times is None


def test_work_in_the_optimizers_phase_is_the_optimizers():
    phase = Range(7, "perfctl:phase:optimizer", None, 0, 10, 1, 0, None, phase="optimizer")
    kernel = Kernel(0, "k", step=0, duration_ns=3, range_number=7)
    run = make_run(profiler="nsys", device=synthetic.V100, ranges=[phase], kernels=[kernel])
    assert PreparedRun(run).layer_and_direction_by_kernel == [timing.OPTIMIZER]


@table(
    "first order", [(None, [0, 1, 2, 2, 9]), ("torch", [0, -1, 2, 2, 9]), ("zzz", [0, 1, 2, 2, 9])]
)
def test_clocks_are_preferred_in_a_fixed_order_and_ncu_is_never_the_one_of_a_sweep(first, order):
    names = ("nsys", "torch", "none", "dlprof", "ncu")
    assert [timing.rank_profiler_clock(name, first) for name in names] == order
    assert timing.rank_profiler_clock("ncu", "ncu") == 9


def test_how_many_steps_were_measured_is_read_where_it_is_said_first():
    kernels = [Kernel(n, "k", step=step, duration_ns=5) for n, step in enumerate((3, 3, 4, None))]
    ranges = [
        step_range(0, 0, 5),
        Range(1, "perfctl:step:x", None, 0, 5, 1, 0, None),
        Range(2, "fc", None, 0, 5, 1, 0, None, step=7),
    ]
    steps = (
        Step(0, "step", None, 5),
        Step(0, "step", None, 5),
        Step(1, "step", None, None),
        Step(2, "step", None, 5),
        Step(9, "data", None, 5),
    )

    def count(profiler="nsys", **changes):
        return timing.count_kernel_steps(make_run(profiler=profiler, **changes))

    assert count(steps=steps, ranges=ranges) == 3
    assert count(ranges=ranges) == 1
    assert count() is None
    for profiler, unnumbered in (("nsys", 3), ("ncu", 3), ("torch", 3), ("dlprof", None)):
        assert count(profiler, steps=steps, kernels=kernels) == 2
        assert count(profiler, steps=steps, kernels=kernels[3:]) == unnumbered


def test_the_time_of_a_step_is_the_host_s_or_that_of_its_range():
    steps = (
        Step(0, "step", None, 30),
        Step(1, "step", None, None),
        Step(2, "step", None, 10),
        Step(0, "data", None, 99),
    )
    ranges = [step_range(0, 0, 8), step_range(1, 9, None)]

    def step_time(**changes):
        return timing.read_step_time_and_clock(make_run(**changes))

    for profiler, how in (("none", "with no profiler"), ("nsys", "while nsys was recording")):
        assert step_time(profiler=profiler, steps=steps, ranges=ranges) == (
            timing.compute_time_spread([30, 10]),
            f"CPU timer around each step, {how}",
        )
    assert step_time(profiler="ncu", steps=steps, ranges=ranges) is None
    assert step_time(ranges=ranges) == (timing.compute_time_spread([8]), "step ranges, torch")
    assert step_time(ranges=ranges[1:]) is None


@table(
    "start values",
    [(100, (0, 3)), (149, (0, 3)), (200, (0, 3)), (249, (0, 3))]
    + [(outside, None) for outside in (99, 150, 199, 250)],
)
def test_a_step_holds_its_first_moment_and_not_its_last(start, values):
    ranges = [step_range(1, 200, 50), step_range(0, 100, 50), layer_range(5, "fc", start, 3)]
    found = layer_times(make_run(ranges=ranges))
    assert [tuple(sorted(row.values)) for row in found.rows.values()] == (
        [values] if values else []
    )
    assert (found.total.median, found.whole) == (50, timing.ALL_STEPS)
    assert found.basis == "host ranges, torch on the CPU"
    assert found.unattributed.low == (50 - 3 if values else 50)


def test_ranges_within_a_layer_that_are_no_layers_are_its_own_time_and_one_without_an_end_has_none():
    ranges = [
        step_range(0, 0, 100),
        layer_range(1, "fc", 5, 50, parent=0),
        Range(2, "aten::addmm", None, 6, 30, 1, 2, 1),
        layer_range(3, "act", 7, 20, parent=2),
        layer_range(4, "cut", 8, None, parent=3),
        layer_range(5, "deep", 9, 4, parent=4),
    ]
    found = layer_times(make_run(ranges=ranges))
    assert medians(found) == {
        ("fc", "forward"): 50 - 20,
        ("act", "forward"): 20 - 4,
        ("deep", "forward"): 4,
    }
    assert (found.total.median, found.unattributed.median) == (100, 100 - 50)


def test_kernels_that_no_layer_explains_are_what_is_left():
    found = layer_times(
        kernels_of(
            ("fc", "forward", 0, 10),
            ("fc", None, 0, 3),
            (None, None, 1, 4),
            (None, "optimizer", 1, 5),
            ("fc", "forward", 1, None),
            profiler="ncu",
        )
    )
    assert {key: row.values for key, row in found.rows.items()} == {
        ("fc", "forward"): (10, 0),
        timing.OPTIMIZER: (0, 5),
    }
    assert (found.total.values, found.unattributed.values) == ((10 + 3, 4 + 5), (3, 4))
    assert (found.basis, found.trusted) == (timing.KERNEL_BASIS["ncu"], False)
    assert found.whole == timing.KERNELS_OF_STEPS
    assert found.rows["fc", "forward"].mean == (10 + 0) / 2


def test_a_step_that_went_on_in_another_thread_lasts_from_its_first_range_to_its_last():
    """As in a server with a thread per request: the old thread opens the step, the new one has
    the call."""
    ended = Range(1, "perfctl:step:0", None, 900, 100, 2, 0, None, step=0)
    forward = Range(
        2, "fc:forward", None, 920, 30, 2, 1, 1, layer="fc", direction="forward", step=0
    )
    ranges = [ended, forward, step_range(0, 0, 10)]
    run = with_report(cpu_run(1, 64), ranges=ranges, steps=())
    times = layer_times(run)
    assert (times.total.median, medians(times)[("fc", "forward")]) == (1000, 30)
    measured = timing.read_step_time_and_clock(run)
    assert measured is not None and measured[0].median == 1000
    causes = {cause.text: cause.share for cause in explain_unattributed_time(PreparedRun(run))}
    assert causes == {BETWEEN_THREADS: 890 / 970, BETWEEN: 80 / 970}
