"""The page of a speedup study: no speedup without its spread, and names from reports are data."""

import re
from dataclasses import replace

from perfctl.orchestrator.compare.speedup import (
    AmdahlGain,
    ArmComparison,
    Gain,
    GainKey,
    GainLine,
    NetworkSpeedup,
    TimeToQuality,
)
from perfctl.orchestrator.ledger.arm_figures import EpochFigures, compute_figures_of_newest_run
from perfctl.orchestrator.report.page.page import render_view_as_html
from perfctl.orchestrator.report.speedup import build_speedup_tables, build_speedups_view
from perfctl.orchestrator.report.view import draw_view_on_terminal
from tests.make.synthetic import make_run
from tests.report.outline import printed

HOSTILE = "<script>alert(1)</script>"


def facts(label, *epochs, shortest=9.0):
    unknown = compute_figures_of_newest_run(label, (make_run(),))
    return replace(unknown, step_ns=10.0, step_range=(shortest, 11.0), epochs=epochs)


def study(lines, refused=()):
    epochs = (
        EpochFigures(0, 5.0, 5.0, 1.0, 0.9, 0.5, None),
        EpochFigures(1, 5.0, 10.0, 0.8, 0.7, 0.6, None),
    )
    gain = Gain(2.0, 1.5, 2.5, "10 and 10 steps")
    against = ArmComparison(
        "gpu", refused, (), lines, (AmdahlGain("fc", 0.5, gain, 2.0),) if lines else ()
    )
    reached = (TimeToQuality("accuracy", 0.6, {HOSTILE: 10.0, "gpu": None}),)
    return NetworkSpeedup(
        "net",
        8,
        HOSTILE,
        (facts(HOSTILE, *epochs), facts("gpu", shortest=2.0)),
        (against,),
        reached,
    )


LINES = (
    GainLine(GainKey("step", "step"), 30.0, 10.0, gain=Gain(3.0, 2.5, 3.5, "10 and 10 steps")),
    GainLine(GainKey("phase", "forward"), 20.0, 5.0, reason="one run each, and of 3 steps"),
    GainLine(GainKey("layer", HOSTILE), 20.0, None, reason="on one side only"),
)


def test_a_speedup_stands_with_its_interval_else_the_reason_and_what_was_never_reached_has_no_time():
    (table,) = (one for one in build_speedup_tables(study(LINES)) if one.caption == "Speedup")
    rows = {row[0].text: row for row in table.rows}
    assert [cell.text for cell in rows["step"][3:]] == ["3.00", "2.50 to 3.50"]
    assert [cell.style for cell in rows["forward"][3:]] == ["no", "no"]
    assert rows["forward"][3].title == "one run each, and of 3 steps"
    (table,) = (
        one
        for one in build_speedup_tables(study(LINES))
        if one.caption == "Training time to the same result"
    )
    assert [cell.style for cell in table.rows[0]] == ["", ""]  # a column of dashes is a sentence
    assert any(note.endswith(": never reached.") for note in table.notes)


def test_a_refused_speedup_shows_no_factor_and_says_why():
    found = study((), ("seed differs: cpu has 0, gpu has 1",))
    page = render_view_as_html(build_speedups_view([found], has_charts=True))
    assert "gpu has no speedup: seed differs: cpu has 0, gpu has 1." in page
    assert ">Speedup<" not in page
    assert "Amdahl" not in page


def test_names_are_escaped_and_the_same_study_gives_the_same_bytes():
    page = render_view_as_html(build_speedups_view([study(LINES)], has_charts=True))
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page == render_view_as_html(build_speedups_view([study(LINES)], has_charts=True))
    assert not re.search(r"(?:src|href)=[\"']https?:", page), "the page works offline"


def test_unsteady_steps_are_said_steady_ones_are_not_and_no_heading_is_broken_within_a_word():
    view = build_speedups_view([study(LINES)])
    said = " ".join((*view.notes, *(note for part in view.chapters for note in part.notes)))
    assert "The steps of gpu took between 2.00 ns and 11.0 ns" in said
    assert f"The steps of {HOSTILE}" not in said
    text = printed(list(draw_view_on_terminal(view, 80)))
    assert all(row[0].text in text for row in build_speedup_tables(study(LINES))[0].rows)
