"""Energy from readings of power: integrals worked out by hand, the steps' share of them, and why
there is none."""

import pytest

from perfctl.orchestrator.compare.quantities import compare_quantities, observe_all_quantities
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.usage.energy import (
    COUNTER,
    POWER,
    compute_energy_per_gpu,
    explain_missing_energy,
    integrate_power_to_joules,
)
from perfctl.orchestrator.outputs import build_output_schema, convert_to_json
from perfctl.orchestrator.report.ledger.rows import list_energy_rows
from perfctl.orchestrator.report.page.usage import build_energy_table
from perfctl.records.report import Device, Gap, Sample, Step
from perfctl.records.serving import PART_FROM_SHAPES, ServedStep
from tests.make.synthetic import cpu_run, foreign_run, make_run, with_report
from tests.make.tables import table

MS = 1_000_000
GPU = Device("a GPU", "gpu")


def watched(watts, *, steps=20, each=50, every=50, counter=False, **more):
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
    return make_run(device=GPU, samples=samples, steps=marked, **more)


def only(run):
    (found,) = compute_energy_per_gpu(run)
    return found


def test_constant_power_over_the_steps():
    found = only(watched(lambda _: 200.0))
    assert found.joules == pytest.approx(200 * 1.0), "20 steps of 50 ms"
    assert (found.source, found.error, found.period_ns) == (POWER, 0, 50 * MS)
    assert found.per_step == pytest.approx(200 * 0.05)
    assert found.per_sample == pytest.approx(200 * 0.05 / 64), "a batch of 64"
    assert found.delay_product == pytest.approx(200 * 0.05 * 0.05)
    assert found.watts == pytest.approx(200)
    assert found.split_step_joules_by_layer_time(
        {"conv1": 10.0 * MS, "fc": 30.0 * MS}
    ) == pytest.approx({"conv1": 200 * 0.01, "fc": 200 * 0.03})


def test_a_ramp_is_integrated_by_trapezoids_between_readings_that_miss_the_steps_ends():
    found = only(watched(lambda at: 100 + 0.1 * at, every=70))  # 200 W at 1 s, 300 W at 2 s
    assert found.joules == pytest.approx((200 + 300) / 2 * 1.0)
    # W, between the readings up to a period beyond the ends: 980 and 2030 ms
    spread = 0.1 * (2030 - 980)
    assert found.error == pytest.approx(2 * (0.070 + 0.1) * spread / 250)


def test_an_integral_of_uneven_readings():
    points = [(0, 100.0), (1_000 * MS, 300.0), (3_000 * MS, 100.0)]
    assert integrate_power_to_joules(points, (0, 3_000 * MS)) == pytest.approx(200 * 1 + 200 * 2)
    assert integrate_power_to_joules(points, (500 * MS, 2_000 * MS)) == pytest.approx(
        (200 + 300) / 2 * 0.5 + (300 + 200) / 2 * 1
    )


def test_the_drivers_counter_goes_before_power():
    found = only(watched(lambda at: 5000 + 0.25 * at, counter=True))  # 250 W
    assert found.source == COUNTER and found.joules == pytest.approx(250 * 1.0)
    assert found.error == pytest.approx(2 * 0.05 / 1.0), "a period at each end"


STEADY = watched(lambda _: 200.0)
NUMBERS = Gap(
    "sample.at_ns",
    "not_available",
    "no timestamps: the value is the number of the sample, not a time",
)


def without_samples(low_ms, high_ms):
    kept = [one for one in STEADY.report.samples if not low_ms * MS < one.at_ns < high_ms * MS]
    return with_report(STEADY, samples=kept)


@table(
    "run reason",
    {
        "a counter that was reset": (
            watched(lambda at: 5000.0 - at, counter=True),
            "the run has fewer than two power samples",
        ),
        "a sensor that reads nothing but zero": (watched(lambda _: 0.0), "0 W"),
        "steps shorter than four of the sensor's windows": (
            watched(lambda _: 200.0, steps=3, each=100),
            "300 ms in total, less than 4 times 100 ms",
        ),
        "readings further apart than a fourth of the steps": (
            watched(lambda _: 200.0, every=300),
            "the power samples are 300 ms apart",
        ),
        "readings that end early": (without_samples(850, 9999), "do not cover"),
        "a pause": (without_samples(1200, 1800), "there is no power sample for 600 ms"),
        "numbers of readings are no times": (
            foreign_run(1, samples=STEADY.report.samples, kernels=[], gaps=(NUMBERS,)),
            "without times",
        ),
    },
)
def test_what_gives_no_energy_says_why(run, reason):
    found = only(run)
    assert (found.joules, found.per_step) == (None, None)
    assert reason in (found.reason or "")


def test_steps_as_long_as_four_readings_are_enough():
    assert only(watched(lambda _: 200.0, steps=4, each=100)).joules == pytest.approx(200 * 0.4)


def test_a_log_without_steps_has_energy_and_none_for_a_step():
    found = only(foreign_run(1, samples=STEADY.report.samples, kernels=[]))
    assert found.joules == pytest.approx(200 * 2.45), "from the first sample to the last, at 2.45 s"
    assert (found.per_step, found.step_reason) == (None, "the run has no step marks")


def test_times_in_whole_seconds_make_the_span_unsure_by_one():
    samples = watched(lambda _: 100.0, steps=400, every=1000).report.samples
    found = only(foreign_run(1, samples=samples, kernels=[]))
    assert found.error == pytest.approx(1 / 21), "readings from 0 to 21 s"


def decoding(name="s", **tokens):
    return [ServedStep(number, name, "decode", **tokens) for number in range(20)]


@table(
    "served per_token",
    {
        "32 each": (decoding(prompt_tokens=0, decode_tokens=32), 200 / (20 * 32)),
        "no step states them": (decoding(), None),
        "the trace shows a part of each step": (
            decoding(f"{PART_FROM_SHAPES}8 rows", prompt_tokens=0, decode_tokens=8),
            None,
        ),
    },
)
def test_tokens_of_a_servers_steps(served, per_token):
    found = only(watched(lambda _: 200.0, served_steps=served))
    assert found.per_token == (per_token and pytest.approx(per_token))
    assert bool(found.token_reason) is (per_token is None)


def test_without_readings_of_power_there_is_none_and_a_reason():
    assert (
        compute_energy_per_gpu(watched(None)) == () and compute_energy_per_gpu(cpu_run(1, 16)) == ()
    )
    assert explain_missing_energy(make_run()) == "the run used a CPU, so there is no GPU power"
    gap = Gap("sample.power_w", "not_available", "Not Supported")
    assert explain_missing_energy(make_run(gaps=(gap,))) == "Not Supported"


def test_of_several_gpus_only_the_runs_own_counts():
    samples = STEADY.report.samples
    other = [sample._replace(device_index=1, power_w=50.0) for sample in samples]
    both = with_report(STEADY, samples=[*samples, *other])
    assert [(item.device, item.joules) for item in compute_energy_per_gpu(both)] == [
        (0, pytest.approx(200))
    ]


def test_a_comparison_has_joules_and_their_product_with_time_and_does_not_judge_them():
    sides = (
        [observe_all_quantities(PreparedRun(watched(lambda _, watts=watts: watts)))]
        for watts in (200.0, 150.0)
    )
    found = {row.key.quantity: row for row in compare_quantities(*sides)}
    joules, product = found["energy"], found["energy-delay product"]
    assert joules.before is not None and joules.after is not None and product.after is not None
    assert (joules.before.median, joules.after.median) == pytest.approx((200 * 0.05, 150 * 0.05))
    assert product.after.median == pytest.approx(150 * 0.05 * 0.05)
    assert joules.change == product.change == pytest.approx(150 / 200 - 1)
    assert joules.result == "not judged" and "sampling error" in joules.reason


def test_the_table_says_where_the_joules_come_from_and_how_unsure_sampling_makes_them():
    made = build_energy_table([PreparedRun(watched(lambda at: 200.0 + at % 100)).usage])
    assert made is not None
    cells = dict(zip((column.label for column in made.columns), made.rows[0], strict=True))
    assert cells["from"].text == "power readings, every 50 ms"
    assert cells["mean power"].unit == "W" and cells["error"].style != "no"
    assert "per token" not in cells, "the steps are no server's"
    assert {"per step", "per sample", "energy-delay"} <= cells.keys()


def test_json_says_joules_by_layer_and_why_there_are_none():
    (row,) = convert_to_json(list_energy_rows(PreparedRun(watched(lambda _: 200.0))))
    assert (
        row["joules_per_step"] == pytest.approx(10)
        and row["token_reason"]
        and row["reason"] is None
    )
    (none,) = convert_to_json(list_energy_rows(PreparedRun(cpu_run(1, 16))))
    assert (
        none["joules"] is None and none["reason"] == "the run used a CPU, so there is no GPU power"
    )
    assert (
        none.keys()
        == row.keys()
        == build_output_schema("show")["properties"]["energy"]["items"]["properties"].keys()
    )
