from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Perfctl = Callable[..., Any]


@pytest.fixture
def plot(perfctl: Perfctl, replayed: Path) -> Perfctl:
    return lambda *words: perfctl("plot", *words, "--store", replayed)


def test_the_charts_of_the_page_are_listed_and_each_can_be_written(plot: Perfctl) -> None:
    charts = [chart["name"] for chart in plot("--list", "--json").json]
    assert {"sample", "step", "shares", "memory"} <= set(charts)
    _, _, *lines = plot("--list").out.splitlines()
    named = lines[: lines.index("")]
    assert [line.split()[0] for line in named if not line.startswith(" ")] == sorted(charts)
    for name in charts:
        assert plot(name, "--out", f"{name}.svg").code == 0
        assert "<svg" in Path(f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_same_store_gives_the_same_bytes_and_no_date(plot: Perfctl, ending: str) -> None:
    for name in ("a", "b"):
        assert plot("sample", "--out", f"{name}.{ending}").code == 0
    content = Path(f"a.{ending}").read_bytes()
    assert content == Path(f"b.{ending}").read_bytes()
    assert not re.search(rb"CreationDate|dc:date|tEXtSoftware|Matplotlib v", content)


def test_the_width_is_what_was_asked_for_in_millimetres(plot: Perfctl) -> None:
    plot("sample", "--out", "a.png", "--width-mm", 127, "--height-mm", 50.8, "--dpi", 100)
    assert struct.unpack(">II", Path("a.png").read_bytes()[16:24]) == (500, 200)
    plot("sample", "--out", "a.svg", "--width-mm", 84)
    width = re.search(r'width="([\d.]+)pt"', Path("a.svg").read_text())
    assert width is not None
    assert float(width[1]) == pytest.approx(84 / 25.4 * 72, abs=0.01)


def test_no_stand_in_colour_is_left_in_a_file(plot: Perfctl) -> None:
    for name in ("sample", "shares"):
        plot(name, "--out", f"{name}.svg")
        text = Path(f"{name}.svg").read_text(encoding="utf-8")
        assert not re.search(r"#0[1-5]0[1-5]0[1-5]|#0a0a0\d|var\(--", text), name
    assert "#0072b2" in text, "the page's blue"


def test_the_parts_of_a_bar_are_named_below_it(plot: Perfctl) -> None:
    plot("shares", "--out", "shares.svg")
    text = Path("shares.svg").read_text(encoding="utf-8")
    for layer in ("conv1", "conv2", "fc1"):
        assert f">{layer}<" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "chart 'nope' is not available. Available charts"),
        (("sample", "--out", "a.doc"), "a name that ends with .pdf, .png or .svg"),
        (("sample", "--out", "mine.svg"), "--force"),
        ((), "perfctl plot --list"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    plot: Perfctl, words: tuple[str, ...], said: str
) -> None:
    Path("mine.svg").write_text("mine")
    answer = plot(*words)
    assert answer.code == 2
    assert said in answer.err
    assert Path("mine.svg").read_text() == "mine"
