"""Results of ncu's rules: read alike from CSV, console text and report files, and as an independent
reading has them."""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.parsers.ncu.advice import percent, plain
from tests.sample import sample


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "see the\n @section:LaunchStats:Launch Statistics@  section",
            "see the Launch Statistics section",
        ),
        ("@url:Guide:https://x.y/a#b@ says", "Guide (https://x.y/a#b) says"),
        ("@source:C:/a b.cu:12:line 12@ and @sass:0x10:there@", "line 12 and there"),
        ("mail a@b and c@d", "mail a@b and c@d"),
        ("@section:broken", "@section:broken"),
    ],
)
def test_links_in_a_text_read_as_ncu_prints_them(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_percentage_has_a_point_or_a_comma() -> None:
    assert [percent(text) for text in ("47.2", "4,206", "100", "", "1,2,3", "nan%")] == [
        47.2,
        4.206,
        100,
        None,
        None,
        None,
    ]


Said = tuple[str, str, float | None]
"""Kind, text without blanks, speed-up in percent."""


def by_csv(path: Path) -> Iterator[Said]:
    """Rule rows, by Python's csv module and the names of the columns."""
    rows = list(
        csv.reader(
            text
            for text in path.read_text(errors="replace").splitlines(True)
            if text.startswith('"')
        )
    )
    header = rows[0]
    for row in rows[1:]:
        cells = dict(zip(header, row, strict=False))
        if cells.get("Rule Name"):
            share = cells.get("Estimated Speedup")
            yield (
                cells["Rule Type"],
                "".join(cells["Rule Description"].split()),
                float(share) if share else None,
            )


def by_text(path: Path) -> Iterator[Said]:
    """Blocks of the console text, by a regular expression over the whole of it."""
    blocks = re.findall(
        r"^ {4}([A-Z]{3}) {1,3}(.+(?:\n {10,11}\S.*)*)",
        path.read_text(errors="replace"),
        re.MULTILINE,
    )
    for kind, block in blocks:
        words = " ".join(block.split())
        found = re.match(r"Est[a-z]*\.? (?:Local )?Speedup: (\S+)% (.*)", words)
        text, share = (found[2], float(found[1])) if found else (words, None)
        yield kind, "".join(text.split()), share


def by_package(path: Path) -> Iterator[Said]:
    """The package's own dictionaries of all rules, links taken out."""
    import ncu_report

    context = ncu_report.load_report(str(path))
    kinds = {"OK": "INF", "OPTIMIZATION": "OPT", "WARNING": "WRN", "ERROR": "ERR", "NONE": ""}
    for part in map(context.range_by_idx, range(context.num_ranges())):
        for action in map(part.action_by_idx, range(part.num_actions())):
            for rule in action.rule_results_as_dicts():
                if (message := rule.get("rule_message")) and message["message"]:
                    text = re.sub(r"@section:\w+:(.*?)@", r"\1", message["message"])
                    text = re.sub(r"@url:(.*?):(http.*?)@", r"\1 (\2)", text)
                    share = (rule.get("speedup_estimation") or {}).get("speedup")
                    yield (
                        kinds[ncu_report.MsgType(message["type"]).name],
                        "".join(text.split()),
                        share,
                    )


def test_rules_of_every_real_report_agree_with_another_reading(reports: Path) -> None:
    pytest.importorskip("ncu_report")
    results = 0
    for path in sample(sorted((reports / "ncu").rglob("*.*")), 3):
        own = (
            by_csv
            if path.suffix in (".csv", ".log")
            else by_text
            if path.suffix == ".txt"
            else by_package
        )
        try:
            found = list(parsers.parse(path).advice)
        except ReportError:
            continue  # no launch in it
        mine = Tally(
            (one.kind or "", "".join((one.text or "").split()), one.estimated_speedup)
            for one in found
        )
        others = ((kind, "".join(plain(text).split()), share) for kind, text, share in own(path))
        expected = Tally(
            (kind, text, None if share is None else round(share / 100, 12))
            for kind, text, share in others
        )
        assert mine == expected, path
        results += len(found)
    assert results > 100


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8", "de_DE.UTF-8"])
def test_a_report_file_and_its_export_by_ncu_give_the_same_rules_in_every_locale(
    reports: Path, locale: str
) -> None:
    pytest.importorskip("ncu_report")
    export = parsers.parse(reports / f"ncu/locale_generated/lashi_profile.details.{locale}.csv")
    report = parsers.parse(reports / "ncu/rep/lashi_profile.ncu-rep")
    assert Tally(report.advice) == Tally(export.advice)
    assert len(list(export.advice)) == 30
