"""What a gate found: text, Markdown of at most 30 lines, JUnit XML, annotations of GitHub, JSON. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from perfctl.orchestrator.analyse.gate.records import (
    BETTER,
    FAILS,
    KINDS,
    MEANING,
    MISSING,
    NEW,
    NOT_JUDGED,
    SAME,
    TIME,
    Judged,
    Outcome,
    Value,
)
from perfctl.orchestrator.report.files.documents import markdown_text

SHOWN = 12
"""Rows of an entry in the terminal; JSON and JUnit have all."""
MARKDOWN_LINES = 30
_VALUES = 80
"""Characters of a value."""


def headline(outcomes: Sequence[Outcome]) -> str:
    """ "3 of 412 quantities are worse or changed", the first of them named."""
    rows = [(one, row) for one in outcomes for row in one.rows]
    failed = [(one, row) for one, row in rows if row.verdict in FAILS]
    judged = sum(row.verdict not in (NEW, MISSING, NOT_JUDGED) for _, row in rows)
    if failed:
        outcome, row = max(failed, key=lambda item: (not item[1].place.layer, abs(item[1].change or 0)))
        named = f"{outcome.entry}: {line(row)}"
        return f"{len(failed)} of {judged:,} quantities {'is' if len(failed) == 1 else 'are'} worse or changed; {named}"
    missing = sum(row.verdict == MISSING for _, row in rows)
    problems = [f"{one.entry}: {text}" for one in outcomes for text in one.problems]
    if problems:
        return problems[0]
    if missing:
        outcome, row = next((one, row) for one, row in rows if row.verdict == MISSING)
        verb = "is" if missing == 1 else "are"
        return f"{missing} of the baseline's quantities {verb} not known now; {outcome.entry}: {line(row)}"
    better = sum(row.verdict == BETTER for _, row in rows)
    more = f", {better} of them lower" if better else ""
    return f"{judged:,} quantities are as in the baseline{more}" if judged else "no quantity could be judged"


def line(row: Judged) -> str:
    """ "batch 16, conv1 forward, flops: 118 became 236 (+118 FLOP, +100 %)"."""
    where = f"{row.place.name}, {row.quantity}"
    if row.verdict in (NEW, MISSING):
        return f"{where}: {row.said}"
    if row.quantity == TIME or isinstance(row.before, Mapping | str):
        return f"{where}: {_short(row.said)}"
    return f"{where}: {number(row.before)} became {number(row.after)}" + (f" ({row.said})" if row.said else "")


def number(value: Value | None) -> str:
    """A figure as people read it."""
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:,.10g}"
    if isinstance(value, tuple):
        return f"{sorted(value)[len(value) // 2] / 1e6:,.4g} ms"
    return _short(
        value if isinstance(value, str) else ", ".join(f"{name} x {count:g}" for name, count in value.items())
    )


def _short(text: str) -> str:
    return text if len(text) <= 2 * _VALUES else f"{text[: 2 * _VALUES - 1]}…"


def text(outcomes: Sequence[Outcome]) -> str:
    """For the terminal: what fails first, then what could not be judged, and one line of sums for each entry."""
    return "\n".join(one for outcome in outcomes for one in _entry_lines(outcome))


def _entry_lines(outcome: Outcome) -> Iterator[str]:
    tally = {verdict: len(outcome.of(verdict)) for verdict in MEANING}
    sums = ", ".join(f"{count:,} {verdict}" for verdict, count in tally.items() if count) or "nothing judged"
    yield f"{outcome.entry}: {sums}"
    for problem in outcome.problems:
        yield f"  could not be judged: {problem}"
    for verdict in (*FAILS, MISSING, BETTER, NEW, NOT_JUDGED):
        rows = sorted(outcome.of(verdict), key=lambda row: (bool(row.place.layer), -abs(row.change or 0)))
        yield from (f"  {verdict}: {line(row)}" for row in rows[:SHOWN])
        if len(rows) > SHOWN:
            yield f"  {verdict}: and {len(rows) - SHOWN} more"
    if outcome.differences and (outcome.failed or outcome.undecided):
        yield f"  what else changed: {'; '.join(outcome.differences)}"
    yield from (f"  not held: {note}" for note in outcome.notes[:SHOWN])


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A comment on a pull request: a table of what is not as it was, at most 30 lines."""
    lines = ["### perfctl gate", "", markdown_text(headline(outcomes)), ""]
    rows = [
        (one, row)
        for verdict in (*FAILS, MISSING, BETTER, NEW)
        for one in outcomes
        for row in sorted(one.of(verdict), key=lambda row: (bool(row.place.layer), -abs(row.change or 0)))
    ]
    said = [f"{one.entry}: {fact}" for one in outcomes if one.failed for fact in one.differences]
    said = said[:3] + ([f"and {len(said) - 3} more"] if len(said) > 3 else [])
    after = ["", *(f"- {markdown_text(fact)}" for fact in said)] if said else []
    after += ["", "1 multiply-add = 2 FLOPs. `perfctl gate --update` takes the new values as the baseline."]
    room = MARKDOWN_LINES - len(lines) - len(after) - 2
    if rows:
        lines += ["| | where | baseline | now | |", "|---|---|---|---|---|"]
        shown = rows if len(rows) <= room else rows[: room - 1]
        for one, row in shown:
            cells = (
                row.verdict,
                f"{one.entry}: {row.place.name}, {row.quantity}",
                number(row.before),
                number(row.after),
                row.said,
            )
            lines.append(f"| {' | '.join(markdown_text(_short(cell)) for cell in cells)} |")
        if len(shown) < len(rows):
            lines.append(f"| | and {len(rows) - len(shown)} more | | | |")
    return "\n".join((*lines, *after)) + "\n"


def junit(outcomes: Sequence[Outcome]) -> str:
    """JUnit XML: a suite for each entry, a case for each quantity."""
    root = ElementTree.Element("testsuites", name="perfctl gate")
    for outcome in outcomes:
        failed = len(outcome.of(*FAILS))
        errors = len(outcome.problems) + len(outcome.of(MISSING))
        skipped = len(outcome.of(NOT_JUDGED))
        suite = ElementTree.SubElement(
            root, "testsuite", name=_xml(outcome.entry), tests=str(len(outcome.rows) + len(outcome.problems)),
            failures=str(failed), errors=str(errors), skipped=str(skipped),
        )  # fmt: skip
        for problem in outcome.problems:
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(outcome.entry), name="measuring")
            ElementTree.SubElement(case, "error", message=_xml(problem))
        for row in outcome.rows:
            name = _xml(f"{row.place.name}, {row.quantity}")
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(outcome.entry), name=name)
            kind = "failure" if row.verdict in FAILS else {MISSING: "error", NOT_JUDGED: "skipped"}.get(row.verdict)
            if kind is not None:
                ElementTree.SubElement(case, kind, message=_xml(f"{row.verdict}: {line(row)}"))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(said: str) -> str:
    """Without characters that XML 1.0 does not allow."""
    return "".join(one if one in "\t\n" or one >= " " else "�" for one in said)


def github(outcomes: Sequence[Outcome], file: str) -> Iterator[str]:
    """Workflow commands of GitHub Actions, at most ten errors: it shows no more of one step."""
    shown = 0
    for outcome in outcomes:
        rows = sorted(outcome.of(*FAILS), key=lambda row: (bool(row.place.layer), -abs(row.change or 0)))
        for title, said in (
            *((f"{outcome.entry}: {row.verdict}", line(row)) for row in rows),
            *((f"{outcome.entry}: could not be judged", problem) for problem in outcome.problems),
        ):
            if shown == 10:
                return
            shown += 1
            yield f"::error file={_property(file)},title={_property(title)}::{_data(said)}"


def _data(said: str) -> str:
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(said: str) -> str:
    return _data(said).replace(":", "%3A").replace(",", "%2C")


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The whole, for --json."""
    return {
        "passed": not any(one.failed or one.undecided for one in outcomes),
        "headline": headline(outcomes),
        "entries": [
            {
                "entry": one.entry, "failed": one.failed, "undecided": one.undecided,
                "problems": list(one.problems), "notes": list(one.notes), "differences": list(one.differences),
                "rows": [
                    {**asdict(row), "place": row.place._asdict(), "unit": KINDS[row.quantity].unit or None}
                    for row in one.rows if row.verdict != SAME
                ],
                "same": len(one.of(SAME)),
            }
            for one in outcomes
        ],
    }  # fmt: skip
