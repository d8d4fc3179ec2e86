"""The timeline's data: one step of median length, bars where they were, nothing invented."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from perfctl.orchestrator.report.page import timeline
from perfctl.records.report import Copy, Kernel, Range
from tests.analyse import synthetic


def bars(view: dict[str, Any], title: str) -> list[tuple[int, int, str, int]]:
    """(start, length, name, row) of a track."""
    (track,) = [track for track in view["tracks"] if track["title"] == title]
    names = [view["names"][number] for number in track["n"]]
    return list(zip(accumulate(track["s"]), track["d"], names, track["l"], strict=True))


def steps(*lengths: int) -> list[Range]:
    return [
        Range(n, f"perfctl:step:{n}", None, n * 10_000, length, 7, 0, None, step=n) for n, length in enumerate(lengths)
    ]


def test_the_step_of_median_length_is_drawn_up_to_its_last_kernel() -> None:
    ranges = [
        *steps(900, 500, 100),
        Range(3, "conv1:forward", None, 10_100, 200, 7, 1, 1, layer="conv1", direction="forward"),
    ]
    kernels = [Kernel(n, "k", step=n, stream=7, start_ns=n * 10_000 + 400, duration_ns=300) for n in range(3)]
    (view,) = timeline.timelines([synthetic.make_run(ranges=ranges, kernels=kernels)], {"conv1": 2})
    assert view["label"] == "torch b64, step 1, of median length among 3"
    assert view["length"] == 700, "the last kernel ends after the step's own range"
    assert bars(view, "ranges") == [(0, 500, "step 1", 0), (100, 200, "conv1 forward", 1)]
    assert bars(view, "kernels, stream 7") == [(400, 300, "k", 0)]


def test_kernels_that_overlap_on_a_stream_stand_below_each_other_and_copies_have_a_track_with_their_size() -> None:
    kernels = [Kernel(n, f"k{n}", stream=1, start_ns=start, duration_ns=10) for n, start in enumerate((0, 5, 10))]
    (view,) = timeline.timelines([synthetic.foreign_run(1, kernels=kernels, ranges=[])], {})
    assert bars(view, "kernels, stream 1") == [(0, 10, "k0", 0), (5, 10, "k1", 1), (10, 10, "k2", 0)]
    kernel = Kernel(0, "k", stream=7, start_ns=0, duration_ns=100)
    copies = [Copy("HtoD", 4_000_000, 20, 30, stream=7), Copy("HtoD", None, None, None)]
    (view,) = timeline.timelines([synthetic.foreign_run(1, kernels=[kernel], copies=copies, ranges=[])], {})
    assert bars(view, "copies, stream 7") == [(20, 30, "copy HtoD", 0)]
    assert "4.00 MB" in view["names"]


def test_a_range_that_began_before_the_view_is_cut_and_says_its_whole_length() -> None:
    ranges = [
        Range(0, "epoch", None, -4000, 50_000, 7, 0, None),
        *(r._replace(number=1 + r.number) for r in steps(500)),
    ]
    (view,) = timeline.timelines([synthetic.make_run(ranges=ranges)], {})
    assert bars(view, "ranges")[0][:3] == (0, 500, "epoch")
    assert "50.0 µs in all" in view["names"]


def test_ncu_has_no_timeline_and_says_why() -> None:
    ncu = synthetic.gpu_pair(1, 64)[1]
    assert timeline.timelines([ncu], {}) == []
    assert "ncu runs kernels one by one" in (timeline.absent([ncu]) or "")


def test_a_long_capture_says_how_much_of_it_is_drawn() -> None:
    kernels = [Kernel(n, "k", start_ns=10 * n, duration_ns=5) for n in range(timeline.MOST + 5)]
    (view,) = timeline.timelines([synthetic.foreign_run(1, kernels=kernels, ranges=[])], {})
    assert view["notes"] == ["the first 20,000 of 20,005 kernels; the rest is in the store"]
    assert len(bars(view, "kernels, stream not recorded")) == timeline.MOST
