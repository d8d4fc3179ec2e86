"""The timeline's data: all that was recorded, bars where they were, nothing invented."""

import pytest

from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.page import timeline
from perfctl.orchestrator.report.page.about import build_missing_values_table
from perfctl.orchestrator.report.page.kernels import pack_launches_table
from perfctl.orchestrator.report.page.usage import build_idle_gap_tables
from perfctl.orchestrator.report.tables import encode_integers_as_base64
from perfctl.records.report import Copy, Gap, Kernel, OpCall, Range
from tests.make import synthetic
from tests.report.outline import read_integers


def column(track, key):
    return read_integers(track[key], track["count"], differences=key in "sr")


def track_of(view, title):
    (track,) = [track for track in view["tracks"] if track["title"] == title]
    return dict(track)


def bars(view, title):
    """(start, length, name, row) of a track."""
    track = track_of(view, title)
    names = [view["names"][number] for number in column(track, "n")]
    return list(
        zip(
            column(track, "s"),
            column(track, "d"),
            names,
            column(track, "l"),
            strict=True,
        )
    )


def of_range(track):
    """Place among the host ranges, -1 for none."""
    return [n - 1 for n in column(track, "r")]


def test_operators_and_waits_stand_inside_of_the_ranges_of_their_thread_each_once():
    ranges = [Range(0, "forward", None, 0, 100, 7, 0, None)]
    calls = (
        OpCall("forward", 0, 100, thread=7),
        OpCall("aten::mm", 10, 30, thread=7),
        OpCall("cudaStreamSynchronize", 5, 20, thread=8),
        OpCall("aten::add", None, 30, thread=7),
    )
    run = synthetic.make_run(ranges=ranges, op_calls=calls)
    (view,) = timeline.build_timelines([run], {}, {})
    title = "host ranges and calls, thread"
    assert bars(view, f"{title} 1") == [(0, 100, "forward", 0), (10, 30, "aten::mm", 1)]
    assert bars(view, f"{title} 2") == [(5, 20, "cudaStreamSynchronize", 0)]


def steps(*lengths):
    return [
        Range(n, f"perfctl:step:{n}", None, n * 10_000, length, 7, 0, None, step=n)
        for n, length in enumerate(lengths)
    ]


def test_everything_is_drawn_and_the_view_opens_on_the_step_of_median_length_up_to_its_last_kernel():
    conv = Range(3, "conv1:forward", None, 10_100, 200, 7, 1, 1, layer="conv1", direction="forward")
    kernels = [
        Kernel(n, "k", step=n, stream=7, start_ns=n * 10_000 + 400, duration_ns=300)
        for n in range(3)
    ]
    (view,) = timeline.build_timelines(
        [synthetic.make_run(ranges=[*steps(900, 500, 100), conv], kernels=kernels)],
        {"conv1": 2},
        {},
    )
    assert view["open"] == [10_000, 10_700], "the last kernel ends after the step's own range"
    assert view["opened"] == "step 1, of median length among 3"
    assert view["length"] == 20_700
    ranges = [
        (0, 900, "step 0", 0),
        (10_000, 500, "step 1", 0),
        (10_100, 200, "conv1 forward", 1),
        (20_000, 100, "step 2", 0),
    ]
    assert bars(view, "host ranges") == ranges
    assert bars(view, "kernels, stream 7") == [(n * 10_000 + 400, 300, "k", 0) for n in range(3)]
    assert [view["places"][number] for number in column(track_of(view, "host ranges"), "y")][2] == [
        "conv1",
        "forward",
    ]
    assert view["legend"] == [(2, "conv1", "conv1")]


def test_kernels_that_overlap_on_a_stream_stand_below_each_other_and_copies_have_a_track_with_their_size():
    kernels = [
        Kernel(n, f"k{n}", stream=1, start_ns=start, duration_ns=10)
        for n, start in enumerate((0, 5, 10))
    ]
    (view,) = timeline.build_timelines(
        [synthetic.foreign_run(1, kernels=kernels, ranges=[])], {}, {}
    )
    assert bars(view, "kernels, stream 1") == [
        (0, 10, "k0", 0),
        (5, 10, "k1", 1),
        (10, 10, "k2", 0),
    ]
    kernel = Kernel(0, "k", stream=7, start_ns=0, duration_ns=100)
    copies = [Copy("HtoD", 4_000_000, 20, 30, stream=7), Copy("HtoD", None, None, None)]
    (view,) = timeline.build_timelines(
        [synthetic.foreign_run(1, kernels=[kernel], copies=copies, ranges=[])], {}, {}
    )
    assert bars(view, "copies, stream 7") == [(20, 30, "copy HtoD", 0)]
    assert "4.00 MB" in view["texts"]


def test_kernels_name_the_range_around_their_launch_and_ranges_are_projected_to_where_their_kernels_ran():
    ranges = [
        Range(0, "outer", None, -40, 100, 7, 0, None, gpu_ns=70),
        Range(1, "inner", None, 0, 20, 7, 1, 0),
        Range(2, "aten::empty", None, 30, 20, 7, 1, 0),
    ]
    kernels = [
        Kernel(0, "a", range_number=1, stream=7, start_ns=100, duration_ns=30),
        Kernel(1, "b", range_number=0, stream=7, start_ns=200, duration_ns=40),
        Kernel(2, "c", stream=7, start_ns=300, duration_ns=40),
    ]
    (view,) = timeline.build_timelines(
        [synthetic.foreign_run(1, kernels=kernels, ranges=ranges)], {}, {}
    )
    assert [name for _, _, name, _ in bars(view, "host ranges")] == [
        "outer",
        "inner",
        "aten::empty",
    ]
    assert of_range(track_of(view, "kernels, stream 7")) == [1, 0, -1]
    first = ranges[0].start_ns
    projected = bars(view, "ranges projected to the GPU: first to last kernel launched inside")
    assert projected == [(100 - first, 200 + 40 - 100, "outer", 0), (100 - first, 30, "inner", 1)]
    assert (
        "its kernels and copies took 70.0 ns" in view["texts"]
        or "its kernels and copies took 70 ns" in view["texts"]
    )


def test_launches_idle_gaps_and_the_timeline_count_from_the_first_event_of_a_run():
    ranges = [Range(0, "load", None, 500, 100, 7, 0, None)]
    kernels = [Kernel(n, "k", start_ns=4_000 * (n + 1), duration_ns=1_000) for n in range(2)]
    run = synthetic.make_run(ranges=ranges, kernels=kernels)
    (view,) = timeline.build_timelines([run], {}, {})
    (prepared,) = (item for study in group_into_studies([run]) for item in study.prepared_runs)
    launches = pack_launches_table([prepared], {})
    _, longest = build_idle_gap_tables([RunUsage(run)], {})
    starts = next(item for item in launches.columns if item["label"] == "start")
    begins = [column.label for column in longest.columns].index("begins at")
    assert [start for start, *_ in bars(view, "kernels, stream not recorded")] == [3_500, 7_500]
    first, *steps = read_integers(starts["s"], 2, differences=True)
    assert [starts["b"] + first, *(starts["b"] + step for step in steps)] == [3_500, 7_500]
    assert [row[begins].value for row in longest.rows] == [4_500]


def test_ncu_has_no_timeline_and_the_missing_values_say_why():
    ncu = synthetic.gpu_pair(1, 64)[1]
    assert timeline.build_timelines([ncu], {}, {}) == ()
    (study,) = group_into_studies([ncu])
    table = build_missing_values_table(study, build_ledger(study))
    assert table is not None
    reasons = {row[0].text: row[1].text for row in table.rows}
    assert reasons["share of time with a kernel"].startswith("ncu runs kernels one")


def test_missing_values_of_one_reason_are_one_row_with_the_range_of_their_numbers():
    rows = {"A": 30, "B": 3178, "C": 276}
    gaps = [
        Gap(f"{name} table", "not_collected", f"{name}: {count:,} rows are not read")
        for name, count in rows.items()
    ]
    gaps.append(Gap("sample.power_w", "not_collected", "the file has no column for it"))
    run = synthetic.make_run(gaps=tuple(gaps))
    (study,) = group_into_studies([run])
    table = build_missing_values_table(study, build_ledger(study))
    assert table is not None
    reasons = {row[0].text: row[1].text for row in table.rows}
    assert reasons["A table, B table, C table"] == f"{30} to {3178:,} rows are not read"
    assert reasons["power of sample"] == "the file has no column for it"


def test_beyond_the_bound_a_view_has_the_first_bars_from_where_it_opens_and_says_how_many(
    monkeypatch,
):
    monkeypatch.setattr(timeline, "MOST", 40)
    kernels = [
        Kernel(n, f"k{n % 3}", stream=7, start_ns=1000 * n, duration_ns=9) for n in range(99)
    ]
    run = synthetic.make_run(ranges=steps(20, 20, 20), kernels=kernels)
    (view,) = timeline.build_timelines([run], {}, {})
    track = track_of(view, "kernels, stream 7")
    assert 38 <= track["count"] <= 40
    assert view["opened"].startswith("step 0") and view["length"] < 99_000
    total = track["count"] + track_of(view, "host ranges")["count"]
    (note,) = view["notes"]
    assert note.startswith(f"the drawing has {total} of 102 bars, those in ")


def test_kernels_without_a_time_are_counted_and_not_drawn():
    kernels = [
        Kernel(0, "a", start_ns=5, duration_ns=5, stream=7),
        Kernel(1, "b", stream=7),
        Kernel(2, "c", start_ns=1),
    ]
    (view,) = timeline.build_timelines(
        [synthetic.foreign_run(1, kernels=kernels, ranges=[])], {}, {}
    )
    assert view["notes"] == ["2 kernels without start or duration are not drawn"]


@pytest.mark.parametrize("values", [[], [0, 0], [1, 127, 128, 16_384, 2**35 + 3, 0], [9]])
def test_packed_integers_are_read_back(values):
    assert read_integers(encode_integers_as_base64(values), len(values)) == values
    both = [value * (-1) ** place for place, value in enumerate(values)]
    assert (
        read_integers(
            encode_integers_as_base64(both, as_differences=True), len(both), differences=True
        )
        == both
    )
