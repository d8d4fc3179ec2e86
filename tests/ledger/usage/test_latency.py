"""Latency from step rows: what counts as an answer's time, and which runs say nothing about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.roofline import wall_time
from perfctl.orchestrator.ledger.usage.inference import latencies, latency, least_watched
from perfctl.records.report import Gap, Step, Summary
from tests.make import synthetic

MS = 1_000_000


def steps(count: int, compute: int = 10) -> tuple[Step, ...]:
    """``count`` steps: 5 ms of loading, 1 ms there, ``compute`` + number ms of computation, 2
    ms back."""
    rows = []
    for number in range(count):
        took = compute + number
        for phase, length in (
            ("step", 8 + took),
            ("data", 5),
            ("copy", 1),
            ("inference", took),
            ("copy", 2),
        ):
            rows.append(Step(number, phase, None, length * MS))
    return tuple(rows)


@pytest.fixture
def infer() -> Any:
    def make(number: int = 1, **changes: Any) -> Any:
        facts = {"model": changes.pop("model", "resnet18"), "option:dataloader_workers": "0"}
        given = {
            "mode": "infer",
            "profiler": "none",
            "batch_size": 4,
            "environment": facts,
            "steps": steps(100),
        }
        return synthetic.make_run(number, **{**given, **changes})

    return make


def test_an_answer_takes_copies_and_computation_and_no_loading(infer: Any) -> None:
    found = latency(infer())
    assert found is not None
    # Times are 13, 14, ... 112 ms.
    assert found.percentiles == {50: 62.5 * MS, 95: 107 * MS, 99: 111 * MS}
    assert found.longest == 112 * MS
    assert (found.load, found.copy, found.compute) == (5 * MS, 3 * MS, 59.5 * MS)
    assert found.images_per_second == pytest.approx(4 / 0.0675)
    assert found.load_share == pytest.approx(5 / 67.5)


def test_too_few_batches_leave_tails_unknown_with_the_reason(infer: Any) -> None:
    found = latency(infer(steps=steps(19)))
    assert found is not None
    assert (found.percentiles[95], found.percentiles[99]) == (None, None)
    assert "needs 20" in found.why["p95"]


@pytest.mark.parametrize(
    "changes",
    [
        {"profiler": "ncu"},
        {"mode": "train"},
        {"batch_size": None},
        {"steps": ()},
        {"steps": tuple(row for row in steps(3) if row.phase != "copy")},
        {"steps": tuple(row for row in steps(3) if (row.phase, row.number) != ("inference", 2))},
    ],
)
def test_runs_that_do_not_tell_the_parts_of_a_step_have_no_latency(
    infer: Any, changes: dict[str, Any]
) -> None:
    assert latency(infer(**changes)) is None


def test_the_batch_that_was_not_full_is_in_no_time(infer: Any) -> None:
    rest = Step(100, "rest", None, 9999 * MS)
    found, without = latency(infer(steps=(*steps(100), rest))), latency(infer())
    assert found == without


def test_accuracy_is_what_the_run_states_or_the_reason_why_not(infer: Any) -> None:
    stated = (Summary("top1", 0.75, "ratio"), Summary("top5", None, "ratio"))
    found = latency(infer(summaries=stated, gaps=(Gap("top5", "not_available", "3 classes"),)))
    assert found is not None
    assert (found.figures["top1"], found.figures["top5"], found.why["top5"]) == (
        0.75,
        None,
        "3 classes",
    )


def test_of_several_profilers_the_one_that_watched_least_speaks_for_the_batch(infer: Any) -> None:
    runs = [
        infer(1, profiler="torch"),
        infer(2, profiler="none"),
        infer(3, profiler="nsys", batch_size=8),
    ]
    runs.append(infer(4, model="vgg11"))
    assert [(item.model, item.batch, item.profiler) for item in latencies(runs)] == [
        ("resnet18", 4, "none"),
        ("resnet18", 4, "torch"),
        ("resnet18", 8, "nsys"),
        ("vgg11", 4, "none"),
    ]
    assert [item.profiler for item in least_watched(latencies(runs))] == ["none", "nsys", "none"]
    partial = [replace(run, status="partial") for run in runs]
    assert least_watched(latencies(partial)) == (), "a run that is not complete is not ranked"


def test_waiting_for_images_is_no_time_of_the_device(infer: Any) -> None:
    assert wall_time(PreparedRun(infer(steps=steps(3)))) == (
        14 * MS,
        "CPU timer around each step, with no profiler, without the wait for images",
    )
    whole_only = tuple(row for row in steps(3) if row.phase == "step")
    assert wall_time(PreparedRun(infer(steps=whole_only))) == (
        19 * MS,
        "CPU timer around each step, with no profiler",
    )


def test_whose_answer_it_is_and_how_its_images_came_are_told(infer: Any) -> None:
    facts = {"model": "vgg11", "option:dataloader_workers": "4", "option:data": "synthetic"}
    found = latency(infer(batch_size=8, profiler="nsys", environment=facts, steps=steps(20)))
    assert found is not None
    assert (found.model, found.batch, found.profiler, found.count) == ("vgg11", 8, "nsys", 20)
    assert (found.workers, found.synthetic) == (4, True)
    # Steps of 18, 19, ... 37 ms: 5 of loading, 3 of copies, 10 to 29 of computation.
    assert found.step == 27.5 * MS
    assert found.compute == 19.5 * MS
    assert found.percentiles[95] is not None, "20 batches are enough for a p95"
    assert found.percentiles[99] is None
    plain = latency(infer(environment={"option:data": "imagenette"}, workload="resnet18 by name"))
    assert plain is not None
    assert (plain.model, plain.workers, plain.synthetic) == ("resnet18 by name", None, False)
    nameless = latency(infer(environment={}, workload=None))
    assert nameless is not None
    assert nameless.model == ""


@pytest.mark.parametrize(
    "empty",
    [
        (
            Step(0, "step", None, 0),
            Step(0, "data", None, 0),
            Step(0, "copy", None, 0),
            Step(0, "inference", None, 0),
        ),
        (Step(0, "step", None, None),),
    ],
)
def test_steps_that_took_no_time_or_an_unknown_one_give_no_latency(
    infer: Any, empty: tuple[Step, ...]
) -> None:
    assert latency(infer(steps=empty)) is None


def test_models_keep_the_order_of_their_runs_and_profilers_go_from_the_lightest_on(
    infer: Any,
) -> None:
    runs = [
        infer(number, model=model, profiler=profiler, batch_size=batch)
        for number, (model, batch, profiler) in enumerate(
            (
                ("vgg11", 8, "dlprof"),
                ("vgg11", 8, "other"),
                ("vgg11", 8, "torch"),
                ("vgg11", 8, "nsys"),
                ("vgg11", 8, "none"),
                ("alexnet", 2, "torch"),
                ("vgg11", 4, "dlprof"),
            )
        )
    ]
    assert [(item.model, item.batch, item.profiler) for item in latencies(runs)] == [
        ("vgg11", 4, "dlprof"),
        ("vgg11", 8, "none"),
        ("vgg11", 8, "nsys"),
        ("vgg11", 8, "torch"),
        ("vgg11", 8, "dlprof"),
        ("vgg11", 8, "other"),
        ("alexnet", 2, "torch"),
    ]
