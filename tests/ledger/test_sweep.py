"""How a study changes with the batch size: which run speaks for a batch, its repeats, its memory,
what failed."""

from dataclasses import replace

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.ledger.sweep import (
    describe_ignored_batch_sizes,
    list_batch_points,
    read_memory_bytes_by_label,
)
from perfctl.orchestrator.ledger.timing import compute_time_spread
from perfctl.orchestrator.report.findings import list_findings
from perfctl.records.report import MemoryFigure, Sample, Step
from tests.make.synthetic import cpu_run, make_run, study_of, with_report
from tests.make.tables import table


def timed(*lengths, phase="step"):
    return tuple(Step(number, phase, None, length) for number, length in enumerate(lengths))


def of(*runs):
    study = study_of(*runs)
    return list_batch_points(study)


def test_a_whole_run_comes_before_a_failed_one_then_the_better_clock_then_the_newer():
    make = make_run
    torch, newer = make(1, steps=timed(100)), make(2, steps=timed(110))
    nsys = make(3, steps=timed(90), profiler="nsys")
    broken = make(4, steps=timed(80), profiler="nsys", status="partial", reason=None)
    ncu = make(5, steps=timed(9999), profiler="ncu")
    (point,) = of(torch, newer, nsys, broken, ncu)
    assert (point.batch, point.step and point.step.median) == (64, 90)
    assert point.problems == ("nsys: partial, no reason given",)
    assert of(torch, newer, broken)[0].step == compute_time_spread([110])
    assert of(ncu)[0].step is None
    assert of(ncu)[0].basis is None
    assert of(ncu)[0].step_ns_per_sample is None


def test_one_clock_serves_all_batch_sizes_where_it_timed_the_most():
    make = make_run
    found = of(
        make(1, batch_size=16, steps=timed(50)),
        make(2, batch_size=32, steps=timed(60)),
        make(3, batch_size=16, steps=timed(70), profiler="nsys"),
    )
    assert [(point.batch, point.step and point.step.median) for point in found] == [
        (16, 50),
        (32, 60),
    ]


def test_repeats_are_medians_with_the_newest_last_and_the_step_is_their_median():
    repeats = (
        timed(10, 30, 20),
        timed(5, phase="data"),
        timed(None, 50),
        (*timed(40), *timed(9, phase="epoch")),
    )
    (point,) = of(make_run(steps=timed(100, 102, 101), repeats=repeats))
    assert point.repeats == (20, 50, 40, 101)
    assert point.step is not None
    assert (point.step.median, point.step.low, point.step.high) == (45, 10, 102)
    assert (point.step.count, point.step_ns_per_sample) == (3 + 1 + 1 + 3, 45 / 64)
    assert point.step_confidence_interval_ns is not None
    low, high = point.step_confidence_interval_ns
    assert low < 20 * 50 * 40 * 101 < high**4
    (alone,) = of(make_run(steps=timed(100)))
    assert (alone.repeats, alone.step_confidence_interval_ns) == ((), None)


def test_memory_is_in_words_and_what_is_left_after_a_step_is_told_where_no_peak_is():
    figures = [
        MemoryFigure("after", "host_resident", 5),
        MemoryFigure("after", "allocated", 3),
        MemoryFigure("peak", "allocated", 7),
        MemoryFigure("before", "allocated", 1),
        MemoryFigure("peak", "reserved", 9),
        MemoryFigure("after", "reserved", 8),
    ]
    samples = [
        Sample(at, None, used, 100, None, None, None) for at, used in enumerate((40, 60, None, 50))
    ]
    run = make_run(memory=tuple(figures), samples=samples)
    assert list(read_memory_bytes_by_label(run).items()) == [
        ("peak allocated", 7),
        ("peak reserved", 9),
        ("after host resident", 5),
        ("device in use", 60),
    ]
    assert read_memory_bytes_by_label(
        make_run(memory=(MemoryFigure("after", "allocated", 3),))
    ) == {"after allocated": 3}


@table("order", [1, -1])
def test_memory_is_that_of_the_run_that_is_shown_or_of_the_next_that_has_any(order):
    shown = make_run(9, steps=timed(5))
    other = make_run(1, memory=(MemoryFigure("peak", "allocated", 7),))
    assert of(*[shown, other][::order])[0].memory == {"peak allocated": 7}
    own = with_report(shown, memory=(MemoryFigure("peak", "allocated", 8),))
    assert of(*[own, other][::order])[0].memory == {"peak allocated": 8}


def test_the_ledger_has_one_clock_for_all_batch_sizes_where_it_can():
    torch = [cpu_run(number, batch) for number, batch in enumerate((16, 64), 1)]
    nsys = replace(cpu_run(9, 16), profiler="nsys")
    study = study_of(nsys, *torch)
    assert {row.basis for row in build_ledger(study).rows if row.time} == {
        "host ranges, torch on the CPU"
    }
    (alone,) = group_into_studies([nsys, torch[0]])
    assert {row.basis for row in build_ledger(alone).rows if row.time} == {
        "host ranges, nsys on the CPU"
    }


def test_batch_sizes_that_a_script_did_not_use_come_first_and_have_no_times_per_sample():
    runs = [
        make_run(number, batch_size=batch, steps=timed(5)) for number, batch in ((1, 64), (2, 128))
    ]
    shaped = replace(runs[1].report, environment={"input_shape": "64x1x28x28"})
    study = study_of(runs[0], replace(runs[1], report=shaped))
    assert [point.samples for point in list_batch_points(study)] == [64, None]
    (text,) = describe_ignored_batch_sizes(study)
    assert "did not use the batch size 128: its model received 64 samples in each step" in text
    assert list_findings(analyse_study(study))[0].text == text
