"""The budget of a bench: what one more point would take, and when to stop."""

import pytest

from perfctl.orchestrator.launch.profilers.torch import NoProfiler
from perfctl.orchestrator.launch.sweep import bench
from perfctl.orchestrator.launch.sweep.bench import PointToMeasure, TimeBudget
from perfctl.orchestrator.launch.sweep.request import SweepListener, SweepRequest


class Clock:
    """Seconds that go by when the test says so."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("measured", "flops", "seconds"),
    [
        pytest.param((), 1e9, None, id="nothing was measured"),
        pytest.param(((1e9, 5.0),), 8e9, 5.0, id="one point: its time"),
        pytest.param(((1e9, 5.0), (3e9, 9.0)), 2e9, 7.0, id="between two: on their line"),
        pytest.param(((1e9, 5.0), (3e9, 9.0)), 4e9, 11.0, id="beyond them: on their line"),
        pytest.param(((1e9, 5.0), (2e9, 10.0)), 0.0, 5.0, id="never less than the fastest"),
    ],
)
def test_time_is_expected_along_the_line_through_what_was_measured(measured, flops, seconds):
    budget = TimeBudget(100.0, Clock())
    for point in measured:
        budget.add_measured_point(*point)
    assert budget.predict_seconds(flops) == seconds


def test_a_point_is_measured_while_it_is_expected_to_end_in_time():
    clock = Clock()
    budget = TimeBudget(12.0, clock)
    assert budget.has_time_for(1e9)
    budget.add_measured_point(1e9, 5.0)
    for clock.now, is_allowed in ((6.0, True), (7.0, False)):
        assert budget.has_time_for(1e9) == is_allowed
    assert TimeBudget(None, Clock()).has_time_for(1e20)
    assert not TimeBudget(0.0, Clock()).has_time_for(1.0)


def measure(folder, count, budget):
    """So many points of a model whose every run fails, and what a bench makes of them."""
    points = tuple(PointToMeasure("mlp", "mlp", batch, 1.0) for batch in range(1, count + 1))

    def request(point):
        return SweepRequest(
            profiler=NoProfiler(),
            workload="families",
            device="cpu",
            host="here",
            python="/bin/false",
            batches=(point.batch,),
            out=folder,
            command_line="perfctl",
            sweep_name="b",
            sample="off",
        )

    return points, bench.measure_bench_points_within_budget(
        points, request, budget, SweepListener()
    )


def test_when_every_point_fails_alike_the_others_are_not_tried(tmp_path):
    points, done = measure(tmp_path, 6, TimeBudget(None, Clock()))
    assert [result.status for _, result in done.results] == ["failed"] * 3
    assert done.left == points[3:]


def test_what_does_not_fit_is_left_and_named(tmp_path):
    points, done = measure(tmp_path, 2, TimeBudget(0.0, Clock()))
    assert done == bench.MeasuredBench((), points)
    assert list(tmp_path.iterdir()) == []
