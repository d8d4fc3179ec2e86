"""From a step to a training, and whether it fits: by hand."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.memory_lines import Line
from perfctl.orchestrator.analyse.training import Job, room_of, training

STEP = Span(0.1, 0.08, 0.15)


def test_without_a_size_of_the_data_there_is_a_step_and_nothing_that_is_made_up() -> None:
    found = training(STEP, Job(32))
    assert (found.epoch, found.whole, found.steps, found.energy, found.rentals) == (None, None, None, None, ())
    assert found.samples_per_second == Span(320.0, 32 / 0.15, 400.0)


def test_epochs_multiply_every_edge_of_the_range() -> None:
    found = training(STEP, Job(32, samples=100, epochs=5), power=(200.0, "said"), tariff=0.5)
    assert found.steps == 4
    assert found.whole is not None
    assert (found.whole.value, found.whole.low, found.whole.high) == pytest.approx((2.0, 1.6, 3.0))
    assert found.energy is not None
    assert found.energy.kwh.high == pytest.approx(200 * 3.0 / 3.6e6)


def test_several_gpus_share_the_data_and_wait_for_their_gradients() -> None:
    found = training(STEP, Job(32, samples=1000, gpus=4, parameters=10**7, link_gbs=10.0), backward=0.05)
    assert found.steps == 8  # 1000 / 128
    assert found.step.value == pytest.approx(0.1 + 2 * 3 / 4 * 4e7 / 10e9)
    assert found.alone == STEP
    with pytest.raises(ValueError, match="how fast the GPUs reach each other"):
        training(STEP, Job(32, gpus=4, parameters=10**7))


def test_memory_is_a_line_in_batch_and_the_largest_batch_is_where_it_meets_the_limit() -> None:
    lines = (Line(1000, 10), Line(400, 30))
    assert room_of(lines, 10, 1500).needed == 1100  # 1000 + 10 x 10 above 400 + 30 x 10
    assert room_of(lines, 40, 1700).needed == 1600
    room = room_of(lines, 50, 1600)
    assert (room.fits, room.lacking, room.largest) == (False, 300.0, 40)
    assert room_of(lines, 40, 1600).close
    assert not room_of(lines, 40, 3000).close
    assert room_of(lines, 10, 900).largest == 0


def test_a_device_whose_memory_is_not_known_neither_fits_nor_does_not() -> None:
    room = room_of((Line(1000, 10),), 10, None)
    assert (room.fits, room.largest, room.close, room.lacking) == (None, None, False, 0.0)
