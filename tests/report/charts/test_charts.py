"""Charts: deterministic drawings that take their colours from the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from importlib import resources

from perfctl.orchestrator.report.charts import charts, files


def drawing(label: str = "conv2", name: str = "s1-test") -> str:
    lines = [
        charts.Series(label, (16, 32, 64), (1.0, 2.0, 4.0), (0.9, 1.9, 3.9), (1.1, 2.2, 4.5), 0),
        charts.Series("other", (16, 64), (3.0, 1.0), colour=1),
    ]
    chart = charts.batch_chart(name, "what it shows", lines, str)
    assert chart is not None
    return chart.svg


def test_the_same_numbers_give_the_same_bytes_batch_sizes_are_ticks_and_inner_names_are_not_shared() -> (
    None
):
    assert drawing() == drawing()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing())
    assert {"16", "32", "64"} <= set(words)
    one, other = (
        set(re.findall(r' id="([^"]*)"', drawing(name=name))) for name in ("s1-a", "s2-a")
    )
    assert not one & other


def test_a_chart_that_was_drawn_still_lays_itself_out_in_another_size() -> None:
    with files.drawn() as kept:
        drawing()
    (figure,) = (one.figure for one in kept)
    engine = figure.get_layout_engine()
    assert engine is not None
    before = figure.axes[0].get_position().width
    figure.set_size_inches(3, 3)
    engine.execute(figure)
    assert figure.axes[0].get_position().width < before  # labels take more of a narrow one


def test_colours_come_from_the_page_and_a_name_with_markup_stays_text() -> None:
    svg = drawing()
    assert "var(--s0)" in svg and "var(--s1)" in svg and "var(--muted)" in svg
    assert not re.search(r"(?:fill|stroke): #(?:0101|0202|0303|0a0a)", svg)
    label = '<b>&"$x^2$'
    words = [
        "".join(element.itertext())
        for element in ET.fromstring(with_namespace(drawing(label))).iter()
    ]
    assert label in words


def shares(parts: dict[str, float]) -> str:
    colours = {name: number for number, name in enumerate(parts)}
    return charts.shares_chart("n", "t", "d", [("16", parts)], colours).svg


def test_a_bar_is_as_wide_as_its_share_and_its_name_can_be_read_on_it() -> None:
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


def with_namespace(svg: str) -> str:
    return svg.replace("<svg ", '<svg xmlns:xlink="x" ', 1)


def test_the_colors_of_drawings_are_the_light_colors_of_the_page() -> None:
    sheet = resources.files("perfctl.templates").joinpath("style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[a-z]+\d*):\s*(#[0-9a-f]{3,6})", sheet[: sheet.index("@media")]))
    assert len(files.VARIABLES) == 15
    for color, variable in files.VARIABLES.items():
        assert light[variable] in (color, color[:4]), variable
