"""Results of ncu's rules: read alike from CSV, console text and report files, and as an independent
reading has them."""

from __future__ import annotations

from collections import Counter as Tally
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers.ncu.advice import percent, plain


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


@pytest.mark.parametrize("locale", ["C", "en_US.UTF-8", "de_DE.UTF-8"])
def test_a_report_file_and_its_export_by_ncu_give_the_same_rules_in_every_locale(
    reports: Path, locale: str
) -> None:
    pytest.importorskip("ncu_report")
    export = parsers.parse(reports / f"ncu/locale_generated/lashi_profile.details.{locale}.csv")
    report = parsers.parse(reports / "ncu/rep/lashi_profile.ncu-rep")
    assert Tally(report.advice) == Tally(export.advice)
    assert len(list(export.advice)) == 30
