"""Does each page keep what a reader relies on? Renders reports and looks at their pages.

    python scripts/proof/pages.py [--keep FOLDER] [--perfctl PATH] REPORT...

Each REPORT (a file, a folder whose files belong together, or a results database) becomes one page
in headless Chromium, 1440 pixels wide. A page fails if

- it is taller than 12,000 pixels, or has more than 300 tab stops;
- a note is longer than 300 characters;
- a number has a unit that no reader knows ("Gs", "m%");
- a finding rounds a value in another way than a table of the page does (465 ms and 466 ms);
- a finding claims a larger share of the step than a finding before it;
- a column of numbers, sorted by a click on its header, is not in the order of its values;
- a header breaks inside of a word when it is printed.

Prints one line for each fault. Exit code 1 if there is any. ``make test`` holds ten reports of the
repository against what can be seen without a browser.

--keep also prints the height and the first finding of each page, and keeps a picture of its first
screen and one of its first 16,000 pixels. For pictures before and after a change, run it twice,
once with the perfctl of an older commit: ``--perfctl OLD/.venv/bin/perfctl``.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEIGHT_MAX, PICTURE_HEIGHT_MAX = 12_000, 16_000
TAB_STOPS_MAX = 300
NOTE_LENGTH_MAX = 300
PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
QUANTITY = re.compile(
    r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)[ \u00a0]([nµmkMGTP]?(?:Ki|Mi|Gi|Ti)?)"
    r"(s|B|FLOP|FLOP/s|B/s)(?![\w/])"
)
STRANGE_UNIT = re.compile(r"\d[ \u00a0]?(?:[kMGTP]s|[mkMG]%|mB|µB|nB|mFLOP)\b")
LOOK = """() => {
  const visible = node => node.checkVisibility({ visibilityProperty: true });
  const text = node => node.textContent.replace(/\\s+/g, " ").trim();
  // when a launch starts is no quantity of the page's findings
  const isStart = node => {
    if (node.tagName === "DD") return false;
    const header = node.closest("table").querySelectorAll("thead tr:last-child th")[node.cellIndex];
    return header !== undefined && /^start\\b/.test(text(header));
  };
  return {
    height: document.documentElement.scrollHeight,
    stops: [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
      .filter(node => visible(node) && !node.disabled && node.tabIndex >= 0).length,
    notes: [...document.querySelectorAll("p.note")].map(node => node.textContent.trim()),
    first: (([...document.querySelectorAll(".findings li")].filter(visible)[0])?.innerText
      ?? "no finding").trim().split("\\n")[0],
    findings: [...document.querySelectorAll(".findings ol > li")].map(text),
    cells: [...document.querySelectorAll("td, dl.facts dd")]
      .filter(node => !isStart(node)).map(node => `${text(node)}\t${node.title}`),
    all: document.body.innerText.replace(/\\s+/g, " "),
  };
}"""
UNSORTED = """() => {
  const faults = [];
  const size = text => {
    const number = /^[<>≥≤~ ]*([−-]?[\\d,]+(?:\\.\\d+)?)\\s?(Ki|Mi|Gi|Ti|[nµmkMGTP](?=[A-Za-z]))?/;
    const match = number.exec(text);
    if (!match) return null;
    const scale = { n: 1e-9, "µ": 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15,
                    Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };
    return Number(match[1].replaceAll(",", "").replace("−", "-")) * (scale[match[2]] ?? 1);
  };
  for (const table of document.querySelectorAll("table")) {
    const headers = [...table.querySelectorAll("thead tr:last-child th")];
    for (const [place, header] of headers.entries()) {
      const button = header.querySelector("button");
      if (!button) continue;
      button.click();
      const values = [...table.tBodies[0].rows]
        .filter(row => row.cells.length === headers.length)
        .map(row => size(row.cells[place].innerText.trim()));
      const known = values.filter(value => value !== null);
      if (known.length < 3 || known.length < values.length) continue;
      const steps = known.slice(1).map((value, at) => value - known[at]);
      if (steps.every(step => step <= 0) || steps.every(step => step >= 0)) continue;
      faults.push(`${table.caption?.innerText ?? "a table"}: ${header.innerText.trim()}`);
    }
  }
  return faults;
}"""
BROKEN = """() => {
  const faults = [], range = document.createRange();
  for (const header of document.querySelectorAll("th")) {
    if (!header.checkVisibility()) continue;
    const walker = document.createTreeWalker(header, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const match of node.data.matchAll(/[A-Za-zµ]{3,20}/g)) {
        range.setStart(node, match.index);
        range.setEnd(node, match.index + match[0].length);
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        if (tops.size > 1) faults.push(match[0]);
      }
    }
  }
  return faults;
}"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the pages and their screenshots")
    parser.add_argument("--perfctl", type=Path, help="perfctl of another checkout")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright  # tests judge texts without it

    perfctl = [str(arguments.perfctl)] if arguments.perfctl else [sys.executable, "-m", "perfctl"]
    count = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        kept = arguments.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for number, report in enumerate(arguments.reports):
            page = render(perfctl, report, kept / f"{number:03}-{report.name}")
            if page is None:
                print(f"{report}: not read", flush=True)
                continue
            for fault in look(browser, page, is_kept=arguments.keep is not None):
                count += 1
                print(f"{report}: {fault}", flush=True)
        browser.close()
    print(f"{len(arguments.reports)} reports, {count} faults")
    return int(count > 0)


def render(perfctl: list[str], report: Path, name: Path) -> Path | None:
    """Return the page of a report; None if perfctl does not read it."""
    store, page = name.with_suffix(".db"), name.with_suffix(".html")
    read = subprocess.run(
        [*perfctl, "ingest", str(report), "--store", str(store)], capture_output=True
    )
    if not store.exists() and report.suffix == ".db":
        shutil.copyfile(report, store)  # a results database, which ingest refuses
    if not store.exists():
        return None
    subprocess.run(
        [*perfctl, "report", "--store", str(store), "--out", str(page)],
        capture_output=True,
        check=read.returncode == 0,
    )
    return page if page.exists() else None


def look(browser: Any, file: Path, *, is_kept: bool) -> Iterator[str]:
    """Yield the faults of a page."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(file.as_uri())
    seen = page.evaluate(LOOK)
    if is_kept:
        print(f"{file.name}: {seen['height']:,} pixels; {seen['first']}", flush=True)
        page.screenshot(path=file.with_suffix(".png"))
        area = {"x": 0, "y": 0, "width": 1440, "height": min(seen["height"], PICTURE_HEIGHT_MAX)}
        name = file.with_suffix(".whole.png")
        page.screenshot(path=name, full_page=True, clip=area, timeout=300_000)
    if seen["height"] > HEIGHT_MAX:
        yield f"{seen['height']:,} pixels tall"
    if seen["stops"] > TAB_STOPS_MAX:
        yield f"{seen['stops']} tab stops"
    yield from judge_text(seen)
    for column in page.evaluate(UNSORTED):
        yield f"not sorted by value: {column}"
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})
    for word in dict.fromkeys(page.evaluate(BROKEN)):
        yield f"printed header breaks inside of {word!r}"
    page.close()


def judge_text(seen: Any) -> Iterator[str]:
    """Yield the faults of a page's texts: notes, findings and cells of tables, and ``all``."""
    for note in seen["notes"]:
        if len(note) > NOTE_LENGTH_MAX:
            yield f"a note of {len(note)} characters: {note[:60]}..."
    for match in STRANGE_UNIT.finditer(seen["all"]):
        yield f"strange unit: {seen['all'][max(match.start() - 30, 0) : match.end()]}"
    yield from compare_roundings(seen["findings"], seen["cells"])
    yield from compare_shares(seen["findings"])


def read_quantities(text: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield (text, unit, value, one in its last digit) of every number with a unit."""
    for match in QUANTITY.finditer(text):
        number, prefix, unit = match.groups()
        scale = PREFIXES.get(prefix, BINARY.get(prefix, 1))
        last = scale * 10.0 ** -len(number.partition(".")[2])
        yield f"{number} {prefix}{unit}", unit, float(number.replace(",", "")) * scale, last


def compare_roundings(findings: list[str], cells: list[str]) -> Iterator[str]:
    """Yield the values of findings that a table has with another last digit: two roundings of one
    value. A cell is its text, a tab and its title, which has the value with all digits; of cells
    without it, values count that differ by one in the last digit."""
    listed: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for cell in cells:
        shown, _, title = cell.partition("\t")
        exact = {unit: value for _, unit, value, _ in reversed(list(read_quantities(title)))}
        for text, unit, value, _ in read_quantities(shown):
            near = (value, exact[unit], 0.501) if unit in exact else (value, value, 1.5)
            listed.setdefault((unit, text), []).append(near)
    for finding in findings:
        for text, unit, value, last in read_quantities(finding):
            if (unit, text) in listed:
                continue
            for (other_unit, other), values in listed.items():
                if unit == other_unit and any(
                    abs(exact - value) < digits * last
                    and not math.isclose(value, shown)  # 15 and 15.0
                    and not math.isclose(value, exact)  # with all its digits
                    for shown, exact, digits in values
                ):
                    yield f"{text} in a finding ({finding[:70]}...), {other} in a table"
                    break


def compare_shares(findings: list[str]) -> Iterator[str]:
    """Yield the findings whose share of the step is larger than that of one before."""
    smallest = float("inf")
    for finding in findings:
        match = re.search(r"(\d+(?:\.\d+)?)% of (?:the|a|each|its) (?:median )?step", finding)
        if match:
            share = float(match[1])
            if share > smallest + 1:
                yield f"a later finding has the larger share: {finding[:90]}"
            smallest = min(smallest, share)


if __name__ == "__main__":
    sys.exit(main())
