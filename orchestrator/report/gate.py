"""What a gate found: text, Markdown of at most 30 lines, JUnit XML, annotations of GitHub, JSON.
FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree  # writes, reads nothing  # nosec B405

from perfctl.orchestrator.compare.gate import (
    BETTER,
    FAILS,
    MEANING,
    MISSING,
    NEW,
    NOT_JUDGED,
    SETUP,
    TIME,
    WORSE,
    Cause,
    Judged,
    Outcome,
    Value,
    causes,
    naming_rank,
)
from perfctl.orchestrator.report.files.documents import markdown_text

SHOWN = 12
"""Causes of an entry in the terminal; JSON and JUnit have all rows."""
_FEW = 3
MARKDOWN_LINES = 30
_VALUES = 80
"""Characters of a value."""


@dataclass(frozen=True, slots=True)
class GateOutput:
    """What a gate found."""

    passed: bool
    headline: str
    entries: Sequence[Outcome]


def headline(outcomes: Sequence[Outcome]) -> str:
    """ "12 of 412 quantities are worse or changed, 81 were not judged; ...", with the one that
    names the cause: see ``NAMING``."""
    rows = [(one, row) for one in outcomes for row in one.rows]
    judged = sum(row.result not in (NEW, MISSING, NOT_JUDGED) for _, row in rows)
    failed = sum(row.result in FAILS for _, row in rows)
    if failed:
        outcome, cause = min(
            ((one, cause) for one in outcomes for cause in causes(one, *FAILS)),
            key=lambda item: naming_rank(item[1].first),
        )
        unjudged = sum(row.result == NOT_JUDGED for _, row in rows)
        of, noun = (
            "" if failed == judged else f" of {judged:,}",
            "quantity" if failed == judged == 1 else "quantities",
        )
        also = f", {unjudged:,} {'was' if unjudged == 1 else 'were'} not judged" if unjudged else ""
        verb = "is" if failed == 1 else "are"
        return (
            f"{failed:,}{of} {noun} {verb} worse or changed{also}; {outcome.entry}: {_said(cause)}"
        )
    problems = [f"{one.entry}: {text}" for one in outcomes for text in one.problems]
    if problems:
        return problems[0]
    missing = [(one, row) for one, row in rows if row.result == MISSING]
    if missing:
        outcome, row = missing[0]
        verb = "is" if len(missing) == 1 else "are"
        return (
            f"{len(missing):,} of the baseline's quantities {verb} not known now; {outcome.entry}: "
            f"{line(row)}"
        )
    better = sum(row.result == BETTER for _, row in rows)
    more = f", {better:,} of them lower" if better else ""
    return (
        f"{judged:,} quantities are as in the baseline{more}"
        if judged
        else "no quantity could be judged"
    )


def _said(cause: Cause) -> str:
    """ "batch 16, conv1 forward, flops: 118 became 236 (+118 FLOP, +100%), of the forward: 900
    became 1,018"."""
    if cause.whole is None or not isinstance(cause.whole.before, int | float):
        return line(cause.first)
    what = cause.whole.key.direction or "step"
    return (
        f"{line(cause.first)}; the whole {what}: {number(cause.whole.before)} became "
        f"{number(cause.whole.after)}"
    )


def line(row: Judged) -> str:
    """ "batch 16, conv1 forward, flops: 118 became 236 (+118 FLOP, +100%)"."""
    where = f"{row.key.name}, {row.quantity}"
    if row.result == NEW:
        return f"{where}: {number(row.after)}, {row.reason}"
    if row.result == MISSING or row.after is None:
        return f"{where}: {row.reason}"
    if row.quantity in (TIME, SETUP) or isinstance(row.before, Mapping | str):
        return f"{where}: {_short(row.reason)}"
    return f"{where}: {number(row.before)} became {number(row.after)}" + (
        f" ({row.reason})" if row.reason else ""
    )


def number(value: Value | None) -> str:
    """A figure as people read it."""
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return f"{value:,.10g}"
    if isinstance(value, tuple):
        return f"{value[-1] / 1e6:,.4g} ms"
    return _short(
        value
        if isinstance(value, str)
        else ", ".join(f"{name} x {count:g}" for name, count in value.items())
    )


def _short(text: str) -> str:
    return text if len(text) <= 2 * _VALUES else f"{text[: 2 * _VALUES - 1]}…"


def text(outcomes: Sequence[Outcome]) -> str:
    """For the terminal: what fails first, then what could not be judged, and one line of sums for
    each entry."""
    return "\n".join(one for outcome in outcomes for one in _entry_lines(outcome))


def _entry_lines(outcome: Outcome) -> Iterator[str]:
    tally = {verdict: len(outcome.of(verdict)) for verdict in MEANING}
    sums = (
        ", ".join(f"{count:,} {verdict}" for verdict, count in tally.items() if count)
        or "nothing judged"
    )
    yield f"{outcome.entry}: {sums}"
    for problem in outcome.problems:
        yield f"  could not be judged: {problem}"
    failed = causes(outcome, *FAILS)
    for cause in failed[:SHOWN]:
        yield f"  {cause.first.result if cause.first.result in FAILS else WORSE}: {_said(cause)}"
        if cause.others:
            yield f"    {_others(cause)}"
    if len(failed) > SHOWN:
        yield f"  and {len(failed) - SHOWN} more quantities"
    for verdict in (MISSING, NOT_JUDGED):
        yield from (f"  {verdict}: {said}" for said in _by_reason(outcome.of(verdict)))
    for verdict in (BETTER, NEW):
        found = causes(outcome, verdict)
        yield from (f"  {verdict}: {_said(cause)}{_more(cause)}" for cause in found[:_FEW])
        if len(found) > _FEW:
            yield f"  {verdict}: and {len(found) - _FEW} more quantities"
    if outcome.differences and (outcome.failed or outcome.undecided):
        yield f"  what else changed: {'; '.join(outcome.differences)}"
    if outcome.notes:
        more = f", and {len(outcome.notes) - 1} more" if len(outcome.notes) > 1 else ""
        yield f"  not held: {_short(outcome.notes[0])}{more}"


def _others(cause: Cause) -> str:
    """ "also at 12 more places: conv2 backward (+100%), fc1 forward (+3%), ..."."""
    named = [
        f"{row.key.name}{'' if row.change is None else f' ({100 * row.change:+.3g}%)'}"
        for row in cause.others
    ]
    several = f"{len(named)} more place{'s' if len(named) > 1 else ''}"
    return f"also at {several}: {', '.join(named[:_FEW])}{', ...' if len(named) > _FEW else ''}"


def _more(cause: Cause) -> str:
    return f", and at {len(cause.others)} more" if cause.others else ""


def _by_reason(rows: Sequence[Judged]) -> Iterator[str]:
    """One line for each reason, with what it is about."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    for row in rows:
        groups.setdefault((row.reason, row.key.study), []).append(row)
    for (said, _), found in groups.items():
        if len(found) == 1:
            yield f"{found[0].key.name}, {found[0].quantity}: {_short(said)}"
            continue
        what = ", ".join(dict.fromkeys(row.quantity for row in found))
        yield (
            f"{len(found):,} quantities of {found[0].key.study or found[0].key.name} "
            f"({_short(what)}): {_short(said)}"
        )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A comment on a pull request: a table of what is not as it was, at most 30 lines."""
    lines = ["### perfctl gate", "", markdown_text(headline(outcomes)), ""]
    rows = [
        (one, cause)
        for some in (FAILS, (MISSING,), (BETTER,), (NEW,))
        for one in outcomes
        for cause in causes(one, *some)
    ]
    facts = [f"{one.entry}: {fact}" for one in outcomes if one.failed for fact in one.differences]
    problems = [
        f"{one.entry} could not be judged: {text}" for one in outcomes for text in one.problems
    ]
    listed = [_short(one) for some in (problems, facts) for one in some[:3]]
    after = ["", *(f"- {markdown_text(one)}" for one in listed)] if listed else []
    after += [
        "",
        "1 multiply-add = 2 FLOPs. `perfctl gate --update` takes the new values as the baseline.",
    ]
    room = MARKDOWN_LINES - len(lines) - len(after) - 2
    if rows:
        lines += ["| | where | baseline | now | |", "|---|---|---|---|---|"]
        shown = rows if len(rows) <= room else rows[: room - 1]
        for one, cause in shown:
            row = cause.first
            said = f"{row.reason}; also at {len(cause.others)} more" if cause.others else row.reason
            where = f"{one.entry}: {row.key.name}, {row.quantity}"
            cells = (row.result, where, number(row.before), number(row.after), said)
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
            root,
            "testsuite",
            name=_xml(outcome.entry),
            tests=str(len(outcome.rows) + len(outcome.problems)),
            failures=str(failed),
            errors=str(errors),
            skipped=str(skipped),
        )
        for problem in outcome.problems:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(outcome.entry), name="measuring"
            )
            ElementTree.SubElement(case, "error", message=_xml(problem))
        for row in outcome.rows:
            name = _xml(f"{row.key.name}, {row.quantity}")
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(outcome.entry), name=name
            )
            kind = (
                "failure"
                if row.result in FAILS
                else {MISSING: "error", NOT_JUDGED: "skipped"}.get(row.result)
            )
            if kind is not None:
                ElementTree.SubElement(case, kind, message=_xml(f"{row.result}: {line(row)}"))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(said: str) -> str:
    """Without characters that XML 1.0 does not allow."""
    return "".join(one if one in "\t\n" or one >= " " else "�" for one in said)


def github(outcomes: Sequence[Outcome], file: str) -> Iterator[str]:
    """Workflow commands of GitHub Actions, at most ten errors: it shows no more of one step."""
    shown = 0
    for outcome in outcomes:
        for title, said in (
            *(
                (f"{outcome.entry}: {cause.first.quantity}", _said(cause))
                for cause in causes(outcome, *FAILS)
            ),
            *((f"{outcome.entry}: could not be judged", problem) for problem in outcome.problems),
            *(
                (f"{outcome.entry}: could not be judged", said)
                for said in _by_reason(outcome.of(MISSING))
            ),
        ):
            if shown == 10:
                return
            shown += 1
            yield f"::error file={_property(file)},title={_property(title)}::{_data(said)}"


def _data(said: str) -> str:
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(said: str) -> str:
    return _data(said).replace(":", "%3A").replace(",", "%2C")


def gate_output(outcomes: Sequence[Outcome]) -> GateOutput:
    """Return the whole."""
    passed = not any(outcome.failed or outcome.undecided for outcome in outcomes)
    return GateOutput(passed, headline(outcomes), outcomes)
