"""What a step model is learned from: rows of layers and phases with their weights, and the classes
of parts; no fit."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.predict.fit import build_layer_fit_rows, build_phase_fit_rows
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.step_parts import PARTS, sum_step_part_seconds
from tests.make.steps import CPU, network
from tests.make.works import by_part

CASE = network(8, 2, 4)
BARE = StepMeasurement(CASE, CPU.name, 8.0, 7.0, 9.0)
RECORD = StepMeasurement(CASE, CPU.name, 8.0, 7.0, 9.0, forward=2.0, backward=4.5, optimizer=10.0)


def test_a_phase_weighs_as_the_root_of_its_share_of_the_step_and_half_at_most():
    rows = build_phase_fit_rows(RECORD, CPU)
    assert [(clocks, seconds) for _, clocks, seconds, _ in rows] == [
        (0.0, 2.0),
        (0.0, 4.5),
        (0.0, 10.0),
    ]
    assert [weight for *_, weight in rows] == pytest.approx([0.5 * 0.5, 0.5 * 0.75, 0.5])
    whole = sum_step_part_seconds(CASE, CPU)
    for phase, (row, *_) in zip(("forward", "backward", "optimizer"), rows, strict=True):
        wanted = [
            part if name.endswith(phase) and name != "step forward" else 0.0
            for name, part in zip(PARTS, whole, strict=True)
        ]
        assert row == wanted


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"backward": None}, 2),
        ({"optimizer": 0.0}, 2),
        ({"case": replace(CASE, training=False)}, 0),
    ],
)
def test_phases_that_were_not_measured_and_those_of_inference_have_no_rows(changes, count):
    assert len(build_phase_fit_rows(replace(RECORD, **changes), CPU)) == count


def test_layers_of_a_kind_and_direction_are_one_row_with_a_clock_for_each():
    times = {
        ("conv0", "forward"): 1.0,
        ("conv1", "forward"): 2.0,
        ("act0", "forward"): 1.0,
        ("fc", "backward"): 0.0,
    }
    rows = build_layer_fit_rows(replace(BARE, layer_seconds=times), CPU)
    assert [(clocks, seconds) for _, clocks, seconds, _ in rows] == [(2e-6, 3.0), (1e-6, 1.0)]
    assert [weight for *_, weight in rows] == pytest.approx(
        [0.5 * (3 / 4) ** 0.5, 0.5 * (1 / 4) ** 0.5]
    )
    conv, act = (by_part(row) for row, *_ in rows)
    whole, conv_name, act_name = (
        by_part(sum_step_part_seconds(CASE, CPU)),
        "conv forward",
        "activation bytes forward",
    )
    assert conv[conv_name] == pytest.approx(whole[conv_name])
    assert conv["operations forward"] == pytest.approx(2e-6)
    assert (conv["conv backward"], conv[act_name]) == (0.0, 0.0)
    assert act[act_name] == pytest.approx(whole[act_name] / 2)
    assert (
        len(build_layer_fit_rows(replace(RECORD, layer_seconds=times), CPU)) == 3 + 2
    )  # phases first


def test_layers_without_a_name_have_no_row_and_both_directions_of_a_kind_have_one_each():
    nameless = replace(CASE, works=tuple(work._replace(layer="") for work in CASE.works))
    assert (
        build_layer_fit_rows(
            replace(BARE, case=nameless, layer_seconds={("", "forward"): 1.0}), CPU
        )
        == []
    )
    times = {("conv0", "forward"): 1.0, ("conv0", "backward"): 3.0}
    forward, backward = build_layer_fit_rows(replace(BARE, layer_seconds=times), CPU)
    assert forward[1:] == (1e-6, 1.0, 0.25)
    assert backward[1:] == (1e-6, 3.0, pytest.approx(0.5 * 0.75**0.5))
    ahead, back = by_part(forward[0]), by_part(backward[0])
    assert ahead["conv forward"] == back["conv backward"] > 0  # first: one product backward
    assert (ahead["conv backward"], back["conv forward"]) == (0.0, 0.0)
