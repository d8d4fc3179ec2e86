import re
import struct
from pathlib import Path

import pytest


@pytest.fixture
def plot(perfctl, replayed):
    return lambda typed: perfctl(f"plot {typed} --store {replayed}")


def test_the_charts_of_the_page_are_listed_and_each_can_be_written(plot):
    charts = [chart["name"] for chart in plot("--list --json").json]
    assert {"sample", "step", "shares", "memory"} <= set(charts)
    _, _, *lines = plot("--list").out.splitlines()
    named = lines[: lines.index("")]
    assert [line.split()[0] for line in named if not line.startswith(" ")] == sorted(charts)
    for name in charts:
        assert plot(f"{name} --out {name}.svg").code == 0
        assert "<svg" in Path(f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_same_store_gives_the_same_bytes_and_no_date(plot, ending):
    for name in ("a", "b"):
        assert plot(f"sample --out {name}.{ending}").code == 0
    content = Path(f"a.{ending}").read_bytes()
    assert content == Path(f"b.{ending}").read_bytes()
    assert not re.search(rb"CreationDate|dc:date|tEXtSoftware|Matplotlib v", content)


def test_the_width_is_what_was_asked_for_in_millimetres(plot):
    plot("sample --out a.png --width-mm 127 --height-mm 50.8 --dpi 100")
    assert struct.unpack(">II", Path("a.png").read_bytes()[16:24]) == (500, 200)
    plot("sample --out a.svg --width-mm 84")
    width = re.search(r'width="([\d.]+)pt"', Path("a.svg").read_text())
    assert width is not None
    assert float(width[1]) == pytest.approx(84 / 25.4 * 72, abs=0.01)


def test_no_stand_in_colour_is_left_in_a_file_and_the_parts_of_a_bar_are_named_below_it(plot):
    texts = {}
    for name in ("sample", "shares"):
        plot(f"{name} --out {name}.svg")
        texts[name] = Path(f"{name}.svg").read_text(encoding="utf-8")
        assert not re.search(r"#0[1-5]0[1-5]0[1-5]|#0a0a0\d|var\(--", texts[name]), name
        assert "#0072b2" in texts[name], "the page's blue"
    assert all(f">{layer}<" in texts["shares"] for layer in ("conv1", "conv2", "fc1"))
