"""Charts: deterministic drawings that take their colours from the page."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from perfctl.orchestrator.commands.bench import load_bench_points
from perfctl.orchestrator.commands.plot import PlotOptions, draw_available_charts
from perfctl.orchestrator.commands.plot import charts as charts_of
from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.predict.bench import list_size_observations
from perfctl.orchestrator.report.charts import charts, files, study
from perfctl.orchestrator.report.charts.charts import (
    MOST_TICKS,
    choose_log_ticks,
    make_axes,
    render_svg,
)
from perfctl.orchestrator.report.charts.files import Picture, collect_charts
from perfctl.orchestrator.report.charts.relations import (
    draw_all_quantity_size_charts,
    draw_step_time_against_features,
)
from perfctl.records.report import Sample
from tests.make.synthetic import make_run


def drawing(label="conv2", name="s1-test"):
    lines = [
        charts.ChartLine(
            label,
            {16: 1.0, 32: 2.0, 64: 4.0},
            bounds={16: (0.9, 1.1), 32: (1.9, 2.2), 64: (3.9, 4.5)},
        ),
        charts.ChartLine("other", {16: 3.0, 64: 1.0}, 1),
    ]
    chart = charts.draw_batch_chart(name, "what it shows", lines, str)
    assert chart is not None
    return chart.svg


def test_samples_are_a_line_a_device_against_time_and_a_constant_quantity_is_none():
    none = (None,) * 4
    samples = [
        Sample(10**18 + at * 10**9, load, 5, *none, device)
        for at in range(900)
        for device, load in ((0, at >= 450), (1, 0.0))
    ]
    quantities = study.SAMPLED | study.SAMPLED_MEMORY
    (chart,) = study.draw_samples_over_time("s1-series", [make_run(samples=samples)], quantities)
    points = re.findall("<title>(GPU [01]), ([^:]*): ([^<]*)</title>", chart.svg)
    assert {device for device, _, _ in points} == {"GPU 0", "GPU 1"}
    assert 100 < len(points) <= study.SERIES_POINTS_MAX + 2
    busy = [value for device, _, value in points if device == "GPU 0"]
    assert busy[0] == "0%" and busy[-1] == "100%" and abs(busy.count("0%") - len(busy) / 2) <= 1


def test_the_same_numbers_give_the_same_bytes_batch_sizes_are_ticks_and_inner_names_are_not_shared():
    assert drawing() == drawing()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing())
    assert {"16", "32", "64"} <= set(words)
    one, other = (
        set(re.findall(r' id="([^"]*)"', drawing(name=name))) for name in ("s1-a", "s2-a")
    )
    assert not one & other


def test_a_chart_that_was_drawn_still_lays_itself_out_in_another_size():
    with files.collect_charts() as kept:
        drawing()
    (figure,) = (one.figure for one in kept)
    engine = figure.get_layout_engine()
    assert engine is not None
    before = figure.axes[0].get_position().width
    figure.set_size_inches(3, 3)
    engine.execute(figure)
    assert figure.axes[0].get_position().width < before  # labels take more of a narrow one


def test_colours_come_from_the_page_and_a_name_with_markup_stays_text():
    svg = drawing()
    assert "var(--s0)" in svg and "var(--s1)" in svg and "var(--muted)" in svg
    assert not re.search(r"(?:fill|stroke): #(?:0101|0202|0303|0a0a)", svg)
    label = '<b>&"$x^2$'
    words = [
        "".join(element.itertext())
        for element in ET.fromstring(with_namespace(drawing(label))).iter()
    ]
    assert label in words


def shares(parts):
    colours = {name: number for number, name in enumerate(parts)}
    return charts.draw_stacked_share_bars("n", "t", "d", [("16", parts)], colours).svg


def test_a_bar_is_as_wide_as_its_share_and_its_name_can_be_read_on_it():
    svg = shares({"a": 0.25, "b": 0.75})
    widths = []
    for path, colour in re.findall(r'<path d="([^"]*)"[^>]*fill: var\(--s(\d)\)', svg):
        xs = [float(x) for x in re.findall(r"[ML] (\S+)", path)]
        widths.append((colour, max(xs) - min(xs)))
    found = dict(widths)
    assert abs(found["1"] / found["0"] - 3) < 0.01
    svg = shares({"conv1": 0.5, "conv2": 0.5})
    deep, light = (re.search(rf"<text[^>]*>{name}</text>", svg) for name in ("conv1", "conv2"))
    assert deep is not None and "var(--on0)" in deep.group()
    assert light is not None and "#0b0b0b" in light.group()


def with_namespace(svg):
    return svg.replace("<svg ", '<svg xmlns:xlink="x" ', 1)


def test_the_colors_of_drawings_are_the_light_colors_of_the_page():
    sheet = resources.files("perfctl.templates").joinpath("style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[a-z]+\d*):\s*(#[0-9a-f]{3,6})", sheet[: sheet.index("@media")]))
    assert len(files.VARIABLES) == 15
    for color, variable in files.VARIABLES.items():
        assert light[variable] in (color, color[:4]), variable


ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"


def test_an_axis_in_decades_has_two_to_eight_ticks_inside_its_ends():
    for seed in range(200):
        some = random.Random(seed)
        low = 10 ** some.uniform(-6, 15)
        high = low * 10 ** some.choice([0.01, 0.05, 0.2, 0.5, 1.0, 2.5, 9.0, 20.0])
        ticks = choose_log_ticks(low, high)
        assert 2 <= len(ticks) <= MOST_TICKS, seed
        assert all(low <= tick <= high for tick in ticks) and ticks == sorted(set(ticks)), seed


def test_the_ticks_of_a_drawn_axis_are_labelled():
    figure, axes = make_axes(
        x_title="FLOP",
        y_title="time",
        tick_formats=(lambda x: f"{x:g}", lambda y: f"{y:g} s"),
        log=True,
    )
    axes.plot([120, 180], [0.02, 0.5], "o")
    axes.set_xlim(110, 190)
    axes.set_ylim(0.01, 1)
    with collect_charts(defers_drawing=True):
        render_svg(figure, "t", "d")
    figure.canvas.draw()
    for axis in (axes.xaxis, axes.yaxis):
        assert len([label for label in axis.get_ticklabels() if label.get_text()]) >= 2


STORES = {
    "measured": [DATA / "recorded-cpu" / "torch"],
    "published": [ROOT / "examples" / "mnist_v100_study"],
    "one batch size": [DATA / "recorded-cpu" / "torch" / "b16"],
    "inference": [DATA / "inference-reports"],
}


def of_store(name, folder):
    """Every chart of a store made from recordings, or of the recorded bench and speed-up."""
    if name == "speed-up":
        return charts_of(DATA / "recorded-speedup" / "lstm_cpu.json")
    if name == "bench":
        points = load_bench_points(file=DATA / "bench-cpu" / "bench.json")
        return draw_step_time_against_features(points) | draw_all_quantity_size_charts(
            list_size_observations(points)
        )
    ingest_paths(STORES[name], folder / "perfctl.db")
    return draw_available_charts(PlotOptions(store=folder / "perfctl.db"))


def labelled(axis, ends):
    """Texts that stand beside the ticks inside the axis."""
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    low, high = sorted(ends)
    return {label.get_text() for place, label in ticks if low <= place <= high} - {""}


def placed(figure, *_, format, **__):
    """In place of a file: everything gets its place at the file's size, and nothing is painted."""
    if format != "svg":  # the page's own drawing is before the size is set
        figure.draw_without_rendering()


@pytest.mark.parametrize("name", [*STORES, "bench", "speed-up"])
def test_every_log_axis_of_every_chart_of_the_recordings_has_two_labelled_ticks(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr(Figure, "savefig", placed)
    found = of_store(name, tmp_path)
    assert found
    logarithmic = 0
    for key, chart in found.items():
        _ = chart.png  # as perfctl plot writes it
        figure = chart.figure
        for axes in figure.axes:
            for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                if axis.get_scale() == "log":
                    logarithmic += 1
                    assert len(labelled(axis, ends)) >= 2, key
    assert logarithmic or name in ("one batch size", "speed-up")


def test_a_chart_of_few_points_of_a_bench_says_that_its_correlations_may_be_chance():
    points = load_bench_points(file=DATA / "bench-cpu" / "bench.json")
    nine = [point for point in points if point.family == "mlp"][:9]
    enough = {
        family: [point for point in points if point.family == family] for family in ("vgg", "mlp")
    }
    assert len(nine) == 9 and all(len(mine) >= 10 for mine in enough.values())
    for made in (
        draw_step_time_against_features,
        lambda some: draw_all_quantity_size_charts(list_size_observations(some)),
    ):
        few: dict[str, Picture] = made(nine)
        assert few and {"mlp (9)" in (chart.warning or "") for chart in few.values()} == {True}
        many: dict[str, Picture] = made([*enough["vgg"], *enough["mlp"]])
        assert many and {chart.warning for name, chart in many.items() if "parameters" in name} == {
            None
        }


@pytest.mark.parametrize("length", [6, 12, 20, 80])
def test_the_legend_of_a_saved_chart_lies_between_its_edges(tmp_path, length):
    names = [f"{number}{'n' * (length - 1)}" for number in range(7)]
    with files.collect_charts() as kept:
        shares = dict.fromkeys(names, 1 / 7)
        colours = {name: number for number, name in enumerate(names)}
        charts.draw_stacked_share_bars("s1-shares", "", "", [("16", shares)], colours)
    files.save_chart(kept[0], tmp_path / "shares.png", "png", 84)
    figure = kept[0].figure
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
