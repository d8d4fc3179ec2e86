"""Axes in decades have at least two labelled ticks, however short they are."""

from __future__ import annotations

import random

import pytest

from perfctl.orchestrator.report.charts.charts import MOST_TICKS, as_svg, log_ticks, new_axes
from perfctl.orchestrator.report.charts.files import drawn


@pytest.mark.parametrize("seed", range(200))
def test_an_axis_in_decades_has_two_to_eight_ticks_inside_its_ends(seed: int) -> None:
    some = random.Random(seed)
    low = 10 ** some.uniform(-6, 15)
    high = low * 10 ** some.choice([0.01, 0.05, 0.2, 0.5, 1.0, 2.5, 9.0, 20.0])
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= MOST_TICKS
    assert all(low <= tick <= high for tick in ticks) and ticks == sorted(set(ticks))


def test_the_ticks_of_a_drawn_axis_are_labelled() -> None:
    figure, axes = new_axes(x="FLOP", y="time", shows=(lambda x: f"{x:g}", lambda y: f"{y:g} s"), log=True)
    axes.plot([120, 180], [0.02, 0.5], "o")
    axes.set_xlim(110, 190)
    axes.set_ylim(0.01, 1)
    with drawn(later=True):
        as_svg(figure, "t", "d")
    figure.canvas.draw()
    for axis in (axes.xaxis, axes.yaxis):
        assert len([label for label in axis.get_ticklabels() if label.get_text()]) >= 2
