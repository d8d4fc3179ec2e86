"""Which runs make a line, which of them make a point, and in what order."""

from dataclasses import replace

from perfctl.orchestrator.compare.history import History, HistoryRun, SeriesKey, build_history_lines
from perfctl.orchestrator.report.history import build_history_view
from tests.make.tables import table

FLOPS, STEP = SeriesKey("flops"), SeriesKey("step")


def seen(run, **changed):
    base = HistoryRun(
        run,
        0,
        run,
        "mnist_cnn",
        16,
        "torch",
        f"2026-11-{run:02}T08:00:00+00:00",
        None,
        None,
        {"workload": "mnist_cnn", "device": "A100"},
        {STEP: 1e6, FLOPS: 100.0},
    )
    return replace(base, **changed)


def runs_of(line):
    return [[one.run for one in point] for point in line.points]


def test_points_are_in_the_order_of_time_whatever_the_order_of_the_store():
    (line,) = build_history_lines([seen(3), seen(1), seen(2)])
    assert runs_of(line) == [[1], [2], [3]]


def test_moments_of_two_time_zones_are_compared_as_moments():
    early, late = "2026-11-01T09:30:00+09:00", "2026-11-01T02:00:00+00:00"  # 00:30 and 02:00 in UTC
    (line,) = build_history_lines([seen(1, started_at=late), seen(2, started_at=early)])
    assert runs_of(line) == [[2], [1]]


def test_repeats_of_a_sweep_are_one_point_also_over_a_full_hour_and_midnight():
    moments = (
        "2026-11-01T23:58:00+00:00",
        "2026-11-02T00:03:00+00:00",
        "2026-11-03T00:03:00+00:00",
    )
    (line,) = build_history_lines(
        [seen(at, sweep=1, started_at=moment) for at, moment in enumerate(moments, 1)]
    )
    assert runs_of(line) == [[1, 2], [3]]


def test_the_value_of_a_point_is_the_median_of_its_repeats():
    repeats = [
        seen(at, sweep=1, started_at="2026-11-01T08:00:00+00:00", values={STEP: ns})
        for at, ns in enumerate((5.0, 9.0, 6.0), 1)
    ]
    (line,) = build_history_lines(repeats)
    assert line.series[0].values == (6.0,)


def test_by_commit_all_runs_of_a_clean_commit_are_one_point_in_the_order_of_commits():
    def of(run, commit, moment):
        return seen(run, commit=commit, commit_time=moment)

    old, new = ("aaa", "2026-01-01T00:00:00+00:00"), ("bbb", "2026-02-01T00:00:00+00:00")
    (line,) = build_history_lines([of(1, *new), of(2, *old), of(3, *new)], by_commit=True)
    assert runs_of(line) == [[2], [1, 3]]
    changed = [of(1, "aaa + changes", old[1]), of(2, "aaa + changes", old[1])]
    (line,) = build_history_lines(changed, by_commit=True)
    assert runs_of(line) == [[1], [2]]


def test_the_first_and_the_last_step_have_their_range_and_their_runs():
    moments = [("2026-11-01T08:00:00", 5e6), ("2026-11-01T08:01:00", 7e6), ("2026-11-09", 9e6)]
    lines = build_history_lines(
        [
            seen(at, sweep=at // 3, started_at=moment, values={STEP: ns})
            for at, (moment, ns) in enumerate(moments, 1)
        ]
    )
    (table,) = build_history_view(History(("perfctl.db",), 0.05, tuple(lines))).tables
    first, last = "6.00 ms (5.00 ms to 7.00 ms in 2 runs)", "9.00 ms (1 run)"
    assert [cell.title for cell in table.rows[0][2:4]] == [first, last]


def test_another_device_or_batch_size_makes_a_line_of_its_own():
    other = {"workload": "mnist_cnn", "device": "H100"}
    found = build_history_lines([seen(1), seen(2, facts=other), seen(3, batch=32), seen(4)])
    assert [runs_of(line) for line in found] == [[[1], [4]], [[2]], [[3]]]
    assert found[1].separation_reason == "device: H100, not A100"
    assert found[2].separation_reason is None


def test_a_counted_change_is_told_with_its_first_point():
    found = build_history_lines(
        [seen(at, values={FLOPS: 100.0 if at < 3 else 150.0}) for at in range(1, 5)]
    )
    (change,) = found[0].series[0].changes
    assert found[0].series[0].exact
    assert (change.after, change.change, change.p) == (2, 0.5, None)


def test_a_quantity_that_some_points_lack_keeps_its_places():
    (line,) = build_history_lines(
        [seen(1), seen(2, values={STEP: 1e6}), seen(3, values={STEP: 1e6, FLOPS: 200.0})]
    )
    flops = next(one for one in line.series if one.what == FLOPS)
    assert flops.points == (0, 2)
    assert flops.values == (100.0, 200.0)


BUSY = "the CPU was busy"


@table("busy_points judged points", [((), True, 12), ((3, 4), True, 10), (range(1, 13), False, 12)])
def test_times_of_a_busy_cpu_are_no_part_of_a_series_and_judge_nothing(busy_points, judged, points):
    runs = [
        seen(at, values={STEP: 1e6 if at < 7 else 9e6, FLOPS: 100.0 if at < 7 else 200.0})
        for at in range(1, 13)
    ]
    (line,) = build_history_lines(
        [replace(run, busy=BUSY) if run.run in busy_points else run for run in runs]
    )
    step, flops = line.series
    assert (step.judged, len(step.points)) == (judged, points)
    assert bool(step.changes) is judged
    assert len(flops.points) == 12 and flops.changes, "a count is one on a busy CPU too"
    assert line.busy_reason_by_point == dict.fromkeys((at - 1 for at in busy_points), BUSY)
    title = build_history_view(History(("perfctl.db",), 0.05, (line,))).title
    assert title.endswith(" are not judged") is bool(busy_points)


def test_the_table_sorts_values_and_changes_by_their_size_and_not_as_text():
    lines = build_history_lines(
        [seen(at, values={FLOPS: 100.0 if at < 3 else 1.5e6, STEP: 2e6}) for at in range(1, 5)]
    )
    (table,) = build_history_view(History(("perfctl.db",), 0.05, tuple(lines))).tables
    values = {row[0].text: [cell.value for cell in row[2:]] for row in table.rows}
    assert list(values.values()) == [[100.0, 1.5e6, 14_999.0], [2e6, 2e6, None]]
