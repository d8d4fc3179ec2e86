"""The first sentences of a comparison: how the step changed, what is behind it, and which
difference is the likeliest."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.compare.causes import align_layers_and_kernels
from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.report.compare.why import describe_change_against_total
from perfctl.orchestrator.report.compare.words import describe_comparison_in_sentences
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.records.report import CPU_OTHERS, CPU_WAIT, Kernel, Summary
from tests.make import synthetic
from tests.make.two_sides import GPU_STEP as STEP
from tests.make.two_sides import QUIET, gpu_side


def scaled(by):
    return tuple(by * factor for factor in QUIET)


def view_of(a, b, **how):
    found = compare_two_sides(a, b, **how)
    return describe_comparison_in_sentences(
        found, [align_layers_and_kernels(pair) for pair in found.pairs]
    )


def said(a, b, **how):
    view = view_of(a, b, **how)
    for finding in view.findings:
        assert isinstance(finding, Finding)
        assert len(finding.first) <= LONGEST, finding.first
    return tuple(view.finding_and_warning_sentences[0])


@pytest.mark.parametrize(
    ("by", "first"),
    [
        (
            1.2,
            (
                "The step is 20.0% slower at batch 64: 1.00 ms in A, 1.20 ms in B (95% interval "
                "+19.7% to +20.3%)."
            ),
        ),
        (0.8, "The step is 20.0% faster at batch 64: 1.00 ms in A, 800 µs in B (95% interval "),
        (
            1.03,
            (
                "The step changed by +3.0% at batch 64, within the gate of 5%: 1.00 ms in A, "
                "1.03 ms in B."
            ),
        ),
        (1.0, "The step did not change by more than 5% at batch 64: "),
    ],
)
def test_several_repeats_say_how_the_step_changed(by, first):
    assert said(gpu_side("A", QUIET), gpu_side("B", scaled(by)))[0].startswith(first)


def test_noise_is_said_in_one_sentence_with_the_repeats_that_would_do():
    wide = (1.0, 1.3, 0.8, 1.1, 0.9)
    sides = gpu_side("A", wide), gpu_side("B", (1.1, 0.9, 1.2, 1.0, 0.8))
    first = said(*sides)[0]
    hidden = "may hide a change beyond the gate: step at batch 64"
    assert any(hidden in text for text in view_of(*sides).warnings)
    assert first.startswith("Too noisy to judge at batch 64: the step changed by ")
    assert first.endswith(
        ("repeats per side would suffice.", "repeats per side would not suffice.")
    )
    wider = (1.0, 3.0, 0.3, 2.0, 0.5)
    first = said(gpu_side("A", wider), gpu_side("B", wider[::-1]))[0]
    assert first.endswith("even 100 repeats per side would not suffice.")
    slightly = (1.0, 1.06, 0.95, 1.02, 0.98)
    count = int(
        said(gpu_side("A", slightly), gpu_side("B", slightly[::-1]))[0]
        .split("about ")[1]
        .split()[0]
    )
    assert 5 < count < 40


def test_one_run_each_of_few_steps_is_too_little_and_five_repeats_would_do():
    first = said(gpu_side("A", (1.0,), steps=3), gpu_side("B", (1.5,), steps=3))[0]
    assert first.startswith("The step took 50.0% longer at batch 64 (")
    assert "from too few values to judge: 5 repeats per side would suffice." in first


def test_the_only_version_that_changed_is_named_with_the_reason():
    news = said(
        gpu_side("A", QUIET, winograd=True), gpu_side("B", scaled(1.3), conv2=1.5, cudnn="9.99")
    )
    assert (
        "cuDNN (9.10 in A, 9.99 in B) is the only version that changed. Convolutions run the "
        "kernels that cuDNN chooses, and " in news[2]
    )
    quiet = said(gpu_side("A", QUIET), gpu_side("B", QUIET, cudnn="9.99"))
    assert quiet[-1] == "No difference between the sides is a likely cause; cudnn differs."


def test_the_same_kernels_are_said_to_be_the_same():
    launches = 4 * 2 + 1  # four layers in two directions, and a copy of no layer
    news = said(gpu_side("A", QUIET), gpu_side("B", QUIET))
    assert news[1] == (
        f"Both sides run the same kernels equally often on the same grids ({launches} launches "
        "per step)."
    )


def test_the_layer_that_changed_most_is_named_also_if_its_kernels_are_the_same():
    side = gpu_side("B", scaled(1.1), conv2=1.5)
    runs = tuple(
        synthetic.with_kernels(
            run, lambda one: one._replace(name="other") if one.layer == "fc2" else one
        )
        for run in side.runs
    )
    because = said(gpu_side("A", QUIET), ComparisonSide("B", runs))[1]
    assert because.startswith("conv2 ")
    assert " changed most: " in because
    assert because.endswith(", with the same kernels.")


def test_a_step_that_grew_between_its_kernels_is_not_laid_to_them():
    b = gpu_side("B", QUIET)
    longer = tuple(
        synthetic.with_report(
            run,
            steps=tuple(
                step._replace(duration_ns=(step.duration_ns or 0) + STEP)
                for step in run.report.steps
            ),
        )
        for run in b.runs
    )
    news = said(gpu_side("A", QUIET), ComparisonSide("B", longer))
    assert news[0].startswith("The step is 100.0% slower at batch 64: 1.00 ms in A, 2.00 ms in B")
    assert news[1].endswith("the rest is between kernels (host, launches, data).")


def test_counts_stand_where_no_step_was_timed():
    rows = 4 * 2
    a, b = gpu_side("A", (1.0,), profiler="ncu"), gpu_side("B", (1.0,), profiler="ncu")
    assert said(a, b)[0] == (
        f"No step has a time on both sides; the executed FLOPs are the same in {rows} of {rows} "
        "layer rows."
    )


def test_without_steps_and_counts_the_kernels_of_the_report_are_added_up():
    def foreign(label, factor):
        (run,) = gpu_side(label, (factor,)).runs
        kernels = [
            kernel._replace(step=None, layer=None, direction=None) for kernel in run.report.kernels
        ]
        report = replace(run.report, kernels=kernels, steps=(), ranges=[], memory=())
        return ComparisonSide(
            label, (replace(run, report=report, workload=None, batch_size=None, layer_calls=()),)
        )

    news = said(foreign("A", 1.0), foreign("B", 2.0))
    assert news[0].startswith("All kernels of the report took 2.00 times as long: ")
    assert "perfctl does not judge this, because the number of steps is unknown." in news[0]


def test_other_work_is_shown_and_called_not_comparable():
    news = said(gpu_side("A", QUIET), gpu_side("B", scaled(1.5), batch=128))
    assert news[0].startswith(
        "Not comparable (batch 64 in A, 128 in B): the step took 50.0% longer, 1.00 ms in A, 1.50 "
        "ms in B."
    )
    assert news[-1].startswith("Likely cause: batch 64 in A, 128 in B.")
    forced = said(gpu_side("A", QUIET), gpu_side("B", scaled(1.5), batch=128), is_forced=True)
    assert forced[0].startswith("The step is 50.0% slower at batch 64 / 128: ")


def test_changes_of_layers_are_parts_of_the_steps_only_where_they_add_up_to_it():
    def on_a_cpu(*changes):
        parts = tuple(SimpleNamespace(change=change) for change in changes)
        return SimpleNamespace(
            parts=parts,
            has_times_not_from_ncu=True,
            has_kernels_on_any_side=False,
            total_change_ns=100e6,
        )

    assert (
        describe_change_against_total(60e6, on_a_cpu(60e6, 40e6))
        == "+60.0 ms of the +100 ms of the step"
    )
    apart = describe_change_against_total(60e6, on_a_cpu(60e6, 90e6))
    assert (
        apart
        == "+60.0 ms, while the step changed by +100 ms; the medians of layers do not add up to "
        "that of the step"
    )


def test_a_kernel_of_a_report_without_steps_is_gone_from_the_complete_report():
    def foreign(label, *names):
        kernels = [
            Kernel(launch, name, start_ns=10_000 * launch, duration_ns=5_000)
            for launch, name in enumerate(names)
        ]
        return ComparisonSide(label, (synthetic.foreign_run(1, kernels=kernels, ranges=[]),))

    stated = said(foreign("A", "gemm", "relu"), foreign("B", "gemm", "gemm"))
    (gone,) = (text for text in stated if "is gone" in text)
    assert gone.endswith("relu is gone: in A only, 5.00 µs in the complete report.")
    assert not any("per step" in text for text in stated)


def test_a_layer_that_only_one_side_has_is_named_although_the_times_are_noise():
    def without(layer, side):
        runs = [
            replace(
                run,
                report=replace(
                    run.report, kernels=[k for k in run.report.kernels if k.layer != layer]
                ),
            )
            for run in side.runs
        ]
        return replace(side, runs=tuple(runs))

    a, b = gpu_side("A", QUIET), gpu_side("B", QUIET)
    assert "Only B has the layer conv2." in said(without("conv2", a), b)
    assert "Only A has the layer conv2." in said(a, without("conv2", b))
    assert not any(text.startswith("Only ") for text in said(a, b))


def test_the_notes_of_several_batch_sizes_that_differ_in_numbers_are_one():
    found = compare_two_sides(gpu_side("A", QUIET), gpu_side("B", QUIET))
    (pair,) = found.pairs
    other = replace(pair, batch_a=128, batch_b=128, notes=("In A the CPU was busy: 90%",))
    pairs = (replace(pair, notes=("In A the CPU was busy: 9%", "Once")), other)
    view = describe_comparison_in_sentences(replace(found, pairs=pairs), [])
    assert view.warnings[:2] == ("In A the CPU was busy: 90% (highest of batch 64, 128).", "Once.")


def test_reports_without_steps_layers_and_kernels_say_why_they_have_no_rows():
    sides = [
        ComparisonSide(label, (synthetic.foreign_run(number, kernels=[], ranges=[]),))
        for number, label in enumerate("AB", 1)
    ]
    (text,) = said(*sides)
    assert text.startswith("A and B have no step, layer or kernel in common")
    assert "perfctl torch -- PROGRAM" in text


def test_a_reason_that_the_first_sentence_states_is_not_repeated():
    shares = (Summary(CPU_WAIT, 0.7, "ratio"), Summary(CPU_OTHERS, 0.9, "ratio"))
    sides = [
        ComparisonSide(
            label, (synthetic.with_report(synthetic.cpu_run(number, 64), summaries=shares),)
        )
        for number, label in enumerate("AB", 1)
    ]
    view = view_of(*sides)
    assert "threads waited for a core in 70%" in view.finding_and_warning_sentences[0][0]
    assert [text for text in view.warnings if "not judged" in text] == [
        text for text in view.warnings if text.endswith(" for the reason of the step.")
    ]
