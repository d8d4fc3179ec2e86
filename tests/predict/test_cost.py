"""Hours times price, energy times tariff, gradients over links: by hand."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.hardware.machines import find_boards
from perfctl.orchestrator.estimate.memory import MemoryLine
from perfctl.orchestrator.predict.cost import (
    OfferChoice,
    Span,
    TrainingJob,
    compute_allreduce_bytes_per_gpu,
    compute_energy_use_and_cost,
    compute_rental_cost,
    compute_step_with_allreduce,
    compute_tensor_memory_need,
    compute_training_cost,
    count_epoch_steps,
    rank_rentals,
    select_time_cost_pareto,
)
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.report.predict import describe_memory_fit

HOURS = Span(2 * 3600.0, 1 * 3600.0, 4 * 3600.0)


def offer(count=1, on_demand=3.0, spot=None, provider="P"):
    return Price(
        provider, "box", "T4", find_boards("T4"), count, on_demand, spot, "", "2026-11", "me"
    )


def test_a_last_batch_that_is_not_full_is_a_step_too():
    assert count_epoch_steps(1000, 100) == 10
    assert count_epoch_steps(1001, 100) == 11
    assert count_epoch_steps(1001, 100, 4) == 3
    assert count_epoch_steps(1_281_167, 64) == 20_019


@pytest.mark.parametrize(
    ("in_instance", "gpus", "instances", "idle"), [(1, 1, 1, 0), (8, 3, 1, 5), (4, 6, 2, 2)]
)
def test_a_cost_is_hours_times_price_of_whole_instances_at_both_ends_of_the_interval(
    in_instance, gpus, instances, idle
):
    found = compute_rental_cost(offer(in_instance, on_demand=3.0, spot=1.0), gpus, HOURS)
    assert (found.instances, found.idle_gpus) == (instances, idle)
    assert found.on_demand == Span(6.0, 3.0, 12.0).scale(instances)
    assert found.spot == Span(2.0, 1.0, 4.0).scale(instances)


def test_a_price_that_is_not_known_gives_no_cost_and_stands_last():
    found = rank_rentals(
        [offer(on_demand=None, spot=0.1), offer(on_demand=5.0), offer(on_demand=2.0)], 1, HOURS
    )
    assert [one.price.on_demand for one in found] == [2.0, 5.0, None]
    assert found[-1].on_demand is None
    assert found[-1].spot == Span(0.2, 0.1, 0.4)


def test_energy_is_power_times_time_of_all_gpus_and_costs_what_the_tariff_says():
    found = compute_energy_use_and_cost(300.0, "measured", 4, HOURS, 0.30)
    assert found.kwh.value == pytest.approx(0.3 * 4 * 2)  # kW x GPUs x hours
    assert found.cost is not None
    assert found.cost.value == pytest.approx(0.3 * 4 * 2 * 0.30)
    assert found.cost.high == pytest.approx(0.3 * 4 * 4 * 0.30)
    assert compute_energy_use_and_cost(300.0, "measured", 4, HOURS).cost is None


def test_a_ring_moves_two_n_minus_one_nths_of_the_gradients():
    assert compute_allreduce_bytes_per_gpu(1_000_000, 1) == 0
    assert compute_allreduce_bytes_per_gpu(1_000_000, 2) == 4e6
    assert compute_allreduce_bytes_per_gpu(1_000_000, 8) == pytest.approx(2 * 7 / 8 * 4e6)


def choice(seconds, dollars):
    return OfferChoice(
        offer(), "T4", 64, Span(seconds, seconds, seconds), Span(dollars, dollars, dollars)
    )


def test_the_frontier_holds_what_no_other_choice_beats_in_both():
    every = [(10, 5), (20, 3), (30, 4), (5, 9), (20, 2.5), (40, 2.5)]
    kept = select_time_cost_pareto(choice(*each) for each in every)
    assert [(one.seconds.value, one.dollars.value) for one in kept] == [(5, 9), (10, 5), (20, 2.5)]


def test_a_span_is_multiplied_and_added_to_at_its_middle_and_both_ends():
    assert Span(2.0, 1.0, 5.0).scale(3) == Span(6.0, 3.0, 15.0)
    assert Span(2.0, 1.0, 5.0).shift(3) == Span(5.0, 4.0, 8.0)
    assert Span(2.0, 1.0, 5.0).shift(0) == Span(2.0, 1.0, 5.0)


def test_a_link_of_one_gb_a_second_moves_10_to_the_9_bytes_in_a_second():
    found = compute_step_with_allreduce(
        Span(1.0, 1.0, 1.0), 250_000_000, 2, 1.0, "said", overlap=0.25
    )
    assert (found.moved_bytes, found.communication) == (1e9, 1.0)  # 2 x 1/2 x 4 B x 250 million
    assert (found.exposed, found.step.value, found.efficiency) == (0.75, 1.75, 1 / 1.75)
    assert (found.gpus, found.link_gbs, found.link, found.overlap) == (2, 1.0, "said", 0.25)
    # What overlaps is hidden, but no more than the backward pass takes, or the step itself.
    for backward, exposed in ((0.3, 0.7), (None, 0.5)):
        half = Span(0.5, 0.5, 0.5)
        found = compute_step_with_allreduce(
            half, 250_000_000, 2, 1.0, "said", overlap=1.0, backward_seconds=backward
        )
        assert found.exposed == pytest.approx(exposed)


STEP = Span(0.1, 0.08, 0.15)


def test_without_a_size_of_the_data_there_is_a_step_and_nothing_that_is_made_up():
    found = compute_training_cost(STEP, TrainingJob(32))
    assert (found.epoch, found.total, found.steps, found.energy, found.rentals) == (
        None,
        None,
        None,
        None,
        (),
    )
    assert found.samples_per_second == Span(320.0, 32 / 0.15, 400.0)


def test_epochs_multiply_every_edge_of_the_range():
    found = compute_training_cost(
        STEP,
        TrainingJob(32, samples=100, epochs=5),
        gpu_watts_and_source=(200.0, "said"),
        price_per_kwh=0.5,
    )
    assert found.steps == 4
    assert found.total is not None
    assert (found.total.value, found.total.low, found.total.high) == pytest.approx((2.0, 1.6, 3.0))
    assert found.energy is not None
    assert found.energy.kwh.high == pytest.approx(200 * 3.0 / 3.6e6)


def test_several_gpus_share_the_data_and_wait_for_their_gradients():
    found = compute_training_cost(
        STEP,
        TrainingJob(32, samples=1000, gpus=4, parameters=10**7, link_gbs=10.0),
        backward_seconds=0.05,
    )
    assert found.steps == 8  # 1000 / 128
    assert found.step.value == pytest.approx(0.1 + 2 * 3 / 4 * 4e7 / 10e9)
    assert found.alone == STEP
    with pytest.raises(ValueError, match="the bandwidth between the GPUs"):
        compute_training_cost(STEP, TrainingJob(32, gpus=4, parameters=10**7))


@pytest.mark.parametrize(
    ("lines", "batch", "limit", "reserve", "needed", "lacking", "largest"),
    [
        (((1000, 10), (400, 30)), 10, 1500, 0, 1000 + 10 * 10, 0, 36),
        (((1000, 10), (400, 30)), 50, 1600, 0, 400 + 50 * 30, 300, 40),
        (((1000, 10), (400, 30)), 10, 900, 0, 1100, 200, 0),
        (((400, 30),), 40, 1700, 100, 1600, 0, 40),  # what stays free is no room for tensors
        (((400, 30),), 41, 1700, 100, 1630, 30, 40),
        (((400, 30),), 1, 1700, 1300, 430, 30, 0),
        (((1000, 10),), 10, None, 0, 1100, 0, None),  # the memory is not known
    ],
)
def test_memory_is_a_line_in_batch_and_the_largest_batch_is_where_it_meets_the_limit(
    lines, batch, limit, reserve, needed, lacking, largest
):
    room = compute_tensor_memory_need([MemoryLine(*line) for line in lines], batch, limit, reserve)
    assert (room.needed, room.total) == (needed, needed + reserve)
    assert (room.fits, room.lacking) == (None if limit is None else not lacking, lacking)
    assert room.largest == largest


def test_memory_that_is_just_enough_fits_and_is_close_from_nine_tenths_of_the_limit_on():
    rooms = {
        needed: compute_tensor_memory_need((MemoryLine(0, 1),), needed, 1000.0, reserved_bytes=100)
        for needed in (800, 801, 900, 901)
    }
    assert {needed: (room.fits, room.lacking) for needed, room in rooms.items()} == {
        800: (True, 0.0),
        801: (True, 0.0),
        900: (True, 0.0),
        901: (False, 1.0),
    }
    assert list(map(describe_memory_fit, rooms.values())) == [
        "fits",
        "fits, but little is left",
        "fits, but little is left",
        "does not fit: 1.00 B are missing",
    ]
    tensors_alone = [replace(room, is_bound=True).fits for room in rooms.values()]
    assert tensors_alone == [None, None, None, False], "the allocator may need more"


def test_rates_count_the_samples_of_all_gpus_at_an_efficiency_that_was_given():
    found = compute_training_cost(STEP, TrainingJob(32, gpus=4, parameters=10**6, efficiency=0.5))
    assert found.step == Span(0.2, 0.16, 0.3)
    assert found.samples_per_second == Span(128 / 0.2, 128 / 0.3, 128 / 0.16)
    parallel = found.parallel
    assert parallel is not None
    assert (parallel.gpus, parallel.efficiency, parallel.link) == (4, 0.5, "as said")
    assert parallel.moved_bytes == compute_allreduce_bytes_per_gpu(10**6, 4)
    assert (parallel.exposed, parallel.link_gbs, parallel.overlap) == (None, None, 0.0)
    assert compute_training_cost(STEP, TrainingJob(32, gpus=1)).parallel is None


def test_what_is_billed_is_the_whole_training_and_without_epochs_one_of_them():
    def train(step, job):
        return compute_training_cost(
            step, job, prices=[offer(2, 3.6)], gpu_watts_and_source=(1000.0, "said")
        )

    step = Span(36.0, 36.0, 36.0)
    epoch = train(step, TrainingJob(10, samples=1000))
    assert (epoch.steps, epoch.billed_seconds, epoch.total) == (
        100,
        Span(3600.0, 3600.0, 3600.0),
        None,
    )
    assert [(one.on_demand, one.idle_gpus) for one in epoch.rentals] == [(Span(3.6, 3.6, 3.6), 1)]
    whole = train(step, TrainingJob(10, samples=1000, epochs=3))
    assert whole.billed_seconds == whole.total == Span(10800.0, 10800.0, 10800.0)
    assert whole.energy is not None and (whole.energy.kwh.value, whole.energy.cost) == (3.0, None)
    unknown = train(step, TrainingJob(10))
    assert (unknown.billed_seconds, unknown.rentals, unknown.energy) == (None, (), None)
