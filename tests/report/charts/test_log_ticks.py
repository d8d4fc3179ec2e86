"""Axes in decades have at least two labelled ticks, however short they are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from perfctl.orchestrator.commands.bench import bench_points
from perfctl.orchestrator.commands.plot import PlotOptions, charts, drawings
from perfctl.orchestrator.ingest.ingest import ingest
from perfctl.orchestrator.predict.bench import observations
from perfctl.orchestrator.report.charts.charts import MOST_TICKS, as_svg, log_ticks, new_axes
from perfctl.orchestrator.report.charts.files import Drawn, Picture, drawn
from perfctl.orchestrator.report.charts.relations import all_relation_charts, bench_charts

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"


def test_an_axis_in_decades_has_two_to_eight_ticks_inside_its_ends() -> None:
    for seed in range(200):
        some = random.Random(seed)
        low = 10 ** some.uniform(-6, 15)
        high = low * 10 ** some.choice([0.01, 0.05, 0.2, 0.5, 1.0, 2.5, 9.0, 20.0])
        ticks = log_ticks(low, high)
        assert 2 <= len(ticks) <= MOST_TICKS, seed
        assert all(low <= tick <= high for tick in ticks) and ticks == sorted(set(ticks)), seed


def test_the_ticks_of_a_drawn_axis_are_labelled() -> None:
    figure, axes = new_axes(
        x="FLOP", y="time", shows=(lambda x: f"{x:g}", lambda y: f"{y:g} s"), log=True
    )
    axes.plot([120, 180], [0.02, 0.5], "o")
    axes.set_xlim(110, 190)
    axes.set_ylim(0.01, 1)
    with drawn(later=True):
        as_svg(figure, "t", "d")
    figure.canvas.draw()
    for axis in (axes.xaxis, axes.yaxis):
        assert len([label for label in axis.get_ticklabels() if label.get_text()]) >= 2


STORES = {
    "measured": [DATA / "recorded-cpu" / "torch"],
    "published": [ROOT / "examples" / "mnist_v100_study"],
    "one batch size": [DATA / "recorded-cpu" / "torch" / "b16"],
    "inference": [DATA / "inference-reports"],
}


def of_store(name: str, folder: Path) -> dict[str, Picture]:
    """Every chart of a store made from recordings, or of the recorded bench and speed-up."""
    if name == "speed-up":
        return charts(DATA / "recorded-speedup" / "lstm_cpu.json")
    if name == "bench":
        points = bench_points(file=DATA / "bench-cpu" / "bench.json")
        found: dict[str, Drawn] = bench_charts(points) | all_relation_charts(observations(points))
    else:
        ingest(STORES[name], folder / "perfctl.db")
        found = drawings(PlotOptions(store=folder / "perfctl.db"))
    return {key: Picture(chart) for key, chart in found.items()}


def labelled(axis: Any, ends: tuple[float, float]) -> set[str]:
    """Texts that stand beside the ticks inside the axis."""
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    low, high = sorted(ends)
    return {label.get_text() for place, label in ticks if low <= place <= high} - {""}


def placed(figure: Figure, *_: object, format: str, **__: object) -> None:
    """In place of a file: everything gets its place at the file's size, and nothing is painted."""
    if format != "svg":  # the page's own drawing is before the size is set
        figure.draw_without_rendering()


@pytest.mark.parametrize("name", [*STORES, "bench", "speed-up"])
def test_every_log_axis_of_every_chart_of_the_recordings_has_two_labelled_ticks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", placed)
    found = of_store(name, tmp_path)
    assert found
    logarithmic = 0
    for key, chart in found.items():
        figure = chart.figure  # as perfctl plot writes it
        for axes in figure.axes:
            for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                if axis.get_scale() == "log":
                    logarithmic += 1
                    assert len(labelled(axis, ends)) >= 2, key
    assert logarithmic or name in ("one batch size", "speed-up")


def test_a_chart_of_few_points_of_a_bench_says_that_its_correlations_may_be_chance() -> None:
    points = bench_points(file=DATA / "bench-cpu" / "bench.json")
    nine = [point for point in points if point.family == "mlp"][:9]
    enough = {
        family: [point for point in points if point.family == family] for family in ("vgg", "mlp")
    }
    assert len(nine) == 9 and all(len(mine) >= 10 for mine in enough.values())
    for made in (bench_charts, lambda some: all_relation_charts(observations(some))):
        few: dict[str, Drawn] = made(nine)
        assert few and {"mlp (9)" in (chart.warning or "") for chart in few.values()} == {True}
        many: dict[str, Drawn] = made([*enough["vgg"], *enough["mlp"]])
        assert many and {chart.warning for name, chart in many.items() if "parameters" in name} == {
            None
        }
