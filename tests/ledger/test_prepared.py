"""A study made ready: which run times and counts, gradients that belong together, and every
question asked once."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.counters import work
from perfctl.orchestrator.ledger import timing
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.prepared import (
    PreparedBatch,
    PreparedRun,
    join_gradients_to_backward,
)
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.records.report import Kernel, Range
from tests.make.synthetic import cpu_run, gpu_pair, make_run, study_of, with_report

QUESTIONS = {
    **dict.fromkeys(
        (
            "assign_kernels_to_layers",
            "count_kernel_steps",
            "build_layer_times_from_kernels",
            "read_step_time_and_clock",
        ),
        timing,
    ),
    **dict.fromkeys(("group_counters_by_launch", "compute_flops_by_launch"), work),
}


def kernel(direction, layer="fc"):
    return Kernel(0, "k", layer=layer, direction=direction, step=0)


def joined(*runs):
    return [item.run for item in join_gradients_to_backward([PreparedRun(run) for run in runs])]


def timed(*runs, first=None):
    found = PreparedBatch(8, tuple(map(PreparedRun, runs)), first).timing_run
    return found.run if found else None


def test_gradients_join_where_any_run_saw_that_layer_s_backward():
    def ranges(*places):
        return [
            Range(n, "r", None, 0, 1, 1, 0, None, layer=layer, direction=direction)
            for n, (layer, direction) in enumerate(places)
        ]

    split = [
        kernel(direction) for direction in ("grad_input", "grad_weight", "grad_bias", "forward")
    ]
    apart = make_run(1, kernels=[*split, kernel("grad_weight", "conv")])
    for seen in (
        make_run(2, kernels=[kernel("backward")]),
        make_run(2, ranges=ranges(("fc", "backward"))),
    ):
        first, second = joined(apart, seen)
        assert [item.direction for item in first.report.kernels] == ["backward"] * 3 + [
            "forward",
            "grad_weight",
        ]
        assert second is seen
    by_range = make_run(
        3, ranges=ranges(("fc", "grad_bias"), ("conv", "grad_bias"), ("fc", "forward"))
    )
    _, changed = joined(make_run(2, kernels=[kernel("backward")]), by_range)
    assert [item.direction for item in changed.report.ranges] == [
        "backward",
        "grad_bias",
        "forward",
    ]
    assert joined(apart, by_range) == [apart, by_range], "nobody saw a backward"


def test_a_run_with_joined_gradients_keeps_what_they_do_not_touch():
    ncu = gpu_pair(1, 64)[1]
    split = [
        k._replace(direction="grad_weight") if k.direction == "backward" else k
        for k in ncu.report.kernels
    ]
    counting = PreparedRun(with_report(ncu, kernels=split), "fp32")
    seen = PreparedRun(make_run(2, kernels=[kernel("backward", "conv2")]))
    changed, _ = join_gradients_to_backward([counting, seen])
    assert (
        changed is not counting
        and changed.precision == "fp32"
        and changed.layer_and_direction_by_kernel != counting.layer_and_direction_by_kernel
    )
    assert (
        changed.flops_by_launch is counting.flops_by_launch
        and changed.values is counting.values
        and changed.usage is counting.usage
    )
    again, _ = join_gradients_to_backward([changed, seen])
    assert again is changed, "nothing is left to join"


def test_of_runs_alike_a_whole_one_comes_first_and_then_the_newest():
    nsys, _ = gpu_pair(1, 64)
    newer, broken = replace(nsys, id=5), replace(nsys, id=9, status="partial")
    assert timed(nsys, broken, newer) is newer
    assert timed(broken) is broken
    unknown = replace(
        nsys,
        id=7,
        report=replace(nsys.report, kernels=[k._replace(layer=None) for k in nsys.report.kernels]),
    )
    assert timed(unknown, nsys) is nsys, "one that knows layers"
    found = PreparedBatch(
        8, tuple(map(PreparedRun, (replace(unknown, id=6), unknown))), None
    ).timing_run
    assert found is not None and found.layer_times is not None
    assert (found.run, found.layer_times.rows) == (unknown, {}), (
        "for want of others, the best of those that know none"
    )
    assert timed(make_run()) is None


def test_a_batch_size_that_the_study_lacks_is_an_error():
    study = study_of(cpu_run(1, 64))
    assert study.get_batch(64).batch == 64
    with pytest.raises(KeyError):
        study.get_batch(65)


def test_a_whole_page_asks_every_question_of_a_run_once(monkeypatch):
    asked: Tally[tuple[str, int]] = Tally()

    def counted(name, function):

        def ask(what, *others):
            if what:  # runs without counters share one empty tuple
                asked[name, id(what)] += 1
            return function(what, *others)

        return ask

    runs = [run for n, batch in enumerate((16, 64)) for run in gpu_pair(10 * n, batch)]
    for name, module in QUESTIONS.items():
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    build_report_view(runs, generated_at="2026-11-20T20:40:00Z")
    assert {name for name, _ in asked} == set(QUESTIONS)
    assert set(asked.values()) == {1}, "no run of these needs its gradients joined"
    study = study_of(*runs)
    analyse_study(study)
    assert max(asked.values()) == 2, (
        "another analysis asks again: nothing is kept beyond its object"
    )
