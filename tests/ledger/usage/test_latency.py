"""Latency from step rows: what counts as an answer's time, and which runs say nothing about it."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.roofline import get_step_time_without_image_wait
from perfctl.orchestrator.ledger.usage.inference import (
    compute_image_inference_latency,
    list_image_inference_latencies,
    pick_least_slowed_latency_per_batch,
)
from perfctl.records.report import Gap, Step, Summary
from tests.make.synthetic import make_run
from tests.make.tables import table

MS = 1_000_000


def steps(count, compute=10):
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


def infer(number=1, model="resnet18", **changes):
    fields = {
        "mode": "infer",
        "profiler": "none",
        "batch_size": 4,
        "environment": {"model": model, "option:dataloader_workers": "0"},
        "steps": steps(100),
    }
    return make_run(number, **(fields | changes))


def latency_of(**changes):
    found = compute_image_inference_latency(infer(**changes))
    assert found is not None
    return found


def test_an_answer_takes_copies_and_computation_and_no_loading():
    found = latency_of()
    # Times are 13, 14, ... 112 ms.
    assert found.percentiles == {50: 62.5 * MS, 95: 107 * MS, 99: 111 * MS}
    assert found.longest == 112 * MS
    assert (found.load, found.copy, found.compute) == (5 * MS, 3 * MS, 59.5 * MS)
    assert found.images_per_second == pytest.approx(4 / 0.0675)
    assert found.data_load_share == pytest.approx(5 / 67.5)
    rest = Step(100, "rest", None, 9999 * MS)
    assert latency_of(steps=(*steps(100), rest)) == found, "a batch that was not full is in no time"


@table("batches known", [(19, []), (20, [95]), (100, [95, 99])])
def test_too_few_batches_leave_tails_unknown_with_the_reason(batches, known):
    found = latency_of(steps=steps(batches))
    assert [tail for tail in (95, 99) if found.percentiles[tail] is not None] == known
    assert 95 in known or "needs 20" in found.why["p95"]


def without(phase, *numbers):
    return tuple(row for row in steps(3) if row.phase != phase or row.number not in numbers)


@table(
    "changes",
    [
        {"profiler": "ncu"},
        {"mode": "train"},
        {"batch_size": None},
        {"steps": ()},
        {"steps": without("copy", 0, 1, 2)},
        {"steps": without("inference", 2)},
        {"steps": tuple(step._replace(duration_ns=0) for step in steps(1))},
        {"steps": (Step(0, "step", None, None),)},
    ],
)
def test_runs_that_do_not_tell_the_parts_of_a_step_have_no_latency(changes):
    assert compute_image_inference_latency(infer(**changes)) is None


def test_accuracy_is_what_the_run_states_or_the_reason_why_not():
    stated = (Summary("top1", 0.75, "ratio"), Summary("top5", None, "ratio"))
    found = latency_of(summaries=stated, gaps=(Gap("top5", "not_available", "3 classes"),))
    assert (found.figures["top1"], found.figures["top5"]) == (0.75, None)
    assert found.why["top5"] == "3 classes"


def test_of_several_profilers_the_one_that_watched_least_speaks_for_the_batch():
    runs = [
        infer(1, profiler="torch"),
        infer(2, profiler="none"),
        infer(3, profiler="nsys", batch_size=8),
        infer(4, model="vgg11"),
    ]
    least = [
        (item.model, item.batch, item.profiler)
        for item in pick_least_slowed_latency_per_batch(list_image_inference_latencies(runs))
    ]
    assert least == [("resnet18", 4, "none"), ("resnet18", 8, "nsys"), ("vgg11", 4, "none")]
    partial = [replace(run, status="partial") for run in runs]
    assert pick_least_slowed_latency_per_batch(list_image_inference_latencies(partial)) == (), (
        "a run that is not complete is not ranked"
    )


def test_waiting_for_images_is_no_time_of_the_device():
    assert get_step_time_without_image_wait(PreparedRun(infer(steps=steps(3)))) == (
        14 * MS,
        "CPU timer around each step, with no profiler, without the wait for images",
    )
    whole_only = tuple(row for row in steps(3) if row.phase == "step")
    assert get_step_time_without_image_wait(PreparedRun(infer(steps=whole_only))) == (
        19 * MS,
        "CPU timer around each step, with no profiler",
    )


def test_whose_answer_it_is_and_how_its_images_came_are_told():
    facts = {"model": "vgg11", "option:dataloader_workers": "4", "option:data": "synthetic"}
    found = latency_of(batch_size=8, profiler="nsys", environment=facts, steps=steps(20))
    assert (found.model, found.batch, found.profiler, found.count) == ("vgg11", 8, "nsys", 20)
    assert (found.workers, found.synthetic) == (4, True)
    # Steps of 18, 19, ... 37 ms: 5 of loading, 3 of copies, 10 to 29 of computation.
    assert (found.step, found.compute) == (27.5 * MS, 19.5 * MS)
    plain = latency_of(environment={"option:data": "imagenette"}, workload="resnet18 by name")
    assert (plain.model, plain.workers, plain.synthetic) == ("resnet18 by name", None, False)
    assert latency_of(environment={}, workload=None).model == ""


def test_models_keep_the_order_of_their_runs_and_profilers_go_from_the_lightest_on():
    order = [
        ("vgg11", 4, "dlprof"),
        *(("vgg11", 8, profiler) for profiler in ("none", "nsys", "torch", "dlprof", "other")),
        ("alexnet", 2, "torch"),
    ]
    runs = [
        infer(number, model=model, profiler=profiler, batch_size=batch)
        for number, (model, batch, profiler) in enumerate(
            (order[4], order[5], order[3], order[2], order[1], order[6], order[0])
        )
    ]
    assert [
        (item.model, item.batch, item.profiler) for item in list_image_inference_latencies(runs)
    ] == order
