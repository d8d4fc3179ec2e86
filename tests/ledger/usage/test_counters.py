"""Means of hardware counters that were sampled over time: what lies inside a step, which layers and
kernels have a mean, and what no counter measured."""

from perfctl.orchestrator.ledger.usage.counters import compute_counter_means_by_run_part
from perfctl.orchestrator.report.charts.study import draw_samples_over_time, list_counters_to_chart
from perfctl.orchestrator.report.page.timeline import build_timelines
from perfctl.orchestrator.report.page.usage import build_counter_means_table
from perfctl.orchestrator.report.tables import encode_integers_as_base64
from perfctl.records.report import CounterSample, Kernel, Step
from tests.make.synthetic import make_run
from tests.make.tables import table

MS = 1_000_000
BYTES = "dram__bytes_read.sum"
PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


def sampled(name, unit, count, *kernels, **changes):
    """Return a run with samples of 1 ms of GPU 0, whose values are their numbers."""
    samples = [CounterSample(0, name, at * MS, float(at), unit) for at in range(count)]
    return make_run(counter_samples=samples, kernels=kernels, **changes)


def launch(name, begin, end, layer=None, gpu=0):
    start, length = round(begin * MS), round((end - begin) * MS)
    direction = layer and "forward"
    return Kernel(
        0,
        name,
        layer=layer,
        direction=direction,
        device_index=gpu,
        start_ns=start,
        duration_ns=length,
    )


@table(
    "name unit scale shown",
    [
        (BYTES, "byte", 1000, "B/s"),
        ("sm__cycles_active.avg", None, 1000, "/s"),
        (PIPE, "%", 1, "%"),
        ("dram__bytes_read.sum.per_second", "byte/s", 1, "B/s"),
        ("sm__inst_executed.sum.per_cycle_active", None, 1, ""),
    ],
)
def test_a_step_has_the_mean_of_the_samples_inside_and_amounts_of_1_ms_become_rates(
    name, unit, scale, shown
):
    steps = (Step(7, "step", 3 * MS // 2, 7 * MS // 2), Step(8, "step", 5 * MS + 1, MS))
    means = list(compute_counter_means_by_run_part(sampled(name, unit, 6, steps=steps)))
    assert [(mean.part, mean.samples, mean.value) for mean in means] == [
        ("all", 6, scale * (0 + 1 + 2 + 3 + 4 + 5) / 6),
        ("step 7", 3, scale * (2 + 3 + 4) / 3),
        ("step 8", 0, None),
    ]
    assert {mean.unit for mean in means} == {shown}


@table(
    "kernels expected",
    {
        "three samples": ([launch("k", 2, 5)], {"k": (2 + 3 + 4) / 3}),
        "two whole samples": ([launch("k", 2.1, 5)], {}),
        "a layer of two kernels": (
            [launch("a", 2, 4, "fc"), launch("b", 4, 6, "fc")],
            {"fc forward": (2 + 3 + 4 + 5) / 4},
        ),
        "idle for two samples in between": ([launch("k", 2, 4), launch("k", 6, 8)], {}),
        "another kernel beside it": ([launch("k", 1, 9), launch("other", 3.5, 4)], {}),
        "another GPU": ([launch("k", 2, 8, gpu=1)], {}),
    },
)
def test_a_layer_or_kernel_has_a_mean_only_where_it_runs_alone_for_three_samples(kernels, expected):
    means = list(compute_counter_means_by_run_part(sampled(PIPE, "%", 10, *kernels)))
    assert {mean.part: mean.value for mean in means[1:]} == expected


def test_the_page_has_a_chart_a_counter_and_names_the_activity_that_none_measured():
    run = sampled(BYTES, "byte", 10)
    table = build_counter_means_table([run])
    assert table is not None
    assert table.notes[-1].startswith("Not measured: activity of tensor cores, SM,")
    (chart,) = draw_samples_over_time("s1", [run], list_counters_to_chart([run]))
    assert chart.title == BYTES and "GPU 0, 9 ms: 9 kB/s" in chart.svg
    assert build_counter_means_table([make_run()]) is None


def test_charts_of_activity_come_before_those_of_other_counters():
    names = ["lts__t_sectors.sum", PIPE, "l1tex__t_bytes.sum", "smsp__cycles_active.avg", BYTES]
    run = make_run(counter_samples=[CounterSample(0, name, 0, 1.0, None) for name in names])
    assert list(list_counters_to_chart([run])) == [*names[1::2], BYTES, *names[:3:2]]


@table("name unit top", [(PIPE, "%", 100), (BYTES, "byte", 4)])
def test_the_timeline_draws_a_bar_of_each_sample_on_a_scale(name, unit, top):
    (view,) = build_timelines([sampled(name, unit, 5)], {}, {})
    (track,) = (track for track in view["tracks"] if track["kind"] == "counter")
    assert track["h"] == encode_integers_as_base64([100 * value // top for value in range(5)])
    assert track["d"] == encode_integers_as_base64([MS] * 5)
