"""Hours times price, energy times tariff, gradients over links: by hand."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.hardware.machines import meant
from perfctl.orchestrator.predict.cost import (
    Choice,
    Job,
    Span,
    energy,
    frontier,
    over_link,
    parallel_step,
    rental,
    rentals,
    ring_bytes,
    steps_of,
)
from perfctl.orchestrator.predict.prices import Price

HOURS = Span(2 * 3600.0, 1 * 3600.0, 4 * 3600.0)


def offer(
    count: int = 1, on_demand: float | None = 3.0, spot: float | None = None, provider: str = "P"
) -> Price:
    return Price(provider, "box", "T4", meant("T4"), count, on_demand, spot, "", "2026-11", "me")


def test_a_last_batch_that_is_not_full_is_a_step_too() -> None:
    assert steps_of(1000, 100) == 10
    assert steps_of(1001, 100) == 11
    assert steps_of(1001, 100, 4) == 3
    assert steps_of(1_281_167, 64) == 20_019


def test_a_cost_is_hours_times_price_at_both_ends_of_the_interval() -> None:
    found = rental(offer(on_demand=3.0, spot=1.0), 1, HOURS)
    assert found.on_demand == Span(6.0, 3.0, 12.0)
    assert found.spot == Span(2.0, 1.0, 4.0)
    assert (found.instances, found.idle_gpus) == (1, 0)


def test_whole_instances_are_paid_and_idle_gpus_are_counted() -> None:
    found = rental(offer(count=8, on_demand=10.0), 3, HOURS)
    assert (found.instances, found.idle_gpus) == (1, 5)
    assert found.on_demand == Span(20.0, 10.0, 40.0)
    more = rental(offer(count=4, on_demand=10.0), 6, HOURS)
    assert (more.instances, more.idle_gpus) == (2, 2)
    assert more.on_demand is not None
    assert more.on_demand.value == 2 * 10.0 * 2


def test_a_price_that_is_not_known_gives_no_cost_and_stands_last() -> None:
    found = rentals(
        [offer(on_demand=None, spot=0.1), offer(on_demand=5.0), offer(on_demand=2.0)], 1, HOURS
    )
    assert [one.price.on_demand for one in found] == [2.0, 5.0, None]
    assert found[-1].on_demand is None
    assert found[-1].spot == Span(0.2, 0.1, 0.4)


def test_energy_is_power_times_time_of_all_gpus_and_costs_what_the_tariff_says() -> None:
    found = energy(300.0, "measured", 4, HOURS, 0.30)
    assert found.kwh.value == pytest.approx(0.3 * 4 * 2)  # kW x GPUs x hours
    assert found.cost is not None
    assert found.cost.value == pytest.approx(0.3 * 4 * 2 * 0.30)
    assert found.cost.high == pytest.approx(0.3 * 4 * 4 * 0.30)
    assert energy(300.0, "measured", 4, HOURS).cost is None


def test_a_ring_moves_two_n_minus_one_nths_of_the_gradients() -> None:
    assert ring_bytes(1_000_000, 1) == 0
    assert ring_bytes(1_000_000, 2) == 4e6
    assert ring_bytes(1_000_000, 8) == pytest.approx(2 * 7 / 8 * 4e6)


def test_what_overlaps_is_hidden_but_never_more_than_the_backward_pass_takes() -> None:
    step = Span(0.100, 0.100, 0.100)
    half = over_link(step, 25_000_000, 4, 10.0, "said", overlap=0.5)
    assert half.exposed == pytest.approx(0.0075)
    short = over_link(step, 25_000_000, 4, 10.0, "said", overlap=1.0, backward=0.005)
    assert short.exposed == pytest.approx(0.010)


def choice(seconds: float, dollars: float) -> Choice:
    return Choice(
        offer(), "T4", 64, Span(seconds, seconds, seconds), Span(dollars, dollars, dollars)
    )


def test_the_frontier_holds_what_no_other_choice_beats_in_both() -> None:
    every = [
        choice(10, 5),
        choice(20, 3),
        choice(30, 4),
        choice(5, 9),
        choice(20, 2.5),
        choice(40, 2.5),
    ]
    kept = frontier(every)
    assert [(one.seconds.value, one.dollars.value) for one in kept] == [(5, 9), (10, 5), (20, 2.5)]
    for one in every:
        if one not in kept:
            assert any(
                best.seconds.value <= one.seconds.value and best.dollars.value <= one.dollars.value
                for best in kept
            )


def test_a_span_is_multiplied_and_added_to_at_its_middle_and_both_ends() -> None:
    assert Span(2.0, 1.0, 5.0).times(3) == Span(6.0, 3.0, 15.0)
    assert Span(2.0, 1.0, 5.0).plus(3) == Span(5.0, 4.0, 8.0)
    assert Span(2.0, 1.0, 5.0).plus(0) == Span(2.0, 1.0, 5.0)


def test_one_watt_for_an_hour_is_a_thousandth_of_a_kwh() -> None:
    assert energy(1.0, "said", 1, Span(3600.0, 1800.0, 7200.0)).kwh == Span(0.001, 0.0005, 0.002)


def test_a_link_of_one_gb_a_second_moves_10_to_the_9_bytes_in_a_second() -> None:
    found = over_link(Span(1.0, 1.0, 1.0), 250_000_000, 2, 1.0, "said", overlap=0.25)
    assert (found.moved_bytes, found.communication) == (1e9, 1.0)  # 2 x 1/2 x 4 B x 250 million
    assert (found.exposed, found.step.value, found.efficiency) == (0.75, 1.75, 1 / 1.75)
    assert (found.gpus, found.link_gbs, found.link, found.overlap) == (2, 1.0, "said", 0.25)
    # Without a backward pass that is known, no more than the step itself hides it.
    assert over_link(Span(0.5, 0.5, 0.5), 250_000_000, 2, 1.0, "said", overlap=1.0).exposed == 0.5


def test_what_was_said_is_told_from_what_was_worked_out() -> None:
    job = Job(1, gpus=2, parameters=1_000_000, efficiency=0.5)
    found = parallel_step(Span(0.1, 0.1, 0.1), job)
    assert found is not None
    assert (found.gpus, found.efficiency, found.moved_bytes, found.link, found.overlap) == (
        2,
        0.5,
        4e6,
        "as said",
        0.0,
    )
    assert (found.exposed, found.link_gbs) == (None, None)
    assert found.step == Span(0.2, 0.2, 0.2)
