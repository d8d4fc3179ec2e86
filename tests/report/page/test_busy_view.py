"""Utilisation and memory on the page: no rounded zero, causes named, drawings for any set
of models; samples per second of accumulated steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfctl.orchestrator.ledger.prepared import PreparedRun, Study, group_into_studies
from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.study import draw_utilization_and_memory_charts
from perfctl.orchestrator.report.findings import list_findings_without_layers
from perfctl.orchestrator.report.findings.step import (
    describe_busy_and_fitting_batches,
    describe_idle_gpu,
    describe_time_per_sample_by_batch,
)
from perfctl.orchestrator.report.page.about import describe_profiler_versions
from perfctl.orchestrator.report.page.records import StepTime
from perfctl.orchestrator.report.page.study import build_sweep_table
from perfctl.orchestrator.report.page.usage import (
    build_idle_gap_tables,
    build_memory_use_table,
    build_utilization_table,
    explain_missing_busy_share,
)
from perfctl.records.report import Counter, Device, Kernel, MemoryFigure, Sample, Step, Summary
from perfctl.records.run import Run
from tests.make import synthetic

GPU = Device("a GPU", "gpu", memory_bytes=100_000)


def cells(table, heading):
    assert table is not None
    place = [column.label for column in table.columns].index(heading)
    return [row[place].text for row in table.rows]


def made(number, batch, share, model="resnet18"):
    kernels = [
        Kernel(0, "gemm", start_ns=0, duration_ns=int(share * 1e6) - 1),
        Kernel(1, "last", start_ns=10**6 - 1, duration_ns=1),
    ]
    run: Run = synthetic.make_run(
        number,
        batch_size=batch,
        profiler="nsys",
        device=GPU,
        kernels=kernels,
        variant=f"model={model}",
        environment={"option:model": model},
        mode="infer",
        workload="torchvision_infer",
        memory=(MemoryFigure("peak", "reserved", 1000 + 20 * batch),),
        samples=[Sample(at, share / 2, 5000, 100_000, None, None, None, 0) for at in (0, 10**10)],
        steps=(Step(0, "step", 0, 10**10),),
    )
    return run


def test_a_utilisation_far_below_a_tenth_of_a_percent_is_shown_and_not_rounded_to_zero():
    run = synthetic.foreign_run(
        1, profiler="dlprof", kernels=[], summaries=(Summary("GPU Utilization", 0.010363, "%"),)
    )
    assert cells(build_utilization_table([RunUsage(run)]), "GPU busy (DLProf)") == ["0.0104%"]


def test_ways_stand_side_by_side_waits_are_told_by_cause_and_memory_by_each_hand_that_measured_it():
    table = build_utilization_table([RunUsage(made(1, 1, 0.5))])
    assert (cells(table, "GPU busy (kernels)"), cells(table, "GPU busy (sampled)")) == (
        ["50.0%"],
        ["25.0%"],
    )
    by_cause, longest = build_idle_gap_tables([RunUsage(made(1, 1, 0.5))], {})
    assert cells(by_cause, "host")[0].startswith("500")
    assert (cells(longest, "after"), cells(longest, "before")) == (["gemm"], ["last"])
    table = build_memory_use_table([RunUsage(made(1, 1, 0.5))])
    assert table is not None
    titles = [column.label for column in table.columns]
    assert {"peak reserved", "device in use", "device memory"} <= set(titles)
    assert "process, NVML" not in titles, "nothing was collected"


def test_findings_say_from_where_on_the_gpu_is_busy_why_it_waits_and_what_fits():
    runs = [made(batch, batch, share) for batch, share in ((1, 0.3), (5, 0.92), (10, 0.95))]
    texts = [
        finding.text
        for finding in describe_busy_and_fitting_batches([RunUsage(run) for run in runs])
    ]
    (idle,) = describe_idle_gpu([PreparedRun(run) for run in runs], {}, {1: StepTime(1000)})
    assert "from batch 5 on" in texts[0]
    assert "ran kernels for 30.0% of the time" in idle.text and "at batch 1:" in idle.text
    assert idle.impact_ns == pytest.approx(700) and idle.impact_share == pytest.approx(0.7)
    assert texts[1].startswith("Batch 4,950 is the largest that fits")
    assert (
        "at no measured batch size"
        in next(describe_busy_and_fitting_batches([RunUsage(runs[0])])).text
    )
    assert not list(describe_busy_and_fitting_batches([RunUsage(synthetic.make_run())]))


def test_both_drawings_hold_a_line_for_each_model():
    runs = [
        made(10 * place + batch, batch, batch / 20, model)
        for place, model in enumerate(("resnet18", "vgg11"))
        for batch in (1, 5, 10)
    ]
    utilisation, memory = draw_utilization_and_memory_charts(runs)
    assert "resnet18, kernels batch 5: 25%" in utilisation.svg
    assert "vgg11, NVML batch 10: 25%" in utilisation.svg
    assert "Memory (device in use), by batch size. resnet18 batch 1: 5" in memory.svg


def test_where_no_share_can_be_said_the_reason_stands_there():
    kernels = [Kernel(0, "k", start_ns=0, duration_ns=9), Kernel(1, "k", duration_ns=9)]
    said = explain_missing_busy_share([synthetic.make_run(profiler="nsys", kernels=kernels)])
    assert said is not None and said.startswith("1 of 2 kernels have no start or no duration")
    assert "ncu runs kernels one by one" in (
        explain_missing_busy_share([synthetic.make_run(profiler="ncu", kernels=kernels)]) or ""
    )
    counters = [Counter(0, "SQ_WAVES", 1.0, None)]
    serial = synthetic.make_run(profiler="rocprofv3", kernels=kernels[:1], counters=counters)
    assert explain_missing_busy_share([serial]) == (
        "kernels ran one by one, because counters were collected"
    )
    assert explain_missing_busy_share([synthetic.make_run()]) is None


def test_many_short_waits_between_kernels_are_not_named_as_one():
    kernels = [
        Kernel(at, f"k{at}", start_ns=at * 1000, duration_ns=500, device_index=0) for at in range(6)
    ]
    run = synthetic.foreign_run(1, kernels=kernels, profiler="torch", ranges=[])
    (prepared,) = group_into_studies([run])[0].prepared_runs
    texts = [one.text for one in list_findings_without_layers([prepared], {}, {})]
    assert any("ran kernels for" in text for text in texts)
    assert not any("One idle gap" in text for text in texts)


STEP_NS = 2_000_000.0
STUDY = Study("mnist_cnn", "train", "fp32", "cpu", None, ())


def shown(samples, batches):
    """Column -> text of the only row."""
    point = BatchPoint(
        8, TimeSpread(STEP_NS, STEP_NS, STEP_NS, 1, STEP_NS), "steps", {}, (), samples, batches
    )
    view = build_sweep_table([point])
    assert view is not None
    return {
        column.label: cell.text for column, cell in zip(view.columns, view.rows[0], strict=True)
    }


def test_samples_a_second_count_every_batch_of_a_step():
    one, two = shown(8, 1), shown(2 * 8, 2)
    assert "samples per step" not in one
    assert two["samples per step"] == "2 x 8 = 16"
    assert one["samples per second"].startswith(
        f"{8 / STEP_NS * 1e9 / 1e3:.2f}".rstrip("0").rstrip(".")
    )
    assert two["samples per second"].startswith(
        f"{16 / STEP_NS * 1e9 / 1e3:.2f}".rstrip("0").rstrip(".")
    )


def test_samples_that_do_not_fit_the_batch_size_give_no_rate():
    row = shown(None, 2)
    assert not any(character.isdigit() for character in row.get("samples per second", ""))


def test_a_run_of_unknown_version_does_not_name_its_tool_twice():
    def runs(*named):
        return [
            SimpleNamespace(profiler=profiler, profiler_version=version)
            for profiler, version in named
        ]

    assert (
        describe_profiler_versions(runs(("torch", None), ("torch", "2.14.1"), ("nsys", None)))
        == "torch 2.14.1 + nsys"
    )
    assert (
        describe_profiler_versions(runs(("ncu", "2025.3"), ("ncu", "2025.1"), ("none", None)))
        == "ncu 2025.3 + ncu 2025.1 + no profiler"
    )


def test_a_batch_whose_run_is_not_complete_is_not_ranked():
    points = [
        BatchPoint(
            batch, TimeSpread(ns, ns, ns, 3, ns), "steps", {}, (), batch, is_complete=is_complete
        )
        for batch, ns, is_complete in ((8, 8e6, True), (16, 1e6, False), (32, 16e6, True))
    ]
    (finding,) = describe_time_per_sample_by_batch(STUDY, points)
    assert "lowest" not in finding.text
    assert list(describe_time_per_sample_by_batch(STUDY, points[:2])) == []
