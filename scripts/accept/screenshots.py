"""Draw the pictures in docs/images: ``python scripts/accept/screenshots.py [FOLDER]``

The page is made from tests/data/h100. Look at every picture before you commit it: the tests
compare later pages with them, with a tolerance for other fonts. Needs chromium and playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = ROOT / "docs" / "images"
DESK, PHONE, SHEET = (
    {"width": 1280, "height": 900},
    {"width": 390, "height": 844},
    {"width": 688, "height": 970},
)
SHOTS: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": DESK},
    "page-dark": {"viewport": DESK, "color_scheme": "dark"},
    "page-print": {"viewport": SHEET, "media": "print"},
    "page-390": {"viewport": PHONE},
    "page-timeline": {"viewport": DESK, "part": "#s1-timeline"},
    "calculator": {"viewport": DESK, "page": "calculator.html"},
}
"""Name -> how the page is opened; ``part``: only this part of it; ``page``: another one, beside
the report."""
MARGIN, HIGHEST = 53, 900
"""The sheet's margin (14 mm) and the most rows of a picture, in pixels."""


def make_page(folder: Path) -> Path:
    """Ingest the recording and write its page, as a user would."""
    store, page = folder / "shots.db", folder / "shots.html"
    for command in (
        ["ingest", *(f"tests/data/h100/{profiler}" for profiler in ("ncu", "nsys", "torch"))],
        ["report", "--out", str(page)],
        ["calculator", "--models", "none", "--out", str(folder / "calculator.html")],
    ):
        subprocess.run(
            [sys.executable, "-m", "perfctl", *command, "--store", str(store)],
            check=True,
            cwd=ROOT,
            capture_output=True,
        )
    return page


def take(browser: Any, page: Path, name: str, out: Path) -> Path:
    """One picture as OUT/NAME.png."""
    from PIL import Image, ImageOps

    how = dict(SHOTS[name])
    media, part, page = (
        how.pop("media", None),
        how.pop("part", None),
        page.parent / how.pop("page", page.name),
    )
    context = browser.new_context(reduced_motion="reduce", **how)
    tab = context.new_page()
    tab.goto(page.as_uri())
    if media:
        tab.emulate_media(media=media)
    file = out / f"{name}.png"
    if part:
        tab.add_style_tag(content=".parts { position: static; }")
        tab.locator(part).screenshot(path=file)
    else:
        tab.screenshot(path=file)
    context.close()
    with Image.open(file) as image:
        drawn = image.convert("RGB").crop(
            (0, 0, image.width, min(image.height, HIGHEST if part else image.height))
        )
        drawn = ImageOps.expand(drawn, MARGIN, "white") if media == "print" else drawn
        drawn.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            file, optimize=True
        )
    return file


def main() -> int:
    """Draw all of them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed", file=sys.stderr)
        return 1
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ACCEPTED
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = make_page(Path(folder))
        for name in SHOTS:
            print(take(browser, page, name, out))
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
