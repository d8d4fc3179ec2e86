"""The parts of one study side by side, and times of the host's clock: what is drawn, and what is
left out."""

from dataclasses import replace

from perfctl.orchestrator.ledger.analysis import analyse_studies
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.parts import (
    build_cpu_time_vs_peak_minimum_table,
    build_device_by_study_table,
    build_variant_comparison_table,
)
from perfctl.records.report import Device, Step, Summary
from tests.make import synthetic

MIB = 1 << 20
BATCH = 64
V100 = Device("Tesla V100", "gpu", memory_bytes=16_384 * MIB)
SECOND = 3
"""The second variant has this many times the work of the first in every layer."""


def analysed(*changes):
    calls = synthetic.layer_calls(BATCH)
    runs = [
        synthetic.make_run(number, **{"layer_calls": calls, **each})
        for number, each in enumerate(changes, 1)
    ]
    return analyse_studies(group_into_studies(runs))


def second():
    calls = (
        call._replace(macs=SECOND * call.macs, parameters=call.parameters + 1)
        for call in synthetic.layer_calls(BATCH)
    )
    return {"variant": "k=5", "layer_calls": tuple(calls)}


def lines(table):
    """First cell of each row -> texts of the others, without padding."""
    assert table is not None
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_variants_have_a_column_each_and_the_parts_of_one_sweep_one_table():
    test = {
        "steps": (Step(0, "test", None, None, None, 0.9), Step(1, "test", None, None, None, 0.95))
    }
    first, other = analysed({"device": V100, **test}, {"device": V100, **second()})
    shown = lines(build_variant_comparison_table(first))
    parameters = synthetic.PARAMETERS
    assert shown["conv2 parameters"] == [f"{parameters['conv2'] + more:,}" for more in (0, 1)]
    assert shown["all parameters"] == [
        f"{sum(parameters.values()) + more:,}" for more in (0, len(parameters))
    ]
    macs = synthetic.macs("conv2", BATCH)
    assert shown["conv2 forward, MAC"] == [f"{n * macs:,}" for n in (1, SECOND)]
    assert shown["last accuracy"] == ["95.00%", "–"]
    assert build_variant_comparison_table(other) is None  # stands with the first of them
    assert build_device_by_study_table(first.parts) is None  # both ran on one device


def test_times_that_a_verdict_rules_out_have_no_ratio():
    def timed(nanoseconds):
        return {
            "device": V100,
            "summaries": (Summary("host_time:conv2:forward", nanoseconds, "ns"),),
        }

    slow, *_ = analysed(timed(100_000), {**second(), **timed(80_000)})
    assert lines(build_variant_comparison_table(slow))["time / time of the first variant"] == [
        "1.00",
        "refused",
    ]
    fair, *_ = analysed(timed(100_000), {**second(), **timed(250_000)})
    assert lines(build_variant_comparison_table(fair))["time / time of the first variant"] == [
        "1.00",
        "2.50",
    ]


def test_one_variant_other_layers_and_other_batch_sizes_are_not_set_side_by_side():
    (alone,) = analysed({"device": V100})
    assert build_variant_comparison_table(alone) is None
    renamed = tuple(call._replace(layer=f"x{call.layer}") for call in synthetic.layer_calls(BATCH))
    for change in ({"layer_calls": renamed}, {"batch_size": 2 * BATCH}, {"layer_calls": ()}):
        first, *_ = analysed({"device": V100}, {"device": V100, "variant": "k=5", **change})
        assert build_variant_comparison_table(first) is None


def test_a_time_shorter_than_the_peak_allows_is_marked():
    """No kernel of a V100 SXM2 multiplies faster than 80 x 64 units x 2 FLOP x 1,530 MHz."""
    macs = synthetic.macs("conv2", BATCH)
    least = 2 * macs / (80 * 64 * 2 * 1530e6) * 1e9
    summaries = (
        Summary("host_time:conv2:forward", least / 2, "ns"),
        Summary("host_time:fc1:forward", 1e6, "ns"),
    )
    (found,) = analysed({"device": V100, "summaries": summaries})
    table = build_cpu_time_vs_peak_minimum_table(found)
    assert table is not None
    places = {column.label: at for at, column in enumerate(table.columns)}
    ratios = [row[places["time / minimum"]] for row in table.rows]
    assert [(cell.text, cell.style) for cell in ratios[:1]] == [("0.50", "bad")] and ratios[
        1
    ].style == ""
    assert (
        table.rows[0][places["minimum"]].value == round(least, 1)
        or abs(least - table.rows[0][places["minimum"]].value) < 1
    )  # type: ignore[operator]
    assert any("assumed to be a V100 SXM2" in note for note in table.notes)


def test_a_gpu_without_a_name_has_no_least_time_and_a_study_without_such_times_no_table():
    nameless = replace(V100, name=None)
    summaries = (Summary("host_time:conv2:forward", 1000, "ns"),)
    (found,) = analysed({"device": nameless, "summaries": summaries})
    table = build_cpu_time_vs_peak_minimum_table(found)
    assert table is not None and "least" not in {column.label for column in table.columns}
    (without,) = analysed({"device": V100})
    assert build_cpu_time_vs_peak_minimum_table(without) is None
