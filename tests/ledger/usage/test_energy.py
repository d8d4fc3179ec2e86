"""Energy from readings of power: integrals worked out by hand, the steps' share of them, and why
there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfctl.orchestrator.compare.compare import Side, compare
from perfctl.orchestrator.compare.compared import compare_quantities
from perfctl.orchestrator.compare.quantities import observe
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.usage.energy import (
    COUNTER,
    POWER,
    Energy,
    energy,
    integral,
    why_none,
)
from perfctl.orchestrator.outputs import schema_of, to_json
from perfctl.orchestrator.report.ledger.rows import energy_rows
from perfctl.orchestrator.report.page.usage import energy_table
from perfctl.records.report import Device, Gap, Sample, Step
from perfctl.records.run import Run
from perfctl.records.serving import PART_FROM_SHAPES, ServedStep
from tests.make import synthetic

MS = 1_000_000
GPU = Device("a GPU", "gpu")


def watched(
    watts: Callable[[int], float] | None,
    *,
    steps: int = 20,
    each: int = 50,
    every: int = 50,
    counter: bool = False,
    **more: Any,
) -> Run:
    """Steps of ``each`` ms from 1 s on; power is read every ``every`` ms from 0 to the end
    and beyond."""
    end = 1000 + steps * each
    samples = [
        Sample(
            at * MS,
            0.5,
            None,
            None,
            watts(at) if watts and not counter else None,
            None,
            None,
            0,
            energy_j=watts(at) if watts and counter else None,
        )
        for at in range(0, end + 500, every)
    ]
    marked = tuple(
        Step(number, "step", (1000 + number * each) * MS, each * MS) for number in range(steps)
    )
    return synthetic.make_run(device=GPU, samples=samples, steps=marked, **more)


def only(run: Run) -> Energy:
    (found,) = energy(run)
    return found


def test_constant_power_over_the_steps() -> None:
    found = only(watched(lambda _: 200.0))
    assert found.joules == pytest.approx(200 * 1.0), "20 steps of 50 ms"
    assert found.source == POWER and found.error == 0 and found.period_ns == 50 * MS
    assert found.per_step == pytest.approx(200 * 0.05)
    assert found.per_sample == pytest.approx(200 * 0.05 / 64), "a batch of 64"
    assert found.delay_product == pytest.approx(200 * 0.05 * 0.05)
    assert found.watts == pytest.approx(200)


def test_a_ramp_is_integrated_by_trapezoids_between_readings_that_miss_the_steps_ends() -> None:
    found = only(watched(lambda at: 100 + 0.1 * at, every=70))  # 200 W at 1 s, 300 W at 2 s
    assert found.joules == pytest.approx((200 + 300) / 2 * 1.0)
    # W, between the readings up to a period beyond the ends: 980 and 2030 ms
    spread = 0.1 * (2030 - 980)
    assert found.error == pytest.approx(2 * (0.070 + 0.1) * spread / 250)


def test_an_integral_of_uneven_readings() -> None:
    points = [(0, 100.0), (1_000 * MS, 300.0), (3_000 * MS, 100.0)]
    assert integral(points, (0, 3_000 * MS)) == pytest.approx(200 * 1 + 200 * 2)
    assert integral(points, (500 * MS, 2_000 * MS)) == pytest.approx(
        (200 + 300) / 2 * 0.5 + (300 + 200) / 2 * 1
    )


def test_the_drivers_counter_goes_before_power() -> None:
    found = only(watched(lambda at: 5000 + 0.25 * at, counter=True))  # 250 W
    assert found.source == COUNTER and found.joules == pytest.approx(250 * 1.0)
    assert found.error == pytest.approx(2 * 0.05 / 1.0), "a period at each end"


def test_a_counter_that_was_reset_gives_no_energy() -> None:
    found = only(watched(lambda at: 5000.0 - at, counter=True))
    assert found.joules is None and found.reason == "the run has fewer than two power samples"


def test_a_sensor_that_reads_nothing_but_zero_is_broken() -> None:
    found = only(watched(lambda _: 0.0))
    assert found.joules is None and "0 W" in (found.reason or "")


def test_steps_shorter_than_a_few_readings_have_no_energy() -> None:
    found = only(watched(lambda _: 200.0, steps=3, each=100))
    assert (
        found.joules is None is found.per_step
        and "300 ms in total, less than 4 times 100 ms" in (found.reason or "")
    )
    assert only(watched(lambda _: 200.0, steps=4, each=100)).joules == pytest.approx(200 * 0.4)
    slow = only(watched(lambda _: 200.0, every=300))
    assert "the power samples are 300 ms apart" in (slow.reason or ""), (
        "1 s of steps is less than 4 times 300 ms"
    )


def test_readings_that_miss_the_steps_or_pause_give_no_energy() -> None:
    run = watched(lambda _: 200.0)
    early = [sample for sample in run.report.samples if sample.at_ns < 900 * MS]
    assert "do not cover" in (
        only(synthetic.make_run(device=GPU, samples=early, steps=run.report.steps)).reason or ""
    )
    paused = [sample for sample in run.report.samples if not 1200 * MS < sample.at_ns < 1800 * MS]
    assert "there is no power sample for 600 ms" in (
        only(synthetic.make_run(device=GPU, samples=paused, steps=run.report.steps)).reason or ""
    )


def test_a_log_without_steps_has_energy_and_none_for_a_step() -> None:
    run = synthetic.foreign_run(
        1, samples=list(watched(lambda _: 100.0).report.samples), kernels=[]
    )
    found = only(run)
    assert found.joules == pytest.approx(100 * 2.45), "from the first sample to the last, at 2.45 s"
    assert found.per_step is None and found.step_reason == "the run has no step marks"


def test_times_in_whole_seconds_make_the_span_unsure_by_one() -> None:
    found = only(
        synthetic.foreign_run(
            1,
            samples=list(watched(lambda _: 100.0, steps=400, every=1000).report.samples),
            kernels=[],
        )
    )
    assert found.error == pytest.approx(1 / 21), "readings from 0 to 21 s"


def test_numbers_of_readings_are_no_times() -> None:
    gap = Gap(
        "sample.at_ns",
        "not_available",
        "no timestamps: the value is the number of the sample, not a time",
    )
    run = synthetic.foreign_run(
        1, samples=list(watched(lambda _: 100.0).report.samples), kernels=[], gaps=(gap,)
    )
    assert only(run).joules is None and "without times" in (only(run).reason or "")


def test_tokens_of_a_servers_steps() -> None:
    served = [
        ServedStep(number, "s", "decode", prompt_tokens=0, decode_tokens=32) for number in range(20)
    ]
    found = only(watched(lambda _: 200.0, served_steps=served))
    assert found.per_token == pytest.approx(200 / (20 * 32))
    unknown = only(watched(lambda _: 200.0, served_steps=[ServedStep(0, "s", "decode")]))
    assert unknown.per_token is None and unknown.token_reason


def test_steps_of_which_the_trace_shows_a_part_have_no_joules_a_token() -> None:
    part = ServedStep(0, f"{PART_FROM_SHAPES}8 rows", "decode", prompt_tokens=0, decode_tokens=8)
    assert only(watched(lambda _: 200.0, served_steps=[part])).per_token is None


def test_layers_get_joules_by_their_time() -> None:
    found = only(watched(lambda _: 200.0))
    assert found.shared({"conv1": 10.0 * MS, "fc": 30.0 * MS}) == pytest.approx(
        {"conv1": 200 * 0.01, "fc": 200 * 0.03}
    )


def test_without_readings_of_power_there_is_none_and_a_reason() -> None:
    assert energy(watched(None)) == () and energy(synthetic.cpu_run(1, 16)) == ()
    assert why_none(synthetic.make_run()) == "the run used a CPU, so there is no GPU power"
    gap = Gap("sample.power_w", "not_available", "Not Supported")
    assert why_none(synthetic.make_run(gaps=(gap,))) == "Not Supported"


def test_of_several_gpus_only_the_runs_own_counts() -> None:
    run = watched(lambda _: 200.0)
    other = [sample._replace(device_index=1, power_w=50.0) for sample in run.report.samples]
    both = synthetic.make_run(
        device=GPU, samples=[*run.report.samples, *other], steps=run.report.steps
    )
    assert [(item.device, item.joules) for item in energy(both)] == [(0, pytest.approx(200))]


def test_a_comparison_has_joules_and_their_product_with_time_and_does_not_judge_them() -> None:
    sides = [
        observe(PreparedRun(watched(lambda _, watts=watts: watts))) for watts in (200.0, 150.0)
    ]
    found = {row.key.quantity: row for row in compare_quantities([sides[0]], [sides[1]])}
    joules, product = found["energy"], found["energy-delay product"]
    assert joules.before is not None and joules.after is not None and product.after is not None
    assert (joules.before.median, joules.after.median) == pytest.approx((200 * 0.05, 150 * 0.05))
    assert product.after.median == pytest.approx(
        150 * 0.05 * 0.05
    ) and joules.change == pytest.approx(-0.25)
    assert joules.result == "not judged" and "sampling error" in joules.reason


def test_compare_has_a_row_of_joules_and_one_of_their_product_with_time() -> None:
    sides = [
        Side(name, (watched(lambda _, watts=watts: watts),))
        for name, watts in (("a", 200.0), ("b", 150.0))
    ]
    (pair,) = compare(*sides).pairs
    changes = {row.key.quantity: row.change for row in pair.rows}
    assert changes["energy"] == changes["energy-delay product"] == pytest.approx(-0.25)


def test_the_table_says_where_the_joules_come_from_and_how_unsure_sampling_makes_them() -> None:
    made = energy_table([PreparedRun(watched(lambda at: 200.0 + at % 100)).usage])
    assert made is not None
    cells = dict(zip((column.label for column in made.columns), made.rows[0], strict=True))
    assert cells["from"].text == "power readings, every 50 ms"
    assert cells["error"].style != "no"
    assert "per token" not in cells, "the steps are no server's"
    assert {"per step", "per sample", "energy-delay"} <= cells.keys()


def test_json_says_joules_by_layer_and_why_there_are_none() -> None:
    (row,) = to_json(energy_rows(PreparedRun(watched(lambda _: 200.0))))
    assert (
        row["joules_per_step"] == pytest.approx(10)
        and row["token_reason"]
        and row["reason"] is None
    )
    (none,) = to_json(energy_rows(PreparedRun(synthetic.cpu_run(1, 16))))
    assert (
        none["joules"] is None and none["reason"] == "the run used a CPU, so there is no GPU power"
    )
    assert (
        none.keys()
        == row.keys()
        == schema_of("show")["properties"]["energy"]["items"]["properties"].keys()
    )
