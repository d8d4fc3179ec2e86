"""Inference on the page: all models and batch sizes in one part, each quantity once, and what is
not drawn says why."""

import re
from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.usage.inference import find_throughput_saturation_batch
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.orchestrator.report.studies.inference import build_inference_summary_view
from perfctl.orchestrator.report.studies.inference_fields import (
    format_times_as_many,
    join_as_many_facts_as_fit,
    list_inference_findings,
)
from perfctl.records.report import Gap, Step, Summary
from tests.make import synthetic
from tests.report.evidence import unproved

MS = 1_000_000
MADE = "2026-11-20T10:00:00Z"
SCORED = (
    Summary("images", 400, "count"),
    Summary("top1", 0.7, "ratio"),
    Summary("top5", 0.9, "ratio"),
)


def answers(model, batch, took, *, load=1, **changes):
    """A batch for each of ``took``, the ms that it computes after ``load`` ms and 1 ms of copies."""
    steps = [
        Step(number, phase, None, round(length * MS))
        for number, ms in enumerate(took)
        for phase, length in (
            ("step", load + ms + 1),
            ("data", load),
            ("copy", 1),
            ("inference", ms),
        )
    ]
    facts = {"model": model, "option:data": "imagenet", "option:dataloader_workers": "0"}
    given = {
        "mode": "infer",
        "profiler": "none",
        "workload": "torchvision_infer",
        "variant": f"model={model}",
        "origin": "measured",
        "environment": {**facts, **changes.pop("facts", {})},
        "steps": tuple(steps),
    }
    return synthetic.make_run(batch, batch_size=batch, **{**given, **changes})


def sweep(*models, images=400, **changes):
    """Every model at its batches, of so many ms of computation, give or take 2%."""
    made = [
        answers(
            model,
            batch,
            [ms * (1.02 if number % 2 else 0.98) for number in range(images // batch)],
            **{"summaries": SCORED, **changes},
        )
        for model, points in models
        for batch, ms in points
    ]
    return [replace(run, id=number) for number, run in enumerate(made, 1)]


TWO = (("fast_net", ((1, 4), (4, 10), (20, 50))), ("slow_net", ((1, 20), (4, 60), (20, 200))))


def stated(part):
    return [item for item in part.findings if isinstance(item, Finding)]


def view(runs):
    first, *_ = build_report_view(runs, generated_at=MADE).chapters
    return first


def test_several_models_are_one_part_of_the_page_and_their_details_are_folded():
    page = build_report_view(sweep(*TWO), generated_at=MADE)
    joint, *details = page.chapters
    assert page.title == joint.title == "Inference: fast_net, slow_net"
    assert [part.is_folded for part in (joint, *details)] == [False, True, True]
    keys = [section.key for part in details for section in part.chapters]
    assert "inference" not in keys and not {"latency", "throughput"} & {*keys}, "each quantity once"


def test_the_headline_names_the_fastest_model_its_batch_and_by_how_much():
    """Means: 10 ms of computation at batch 4 is a step of 12 ms; slow_net is best at batch 20, with
    202 ms."""
    found = view(sweep(*TWO))
    best, other = {4: 4 / 0.012, 20: 20 / 0.052}, 20 / 0.202
    fastest = max(best, key=lambda batch: best[batch])
    factor = best[fastest] / other
    mine, theirs = (
        f"{best[fastest]:.0f} images/s at batch {fastest}",
        f"{other:.1f} images/s at batch 20",
    )
    wanted = (
        f"fast_net is the fastest: {mine}, {factor:.1f} times as many as slow_net at its best "
        f"({theirs})."
    )
    assert stated(found)[0].text == wanted, "by the means that the table shows"
    rows = next(section for section in found.chapters if section.key == "throughput").tables[0].rows
    for row in rows:
        batch, rate, step = (float(row[place].value or 0) for place in (1, 2, 3))
        assert rate == pytest.approx(batch / (step / 1e9), rel=1e-5), "images/s = batch / mean step"


@pytest.mark.parametrize("images", [400, 60])
def test_every_number_of_a_finding_is_in_the_table_it_leads_to(images):
    found = view(sweep(*TWO, images=images))
    assert len(found.findings) > 4
    for item in stated(found):
        assert not (lacking := unproved(item, found)), (item.text, lacking)


def test_models_that_the_steps_cannot_tell_apart_have_no_winner_and_few_batches_say_so():
    same = view(sweep(("a_net", ((4, 10.0),)), ("b_net", ((4, 10.01),))))
    assert "cannot distinguish" in stated(same)[0].text
    few = view(sweep(("a_net", ((4, 10),)), ("b_net", ((4, 30),)), images=20))
    assert "but 5 timed batches are too few to be sure" in stated(few)[0].text


@pytest.mark.parametrize(
    ("rates", "since"),
    [
        ({1: 10, 4: 30, 20: 32}, 4),
        ({1: 10, 4: 30, 20: 34}, 20),
        ({1: 30, 4: 20, 20: 31}, 1),
        ({2: 5}, 2),
    ],
)
def test_more_batch_stops_paying_where_no_larger_one_gives_a_tenth_more(rates, since):
    assert find_throughput_saturation_batch(rates) == since


def test_where_more_batch_stops_paying_is_said_and_1_0_times_is_put_in_words():
    texts = [item.text for item in stated(view(sweep(("net", ((1, 2), (4, 10), (20, 50.5))))))]
    # 333 to 381: 14% more
    pays = "A larger batch gives under 10% more images/s from these batch sizes on: net"
    assert f"{pays} 4." not in texts and f"{pays} none up to 20." in texts
    texts = [item.text for item in stated(view(sweep(("net", ((1, 2), (4, 8), (20, 46.5))))))]
    assert f"{pays} 4." in texts, "400 to 412 images/s"
    assert (format_times_as_many(1.04), format_times_as_many(1.06)) == (
        "about as many as",
        "1.1 times as many as",
    )


def test_what_is_not_known_is_no_chart_but_one_sentence():
    gaps = (Gap("top1", "not_available", "the weights are random"),)
    runs = sweep(("net", ((40, 100), (100, 200))), summaries=(), gaps=gaps)
    sections = {section.key: section for section in view(runs).chapters}
    assert sections["accuracy"].facts == (
        "No top-1, top-5: the weights are random. Use --weights default and --data imagenet.",
    )
    assert sections["accuracy"].charts == ()
    assert "No p95: it needs 20 full batches" in "".join(sections["latency"].facts)
    assert [chart.title for chart in sections["latency"].charts] == ["Latency p50, by batch size"]
    assert "the runs were on a CPU" in "".join(sections["utilization"].facts)
    assert sections["utilization"].charts == ()


def test_a_failed_batch_stands_above_the_folds():
    runs = sweep(*TWO)
    runs[-1] = replace(runs[-1], status="failed", reason="out of memory")
    assert any(
        "slow_net at batch 20: none: failed, out of memory" in item.text
        for item in stated(view(runs))
        if item.warning
    )


def test_accuracy_of_a_handful_of_images_has_no_interval_but_what_would_give_one():
    few = (Summary("images", 4, "count"), Summary("top1", 0.5, "ratio"))
    (section,) = [
        part for part in view(sweep(*TWO, summaries=few)).chapters if part.key == "accuracy"
    ]
    assert "95% interval" not in [column.label for column in section.tables[0].columns]
    said = " ".join(section.tables[0].notes)
    assert re.search(
        r"95% interval: unknown: .* wider than 50 percentage points; about \d+ more images would "
        "decide",
        said,
    )
    assert section.charts[0].note == "too few images for a 95% interval"


def test_a_sentence_has_as_many_models_as_fit():
    facts = [letter * 70 for letter in "ab"]
    assert [*join_as_many_facts_as_fit("Slow:", facts)] == [f"Slow: {facts[0]} and others."]
    assert [*join_as_many_facts_as_fit("Slow:", ["a", "b"])] == ["Slow: a; b."]


def infer(batch, compute=10, slow=10, count=40, **changes):
    took = [compute if number % 10 else max(slow, compute) for number in range(count)]
    return answers("resnet18", batch, took, **changes)


def accuracy(top1, top5=0.9):
    return (
        Summary("images", 3000, "count"),
        Summary("top1", top1, "ratio"),
        Summary("top5", top5, "ratio"),
    )


def said(*runs):
    return " ".join(item.text for item in list_inference_findings(runs))


def test_throughput_is_said_for_the_smallest_the_largest_and_the_best_batch_and_an_uneven_tail():
    text = said(infer(1, compute=10), infer(5, compute=20), infer(10, compute=90))
    assert (
        "is: resnet18 11.0 ms at batch 1 (p95 11.0 ms, 40 batches), "
        "91.0 ms at batch 10 (p95 91.0 ms, 40 batches)."
    ) in text
    assert "The most images/s are: resnet18 227 at batch 5 (2.7x batch 1)" in text
    text = said(infer(4, slow=30))
    assert "batch 4: p95 is 31.0 ms, 2.8 times the median." in text
    assert f"({4 / 0.032:.0f} to {4 / 0.012:.0f} in 40 batches)" in text
    assert "varies" not in said(infer(4))


def test_waiting_for_images_is_said_where_it_is_a_fifth_of_a_step_and_never_for_synthetic_ones():
    assert "wait for images (--dataloader-workers 2" in said(infer(4, load=10))
    assert "resnet18 47.6% at batch 4" in said(infer(4, load=10))
    assert "--dataloader-workers 8" in said(
        infer(4, load=10, facts={"option:dataloader_workers": "4"})
    )
    assert "wait" not in said(infer(4, load=2))
    assert "wait" not in said(infer(4, load=10, facts={"option:data": "synthetic"}))


def test_accuracy_is_said_once_only_where_there_is_one_and_with_what_moves_with_the_batch_size():
    text = said(infer(1, summaries=accuracy(0.698)), infer(5, summaries=accuracy(0.698)))
    assert text.count("The top-1 accuracy is: resnet18 69.8% (68.1% to 71.4%) of 3,000 images") == 1
    assert "top-5 90.0%" in text
    assert "differs between batch sizes" not in text
    assert "accuracy" not in said(infer(1, summaries=accuracy(None, None)))
    text = said(infer(1, summaries=accuracy(0.698)), infer(5, summaries=accuracy(0.697)))
    assert "because kernels round differently: resnet18." in text


def test_what_is_not_known_is_a_dash_with_its_reason_and_runs_of_training_have_no_part():
    gaps = tuple(
        Gap(name, "not_available", "the weights are random") for name in ("top1", "top5", "loss")
    )
    first, second = build_inference_summary_view(
        [infer(4, count=5, summaries=accuracy(None, None), gaps=gaps)]
    ).tables
    assert "p99" not in [column.label for column in first.columns]
    assert "p95: too few batches: a p95 needs 20." in first.notes
    assert "images/s" in [column.label for column in second.columns]
    assert build_inference_summary_view([synthetic.make_run()]).tables == ()
    assert list_inference_findings([synthetic.make_run()]) == []
