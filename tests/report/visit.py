"""A page open in a browser."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.records.run import Run

WHEN = "2026-11-20T20:40:00Z"
_contexts: dict[tuple[int, str], Any] = {}

on_a_screen_and_a_phone = pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}]
)
"""The screen is light and the phone dark."""


def write_page(folder: Path, runs: Sequence[Run]) -> Path:
    """Write the HTML report of these runs."""
    file = folder / "page.html"
    page = render_view_as_html(build_report_view(runs, generated_at=WHEN), "run.html")
    file.write_text(page, encoding="utf-8")
    return file


class Visit:
    """An open page, and what went wrong in it."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        self.page = _context(browser, options).new_page()
        self.troubles: list[str] = []
        self.page.on("console", lambda said: self.troubles.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on(
            "dialog",
            lambda dialog: (self.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        self.page.on("request", lambda request: self._asked(request.url, file))
        self.page.goto(file.as_uri())

    def _asked(self, url: str, file: Path) -> None:
        if url.split("#")[0] != file.as_uri() and not url.startswith("blob:"):
            self.troubles.append(f"request: {url}")

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def open(self, link: str) -> None:
        """Load the page anew by a link to it."""
        self.page.goto("about:blank")
        self.page.goto(link)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()
        assert self.troubles == []


def _context(browser: Any, options: dict[str, Any]) -> Any:
    """One for all visits with the same options: a new one costs more of a core than the page does.
    Pages keep nothing in it.

    A page stays open in it, with which the next ones share a process.
    """
    key = (id(browser), repr(sorted(options.items())))
    if key not in _contexts:
        _contexts[key] = browser.new_context(**options)
        _contexts[key].set_default_timeout(120_000)
        _contexts[key].new_page().goto((Path(__file__).parent / "visit.py").as_uri())
    return _contexts[key]


TWO_OF_EACH = """() => {
  const kind = cell => cell.cellIndex + cell.outerHTML.replace(/(title|data-[a-z]+)="[^"]*"/g, "$1").replace(/>[^<]+</g, ">text<");
  for (const body of document.querySelectorAll("tbody")) {
    const seen = new Map();
    for (const row of [...body.rows]) {
      const kinds = [row.className + row.style.cssText, ...[...row.cells].map(kind)];
      const news = kinds.some(one => (seen.get(one) ?? 0) < 2);
      if (!news && !row.querySelector("[id]")) row.remove();
      else kinds.forEach(one => seen.set(one, (seen.get(one) ?? 0) + 1));
    }
  }
}"""
"""Leaves of a table two cells of each kind, which differ in their texts only: axe takes seconds for
a thousand cells."""

_ALL_BUT_CONTRAST = """async () => (await axe.run(document, {
  resultTypes: ["violations"], rules: { "color-contrast": { enabled: false } },
})).violations"""
_CONTRAST_OF_TWO_OF_EACH = """async () => {
  const seen = new Map(), chosen = [];
  const has = (node, kind) => [...node.childNodes].some(one => one.nodeType === kind && one.data.trim());
  for (const node of document.body.querySelectorAll("*")) {
    if (!(has(node, Node.TEXT_NODE) || "placeholder" in node) || !node.checkVisibility()) continue;
    const looks = [node.localName, node.type, node.disabled, node.ariaDisabled];
    for (let up = node; up; up = up.parentElement) {
      const { color, fill, fontSize, fontWeight, backgroundColor, backgroundImage, opacity, textShadow } = getComputedStyle(up);
      if (up === node) looks.push(color, fill, fontSize, fontWeight, textShadow);
      looks.push(up.localName === "td" || up.localName === "th" ? up.className : "", backgroundColor, backgroundImage, opacity);
    }
    const key = looks.join(";"), count = seen.get(key) ?? 0;
    seen.set(key, count + 1);
    if (count < 2) chosen.push(node);
  }
  return (await axe.run({ include: chosen }, { resultTypes: ["violations"], runOnly: ["color-contrast"] })).violations;
}"""
"""The contrast of a text follows from its own looks and what is painted behind it: axe takes 10 ms
for each it is to judge."""


def serious(visit: Visit) -> list[tuple[str, list[str]]]:
    """What axe finds serious or critical in the open page: (rule, first places). Skips
    without axe-core."""
    return [
        (rule, places)
        for rule, impact, places in _found(visit)
        if impact in ("serious", "critical")
    ]


def violations(visit: Visit) -> list[tuple[str, list[str]]]:
    """Whatever axe finds wrong in the open page: (rule, first places). Skips without axe-core."""
    return [(rule, places) for rule, _, places in _found(visit)]


def _found(visit: Visit) -> list[tuple[str, str, list[str]]]:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        pytest.skip("axe-playwright-python, which carries axe-core, is not installed")
    source = next(Path(found.submodule_search_locations[0]).rglob("axe.min.js"))
    visit.page.evaluate(
        "document.querySelectorAll('details.fold').forEach(part => { part.open = true; })"
    )
    visit.page.evaluate(TWO_OF_EACH)
    visit.page.evaluate(source.read_text(encoding="utf-8"))
    items = visit.page.evaluate(_ALL_BUT_CONTRAST) + visit.page.evaluate(_CONTRAST_OF_TWO_OF_EACH)
    return [
        (item["id"], item["impact"], [node["html"][:200] for node in item["nodes"][:3]])
        for item in items
    ]
