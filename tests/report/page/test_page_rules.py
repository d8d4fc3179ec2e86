"""Pages of ten reports keep the rules of scripts/proof/pages.py that need no browser."""

import re
from html import unescape
from pathlib import Path

import pytest

import perfctl
from scripts.proof.pages import compare_roundings, judge_text

DATA = Path(__file__).parents[2] / "data"
REPORTS = (
    "recorded-cpu",
    "h100/nsys/b64",
    "kineto-synthetic",
    "kineto/calls",
    "kineto/operators",
    "ncu-wide",
    "dlprof-synthetic",
    "kineto/collectives",
    "rocm",
    "proton",
)


def find_texts(pattern, html):
    """Return the text of each match's group, in one line."""
    bare = (re.sub("<[^>]*>", "", match) for match in re.findall(pattern, html, re.DOTALL))
    return [" ".join(unescape(text).split()) for text in bare]


def find_cells(html):
    """Yield text, tab and title of the cells of tables, also of those of one row, without starts of
    launches, which are no quantity of findings."""
    yield from map(describe_cell, re.findall("<dd\\b.*?</dd>", html, re.DOTALL))
    for table in re.findall("<table.*?</table>", html, re.DOTALL):
        head, _, body = table.partition("</thead>")
        heads = find_texts("<th[^>]*>(.*?)</th>", head.rpartition("<tr")[2])
        for row in body.split("<tr")[1:]:
            for place, cell in enumerate(re.findall("<t[dh]\\b.*?</t[dh]>", row, re.DOTALL)):
                is_start = place < len(heads) and heads[place].startswith("start")
                if cell.startswith("<td") and not is_start:
                    yield describe_cell(cell)


def describe_cell(cell):
    title = re.match('<[^>]*title="([^"]*)"', cell)
    return f"{find_texts('(.*)', cell)[0]}\t{unescape(title[1]) if title else ''}"


@pytest.mark.parametrize(
    ("cell", "faults"),
    [
        ("466 ms\t465,500,000 ns", 1),
        ("466 ms\t465,912,000 ns", 0),
        ("466 ms\t", 1),
        ("465 ms\t465,400,000 ns", 0),
        ("465.0 ms\t465,020,000 ns", 0),
    ],
)
def test_another_last_digit_is_a_fault_unless_the_full_value_is_another(cell, faults):
    assert len(list(compare_roundings(["It takes 465 ms."], [cell]))) == faults


@pytest.mark.parametrize("report", REPORTS)
def test_one_value_a_quantity_known_units_short_notes_and_the_largest_share_first(report, tmp_path):
    store, page = tmp_path / "runs.db", tmp_path / "page.html"
    perfctl.ingest(DATA / report, store)
    perfctl.report(store, page)
    html = re.sub(
        r"<(script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    lists = re.findall('<[a-z]+ class="findings".*?</ol>', html, re.DOTALL)
    seen = {
        "notes": find_texts('<p class="note[^>]*>(.*?)</p>', html),
        "findings": [text for part in lists for text in find_texts("<li[^>]*>(.*?)</li>", part)],
        "cells": list(find_cells(html)),
        "all": " ".join(find_texts("([^<]*<)", html)),
    }
    assert seen["findings"] and seen["all"]
    for group in html.split("<article ")[1:]:
        layers = find_texts('<th scope="rowgroup".*?<b>(.*?)</b>', group)
        for number in re.findall(r"bound of (\d+) layers and passes", group):
            assert int(number) == len(layers) - layers.count("not attributed")
    for chapter in html.split("<section ")[1:]:
        titles = find_texts("<h3[^>]*>(.*?)</h3>", chapter)
        captions = find_texts("<figcaption>([^<]+)", chapter)
        assert not set(titles) & set(captions), "a caption repeats its chapter's title"
    assert list(judge_text(seen)) == []
