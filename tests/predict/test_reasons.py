"""Which record or fit a prediction takes among several, and each reason for not taking a better
way; no scikit-learn."""

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.predict import predict_from_best_source
from perfctl.orchestrator.predict.step_parts import FEATURES, compute_step_floor_seconds
from tests.make.made_fits import CONV, CPU, case_of, fit_of

CASE = case_of(CONV)
INFERENCE = case_of(CONV, training=False)
FIT = fit_of({"step forward": 3.0}, {"forward": {"step forward": 3.0}})
"""Three milliseconds of every step, all forward."""
OTHER = Machine("Other CPU", "cpu", {"fp32": 50e9, "fp64": 25e9}, 20e9)


def record(case=CASE, seconds=2.0, low=1.9, high=2.2, machine=CPU.name):
    return StepMeasurement(case, machine, seconds, low, high)


def elsewhere(fit=FIT):
    return replace(fit, machine=OTHER, name="other's")


def test_of_several_runs_of_one_step_the_steadiest_for_its_length_is_taken():
    runs = [
        record(seconds=2.0, low=1.0, high=3.0),
        record(seconds=10.0, low=9.0, high=12.0),
        record(seconds=1.0, low=0.8, high=1.2),
    ]
    found = predict_from_best_source(CASE, CPU, runs)
    assert (found.seconds, found.low, found.high) == (10.0, 9.0, 12.0)
    assert found.source == "median of the steps measured on Test CPU"
    assert (found.why_not, found.outside, found.drivers) == ((), (), {})
    assert found.floor == compute_step_floor_seconds(CASE, CPU)


def test_an_interval_holds_the_time_itself_and_only_phases_that_were_measured_are_said():
    odd = replace(record(seconds=2.0, low=2.5, high=1.5), forward=0.5, optimizer=0.0)
    found = predict_from_best_source(CASE, CPU, [odd])
    assert (found.low, found.seconds, found.high) == (2.0, 2.0, 2.0)
    assert found.phases == {"forward": 0.5, "optimizer": 0.0}


def test_a_measured_steps_shares_are_those_of_the_fit_where_there_is_one():
    assert [
        share.layer for share in predict_from_best_source(CASE, CPU, [record()], [FIT]).shares
    ] == ["(step)"]
    assert {share.layer for share in predict_from_best_source(CASE, CPU, [record()]).shares} == {
        "c",
        "(optimizer)",
    }


def test_batches_that_were_measured_are_named_once_each_from_the_smallest():
    runs = [record(replace(CASE, batch=batch)) for batch in (16, 4, 16)]
    assert (
        predict_from_best_source(CASE, CPU, runs).why_not[0]
        == "measured: m ran on Test CPU at batch 4, 16, not at 2"
    )


def test_inference_has_no_optimizer_that_could_differ():
    assert (
        predict_from_best_source(INFERENCE, CPU, [record(replace(INFERENCE, optimizer="adam"))]).way
        == "measured"
    )
    said = predict_from_best_source(INFERENCE, CPU, [record()]).why_not[0]
    assert said == "measured: m ran on Test CPU, but not inference in fp32"
    said = predict_from_best_source(CASE, CPU, [record(INFERENCE)]).why_not[0]
    assert said == "measured: m ran on Test CPU, but not training in fp32 with momentum"


@pytest.mark.parametrize("run", [record(machine="Other CPU"), record(replace(CASE, model="n"))])
def test_a_run_elsewhere_or_of_another_model_is_none_of_this_model_here(run):
    assert (
        predict_from_best_source(CASE, CPU, [run]).why_not[0] == "measured: no run of m on Test CPU"
    )


TRAINING, INFERRING = (f"{mode} in fp32 on Test CPU" for mode in ("training", "inference"))
OTHERS = "(other precisions or modes only)"


@pytest.mark.parametrize(
    ("case", "fit", "fitted"),
    [
        (CASE, replace(FIT, precision="bf16"), f"{TRAINING} {OTHERS}"),
        (CASE, replace(FIT, training=False), f"{TRAINING} {OTHERS}"),
        (INFERENCE, FIT, f"{INFERRING} {OTHERS}"),
        (CASE, elsewhere(), TRAINING),
        (INFERENCE, replace(elsewhere(), training=False), INFERRING),
    ],
)
def test_a_fit_of_another_precision_direction_or_device_is_not_taken(case, fit, fitted):
    found = predict_from_best_source(case, CPU, (), [fit])
    assert found.way == "roofline"
    assert found.why_not == (
        "measured: no run of m on Test CPU",
        f"fitted: no benchmark runs of {fitted}",
    )


def test_of_fits_that_know_the_family_the_one_of_more_rows_is_taken_and_one_of_this_device_before_any():
    more = replace(FIT, name="more", fitted=replace(FIT.fitted, rows=31))
    unknown = replace(FIT, name="unknown", families=("g",), fitted=replace(FIT.fitted, rows=9999))
    far = replace(elsewhere(), fitted=replace(FIT.fitted, rows=9999))
    assert predict_from_best_source(CASE, CPU, (), [FIT, unknown, more, far]).source == "more"
    assert predict_from_best_source(CASE, CPU, (), [FIT, far]).way == "fitted"


def test_a_fitted_step_has_its_coverage_phases_and_floor():
    found = predict_from_best_source(CASE, CPU, (), [FIT])
    assert (found.seconds, found.low, found.high) == pytest.approx(
        (3e-3, 3e-3 / math.exp(0.1), 3e-3 * math.exp(0.1))
    )
    assert (found.coverage, found.source, found.outside) == (0.9, "made up", ())
    assert found.why_not == ("measured: no run of m on Test CPU",)
    assert found.phases == {"forward": found.seconds}
    assert found.floor == compute_step_floor_seconds(CASE, CPU)
    assert len(found.drivers) == len(FEATURES)
    assert found.samples_per_second == pytest.approx(2 / 3e-3)


def test_what_lies_beyond_the_fit_is_said_by_feature_family_and_optimizer():
    high = tuple(1.0 if name == "batch" else 1e30 for name in FEATURES)
    narrow = replace(
        FIT, fitted=replace(FIT.fitted, high=high), families=("g", "h"), optimizers=("adam", "sgd")
    )
    assert predict_from_best_source(CASE, CPU, (), [narrow]).outside == (
        "batch is outside the measured range",
        "no f was measured (g, h)",
        "momentum was not measured (adam, sgd)",
    )
    still = replace(narrow, training=False)
    nameless = replace(INFERENCE, family="", batch=1)
    assert predict_from_best_source(nameless, CPU, (), [still]).outside == (
        "no network of this family was measured (g, h)",
    )


def test_the_roofline_of_a_machine_that_starts_operations_for_nothing():
    free = replace(CPU, launch_seconds=0.0)
    found = predict_from_best_source(CASE, free)
    floor = compute_step_floor_seconds(CASE, free)
    assert (found.low, found.seconds, found.high) == pytest.approx(
        (1.1 * floor, 1.5 * floor, 2.2 * floor)
    )
    assert found.source.startswith(
        "peaks of Test CPU only; measured steps of whole networks took 1.1 to 2.2 times"
    )
    # Two operations at a millisecond each are more than the floor, and three times as long is
    # the most.
    slower = predict_from_best_source(
        case_of(CONV, CONV._replace(macs=1.0), training=False), replace(CPU, launch_seconds=1e-3)
    )
    assert (slower.seconds, slower.high) == pytest.approx((2e-3, 6e-3))


def test_a_batch_below_one_and_a_case_of_nothing_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^m: batch size must be at least 1, got 0$"):
        predict_from_best_source(replace(CASE, batch=0), CPU)
    with pytest.raises(ValueError, match=r"^m: no known operation, so perfctl cannot predict it$"):
        predict_from_best_source(case_of(), CPU)
    assert predict_from_best_source(replace(CASE, batch=1), CPU).samples_per_second > 0
