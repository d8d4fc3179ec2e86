"""From a step to a training, and whether it fits: by hand."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.hardware.machines import meant
from perfctl.orchestrator.estimate.memory import MemoryLine
from perfctl.orchestrator.predict.cost import Job, Span, room_of, training
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.report.predict import fit_words

STEP = Span(0.1, 0.08, 0.15)


def test_without_a_size_of_the_data_there_is_a_step_and_nothing_that_is_made_up() -> None:
    found = training(STEP, Job(32))
    assert (found.epoch, found.total, found.steps, found.energy, found.rentals) == (
        None,
        None,
        None,
        None,
        (),
    )
    assert found.samples_per_second == Span(320.0, 32 / 0.15, 400.0)


def test_epochs_multiply_every_edge_of_the_range() -> None:
    found = training(STEP, Job(32, samples=100, epochs=5), power=(200.0, "said"), tariff=0.5)
    assert found.steps == 4
    assert found.total is not None
    assert (found.total.value, found.total.low, found.total.high) == pytest.approx((2.0, 1.6, 3.0))
    assert found.energy is not None
    assert found.energy.kwh.high == pytest.approx(200 * 3.0 / 3.6e6)


def test_several_gpus_share_the_data_and_wait_for_their_gradients() -> None:
    found = training(
        STEP, Job(32, samples=1000, gpus=4, parameters=10**7, link_gbs=10.0), backward=0.05
    )
    assert found.steps == 8  # 1000 / 128
    assert found.step.value == pytest.approx(0.1 + 2 * 3 / 4 * 4e7 / 10e9)
    assert found.alone == STEP
    with pytest.raises(ValueError, match="the bandwidth between the GPUs"):
        training(STEP, Job(32, gpus=4, parameters=10**7))


def test_memory_is_a_line_in_batch_and_the_largest_batch_is_where_it_meets_the_limit() -> None:
    lines = (MemoryLine(1000, 10), MemoryLine(400, 30))
    assert room_of(lines, 10, 1500).needed == 1100  # 1000 + 10 x 10 above 400 + 30 x 10
    assert room_of(lines, 40, 1700).needed == 1600
    room = room_of(lines, 50, 1600)
    assert (room.fits, room.lacking, room.largest) == (False, 300.0, 40)
    assert room_of(lines, 10, 900).largest == 0


def test_what_stays_free_is_no_room_for_tensors() -> None:
    lines = (MemoryLine(400, 30),)
    room = room_of(lines, 40, 1700, reserve=100)
    assert (room.needed, room.total, room.fits, room.lacking, room.largest) == (
        1600,
        1700,
        True,
        0.0,
        40,
    )
    more = room_of(lines, 41, 1700, reserve=100)
    assert (more.needed, more.total, more.fits, more.lacking, more.largest) == (
        1630,
        1730,
        False,
        30.0,
        40,
    )
    assert room_of(lines, 1, 1700, reserve=1300).largest == 0


def test_a_device_whose_memory_is_not_known_neither_fits_nor_does_not() -> None:
    room = room_of((MemoryLine(1000, 10),), 10, None)
    assert (room.fits, room.largest, room.lacking) == (None, None, 0.0)


def test_memory_that_is_just_enough_fits_and_is_close_from_nine_tenths_of_the_limit_on() -> None:
    rooms = {
        needed: room_of((MemoryLine(0, 1),), needed, 1000.0, reserve=100)
        for needed in (800, 801, 900, 901)
    }
    assert {needed: (room.fits, room.lacking) for needed, room in rooms.items()} == {
        800: (True, 0.0),
        801: (True, 0.0),
        900: (True, 0.0),
        901: (False, 1.0),
    }
    assert [fit_words(room.total, 1000.0, room.fits) for room in rooms.values()] == [
        "fits",
        "fits, but little is left",
        "fits, but little is left",
        "does not fit: 1.00 B are missing",
    ]


def test_rates_count_the_samples_of_all_gpus() -> None:
    found = training(STEP, Job(32, gpus=4, parameters=10**6, efficiency=0.5))
    assert found.step == Span(0.2, 0.16, 0.3)
    assert found.samples_per_second == Span(128 / 0.2, 128 / 0.3, 128 / 0.16)
    assert found.parallel is not None and found.parallel.efficiency == 0.5
    assert training(STEP, Job(32, gpus=1)).parallel is None


def test_what_is_billed_is_the_whole_training_and_without_epochs_one_of_them() -> None:
    price = Price("P", "box", "T4", meant("T4"), 2, 3.6, None, "", "2026-11", "me")
    epoch = training(Span(36.0, 36.0, 36.0), Job(10, samples=1000), prices=[price])
    assert (epoch.steps, epoch.billed, epoch.total) == (100, Span(3600.0, 3600.0, 3600.0), None)
    assert [(one.on_demand, one.idle_gpus) for one in epoch.rentals] == [(Span(3.6, 3.6, 3.6), 1)]
    whole = training(
        Span(36.0, 36.0, 36.0),
        Job(10, samples=1000, epochs=3),
        prices=[price],
        power=(1000.0, "said"),
    )
    assert whole.billed == whole.total == Span(10800.0, 10800.0, 10800.0)
    assert whole.energy is not None and (whole.energy.kwh.value, whole.energy.cost) == (3.0, None)
    unknown = training(STEP, Job(10), prices=[price], power=(1000.0, "said"), tariff=0.3)
    assert (unknown.billed, unknown.rentals, unknown.energy) == (None, (), None)
