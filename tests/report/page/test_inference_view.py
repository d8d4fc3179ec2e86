"""Inference in tables and sentences: what is said, and what is left unsaid."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Group

from perfctl.orchestrator.report.page.page import render
from perfctl.orchestrator.report.studies.inference import inference_answer
from perfctl.orchestrator.report.studies.inference_findings import inference_findings
from perfctl.records.report import Gap, Step, Summary
from tests.make import synthetic
from tests.report.outline import terminal_run

MS = 1_000_000


@pytest.fixture
def infer() -> Any:
    def make(
        batch: int, load: int = 1, compute: int = 10, slow: int = 0, count: int = 40, **changes: Any
    ) -> Any:
        rows = []
        for number in range(count):
            took = slow if slow and number % 10 == 0 else compute
            for phase, length in (
                ("step", load + took + 1),
                ("data", load),
                ("copy", 1),
                ("inference", took),
            ):
                rows.append(Step(number, phase, None, length * MS))
        facts = {"model": "resnet18", "option:data": "imagenet", "option:dataloader_workers": "0"}
        facts |= changes.pop("facts", {})
        given = {
            "mode": "infer",
            "profiler": "none",
            "batch_size": batch,
            "environment": facts,
            "steps": tuple(rows),
            "workload": "torchvision_infer",
            "variant": "model=resnet18",
            "origin": "measured",
        }
        return synthetic.make_run(batch, **{**given, **changes})

    return make


def accuracy(top1: float | None, top5: float | None = 0.9) -> tuple[Summary, ...]:
    return (
        Summary("images", 3000, "count"),
        Summary("top1", top1, "ratio"),
        Summary("top5", top5, "ratio"),
    )


def said(*runs: Any) -> str:
    return " ".join(item.text for item in inference_findings(runs))


def test_throughput_is_said_for_the_smallest_the_largest_and_the_best_batch_and_an_uneven_tail(
    infer: Any,
) -> None:
    text = said(infer(1, compute=10), infer(5, compute=20), infer(10, compute=90))
    assert "is: resnet18 11.0 ms at batch 1, 91.0 ms at batch 10." in text
    assert "The most images/s are: resnet18 227 at batch 5 (2.7x batch 1)" in text
    assert "batch 4: p95 is 31.0 ms, 2.8 times the median." in said(infer(4, slow=30))
    assert "varies" not in said(infer(4))


def test_waiting_for_images_is_said_where_it_is_a_fifth_of_a_step_and_never_for_synthetic_ones(
    infer: Any,
) -> None:
    assert "wait for images (--dataloader-workers 2" in said(infer(4, load=10))
    assert "resnet18 47.6% at batch 4" in said(infer(4, load=10))
    assert "--dataloader-workers 8" in said(
        infer(4, load=10, facts={"option:dataloader_workers": "4"})
    )
    assert "wait" not in said(infer(4, load=2))
    assert "wait" not in said(infer(4, load=10, facts={"option:data": "synthetic"}))


def test_accuracy_is_said_once_only_where_there_is_one_and_with_what_moves_with_the_batch_size(
    infer: Any,
) -> None:
    text = said(infer(1, summaries=accuracy(0.698)), infer(5, summaries=accuracy(0.698)))
    assert text.count("The top-1 accuracy is: resnet18 69.8% (68.1% to 71.4%) of 3,000 images") == 1
    assert "top-5 90.0%" in text
    assert "differs between batch sizes" not in text
    assert "accuracy" not in said(infer(1, summaries=accuracy(None, None)))
    text = said(infer(1, summaries=accuracy(0.698)), infer(5, summaries=accuracy(0.697)))
    assert "because kernels round differently: resnet18." in text


def test_what_is_not_known_is_a_dash_with_its_reason_and_runs_of_training_have_no_part(
    infer: Any,
) -> None:
    gaps = tuple(
        Gap(name, "not_available", "the weights are random") for name in ("top1", "top5", "loss")
    )
    first, second = inference_answer(
        [infer(4, count=5, summaries=accuracy(None, None), gaps=gaps)]
    ).tables
    assert "p99" not in [column.label for column in first.columns]
    assert "p95: too few batches: a p95 needs 20." in first.notes
    assert "images/s" in [column.label for column in second.columns]
    assert inference_answer([synthetic.make_run()]).tables == ()
    assert inference_findings([synthetic.make_run()]) == []


def test_the_page_and_the_terminal_show_the_same_latency(infer: Any) -> None:
    run = infer(4, summaries=accuracy(0.698))
    page = render([run], generated_at="2026-11-20T10:00:00Z")
    assert page.count("Latency of a batch: copies") == 1
    assert 'href="#infer-latency"' in page
    titles = [part.renderables[0] for part in terminal_run(run) if isinstance(part, Group)]
    assert any(str(title).startswith("Latency of a batch") for title in titles)
