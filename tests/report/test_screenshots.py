"""The page still looks like the pictures that were accepted by eye: docs/images, made by
scripts/accept/screenshots.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ACCEPTED = ROOT / "docs" / "images"
SIDE = 16
"""Pictures are compared as this many grey squares each way: fonts of another machine move letters,
not parts."""
ROOM = 6.0
"""Mean difference of the squares, of 255."""
NAMES = (
    "page-light",
    "page-dark",
    "page-print",
    "page-390",
    "page-timeline",
    "calculator",
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "screenshots", ROOT / "scripts" / "accept" / "screenshots.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(script, tmp_path_factory):
    made: Path = script.make_page(tmp_path_factory.mktemp("shots"))
    return made


def squares(file):
    import numpy as np
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(
            image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), dtype=float
        ), image.size


def difference(one, other):
    """Mean difference of grey squares, 0 to 255; a tenth more or less in height is allowed for."""
    (mine, size), (theirs, accepted) = squares(one), squares(other)
    assert size[0] == accepted[0] and abs(size[1] - accepted[1]) <= accepted[1] * 0.1
    return float(abs(mine - theirs).mean())


@pytest.mark.parametrize("name", NAMES)
def test_the_page_looks_like_the_accepted_picture(browser, script, page, tmp_path, name):
    taken = script.take(browser, page, name, tmp_path)
    off = difference(taken, ACCEPTED / f"{name}.png")
    assert off < ROOM, (
        f"{name} differs by {off:.1f}; look at {taken}, and if it is right run python "
        "scripts/accept/screenshots.py"
    )


def test_every_picture_of_the_script_is_accepted(script):
    assert tuple(script.SHOTS) == NAMES
    assert all((ACCEPTED / f"{name}.png").stat().st_size < 150_000 for name in NAMES)


def test_the_comparison_tells_a_dark_page_and_an_empty_one_from_a_light_one(tmp_path):
    from PIL import Image

    light = ACCEPTED / "page-light.png"
    empty = tmp_path / "empty.png"
    with Image.open(light) as image:
        Image.new("RGB", image.size, image.convert("RGB").getpixel((2, 2))).save(empty)
    assert difference(ACCEPTED / "page-dark.png", light) > ROOM
    assert difference(empty, light) > ROOM
