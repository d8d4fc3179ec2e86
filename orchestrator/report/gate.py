"""What a gate found: its view, a comment on a pull request, JUnit XML, annotations of GitHub, JSON.
FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
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
    GateOutcome,
    JudgedQuantity,
    Value,
    get_quantity_rank,
    group_rows_by_study_quantity,
)
from perfctl.orchestrator.report.files.documents import write_markdown
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.tables import (
    Cell,
    build_table,
    join_notes,
    missing_cell,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View
from perfctl.redact import neutralize_text

MAX_ROWS = 12
"""Changes in words; JSON and JUnit have all rows."""
MAX_NAMES = 3
MAX_TEXT = 160
"""Characters of a value or reason."""
STYLES = {BETTER: "better", NEW: "news", MISSING: "no", NOT_JUDGED: "no"}


@dataclass(frozen=True, slots=True)
class GateOutput:
    """What a gate found."""

    passed: bool
    headline: str
    entries: Sequence[GateOutcome]


class GateLine(NamedTuple):
    """One change in words, or quantities that could not be judged for one reason."""

    entry: str
    result: str
    where: str
    before: str
    after: str
    reason: str

    @property
    def text(self) -> str:
        """ "batch 16, conv1 forward, flops: 118 became 236 (+118 FLOP, +100%)"."""
        if DASH in (self.before, self.after):
            now = "" if self.after == DASH else f"{self.after}, "
            return f"{self.where}: {now}{self.reason}"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.where}: {self.before} became {self.after}{reason}"


def build_gate_outcomes_output(outcomes: Sequence[GateOutcome]) -> GateOutput:
    """Return the whole."""
    passed = not any(outcome.failed or outcome.undecided for outcome in outcomes)
    return GateOutput(passed, write_gate_headline(outcomes), outcomes)


def write_gate_headline(outcomes: Sequence[GateOutcome]) -> str:
    """Return "12 of 412 quantities are worse or changed, 81 were not judged; ...", with the one
    that names the cause."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    counts = {result: sum(row.result == result for row in rows) for result in MEANING}
    judged = len(rows) - sum(counts[result] for result in (NEW, MISSING, NOT_JUDGED))
    failed, unjudged = sum(counts[result] for result in FAILS), counts[NOT_JUDGED]
    if failed:
        outcome, cause = min(
            (
                (outcome, cause)
                for outcome in outcomes
                for cause in group_rows_by_study_quantity(outcome, *FAILS)
            ),
            key=lambda item: get_quantity_rank(item[1].first),
        )
        total = "" if failed == judged else f" of {judged:,}"
        noun = "quantity" if failed == judged == 1 else "quantities"
        also = f", {unjudged:,} {'was' if unjudged == 1 else 'were'} not judged" if unjudged else ""
        first = f"{outcome.entry}: {_build_quantity_gate_line(outcome.entry, cause.first).text}"
        verb = "is" if failed == 1 else "are"
        return f"{failed:,}{total} {noun} {verb} worse or changed{also}; {first}"
    problems = [f"{outcome.entry}: {text}" for outcome in outcomes for text in outcome.problems]
    missing = [
        line for outcome in outcomes for line in _build_gate_lines_by_cause(outcome, (MISSING,))
    ]
    if problems:
        return problems[0]
    if missing:
        verb = "is" if counts[MISSING] == 1 else "are"
        return (
            f"{counts[MISSING]:,} of the baseline's quantities {verb} unknown now; "
            f"{missing[0].entry}: {missing[0].text}"
        )
    tail = f", {counts[BETTER]:,} of them lower" if counts[BETTER] else ""
    quantities = f"{judged:,} quantities match the baseline{tail}"
    return quantities if judged else "perfctl could not judge any quantity"


def build_gate_outcomes_view(outcomes: Sequence[GateOutcome]) -> View:
    """Return the sums of each entry, then what fails, what is not known, and what is better."""
    sums = []
    for outcome in outcomes:
        tally = {result: len(outcome.select_rows_with_results(result)) for result in MEANING}
        counts = (f"{count:,} {result}" for result, count in tally.items() if count)
        sums.append(f"{outcome.entry}: {', '.join(counts) or 'nothing judged'}")
    lines: dict[tuple[str, ...], GateLine] = {}
    for results in (FAILS, (MISSING,), (NOT_JUDGED,), (BETTER,), (NEW,)):
        for outcome in outcomes:
            for line in _build_gate_lines_by_cause(outcome, results):
                # a new quantity may already be the cause of a sum that is worse
                reason = "" if line.result == NEW else line.reason
                lines.setdefault((line.entry, line.result, line.where, reason), line)
    notes = [
        _cut_text(f"{outcome.entry}: {text}.")
        for outcome in outcomes
        for text in (
            *(f"could not be judged: {problem}" for problem in outcome.problems[:MAX_NAMES]),
            *(f"also changed: {difference}" for difference in outcome.differences[:MAX_NAMES]),
            *(f"not checked: {note}" for note in outcome.notes[:1]),
        )
    ]
    columns = text_columns("entry", "", "where", "baseline", "now", "because")
    rows = [
        (
            line.entry,
            Cell(line.result, style=STYLES.get(line.result, "bad")),
            *(
                missing_cell("not known") if text in ("", DASH) else text_cell(text)
                for text in line[2:]
            ),
        )
        for line in lines.values()
    ]
    # six columns have no room on a terminal
    sentences = [
        (row[1], f"{line.entry}: {line.text}" if len(outcomes) > 1 else line.text)
        for row, line in zip(rows, lines.values(), strict=True)
    ]
    complete, short = (
        tuple(
            filter(
                None,
                [
                    build_table(
                        "",
                        heads,
                        listed,
                        max_rows=MAX_ROWS,
                        has_filter_and_csv=False,
                        explain_empty_columns=False,
                    )
                ],
            )
        )
        for heads, listed in ((columns, rows), (text_columns("", "change"), sentences))
    )
    view = View(sums[0] if sums else "", tuple(sums[1:]), complete, notes=tuple(notes))
    return replace(view, tables=short, document=lambda: view)


def write_pull_request_comment(outcomes: Sequence[GateOutcome]) -> str:
    """Return a comment on a pull request, of at most 30 lines."""
    document = build_gate_outcomes_view(outcomes).document
    assert document is not None
    view = document()
    facts = (write_gate_headline(outcomes), view.title, *view.facts)[: MAX_NAMES + 2]
    note = "1 multiply-add = 2 FLOPs. perfctl gate --update makes the new values the baseline."
    notes = (*view.notes, note)
    return write_markdown(replace(view, title="perfctl gate", facts=facts, notes=notes))


def _build_gate_lines_by_cause(outcome: GateOutcome, results: Sequence[str]) -> Iterator[GateLine]:
    """Yield the causes with these results; of what could not be judged a line for each reason."""
    if results[0] not in (MISSING, NOT_JUDGED):
        for cause in group_rows_by_study_quantity(outcome, *results):
            also = []
            if cause.whole is not None and isinstance(cause.whole.before, int | float):
                before = format_gate_value(cause.whole.before)
                after = format_gate_value(cause.whole.after)
                also.append(
                    f"the complete {cause.whole.key.direction or 'step'}: {before} to {after}"
                )
            changes = [
                row.key._replace(study="").name
                + ("" if row.change is None else f" ({100 * row.change:+.3g}%)")
                for row in cause.others
            ]
            also += [f"also {', '.join(changes[:MAX_NAMES])}"] if changes else []
            also += [f"{len(changes) - MAX_NAMES} more"] if len(changes) > MAX_NAMES else []
            line = _build_quantity_gate_line(outcome.entry, cause.first)
            yield line._replace(reason=join_notes(line.reason, *also))
        return
    groups: dict[tuple[str, str], list[JudgedQuantity]] = {}
    for row in outcome.select_rows_with_results(*results):
        groups.setdefault((row.reason, row.key.study), []).append(row)
    for (_, study), rows in groups.items():
        line = _build_quantity_gate_line(outcome.entry, rows[0])
        if len(rows) > 1:
            names = _cut_text(", ".join(dict.fromkeys(row.quantity for row in rows)))
            location = f"{len(rows):,} quantities of {study or rows[0].key.name} ({names})"
            line = line._replace(where=location)
        yield line._replace(before=DASH, after=DASH)


def _build_quantity_gate_line(entry: str, row: JudgedQuantity) -> GateLine:
    """Return one quantity; its values where the reason does not say them."""
    is_said = row.quantity in (TIME, SETUP) or isinstance(row.before, Mapping | str)
    values = (
        (DASH, DASH) if is_said else (format_gate_value(row.before), format_gate_value(row.after))
    )
    location = f"{row.key.name}, {row.quantity}"
    return GateLine(entry, row.result, location, *values, _cut_text(row.reason))


def format_gate_value(value: Value | None) -> str:
    """Return a figure as people read it."""
    if value is None:
        return DASH
    if isinstance(value, int | float):
        return f"{value:,.10g}"
    if isinstance(value, tuple):
        return f"{value[-1] / 1e6:,.4g} ms"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} x {count:g}" for name, count in value.items())
    return _cut_text(value)


def _cut_text(text: str) -> str:
    return textwrap.shorten(text, MAX_TEXT, placeholder=" …")


def write_junit_xml(outcomes: Sequence[GateOutcome]) -> str:
    """Return JUnit XML: a suite for each entry, a case for each quantity."""
    root = ElementTree.Element("testsuites", name="perfctl gate")
    kinds = dict.fromkeys(FAILS, "failure") | {MISSING: "error", NOT_JUDGED: "skipped"}
    for outcome in outcomes:
        cases = [("measuring", "error", problem) for problem in outcome.problems]
        for row in outcome.rows:
            line = _build_quantity_gate_line(outcome.entry, row)
            cases.append((line.where, kinds.get(row.result, ""), f"{row.result}: {line.text}"))
        entry, kinds_of = neutralize_text(outcome.entry, "xml"), [kind for _, kind, _ in cases]
        counts = {
            "tests": len(cases),
            "failures": kinds_of.count("failure"),
            "errors": kinds_of.count("error"),
            "skipped": kinds_of.count("skipped"),
        }
        facts = {key: str(count) for key, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", {"name": entry, **facts})
        for name, kind, text in cases:
            case = ElementTree.SubElement(
                suite, "testcase", classname=entry, name=neutralize_text(name, "xml")
            )
            if kind:
                ElementTree.SubElement(case, kind, message=neutralize_text(text, "xml"))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")  # it declares the locale's encoding
    return f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n"


def write_github_annotations(outcomes: Sequence[GateOutcome], file: str) -> Iterator[str]:
    """Yield workflow commands of GitHub Actions, at most ten errors: it shows no more of one
    step."""
    errors = []
    for outcome in outcomes:
        lines = [
            *_build_gate_lines_by_cause(outcome, FAILS),
            *_build_gate_lines_by_cause(outcome, (MISSING,)),
        ]
        errors += [(f"{outcome.entry}: {line.result}", line.text) for line in lines]
        errors += [(f"{outcome.entry}: could not be judged", text) for text in outcome.problems]
    data = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    names = data | str.maketrans({":": "%3A", ",": "%2C"})
    for error in errors[:10]:
        title, text = (neutralize_text(part, "github") for part in error)
        properties = f"file={file.translate(names)},title={title.translate(names)}"
        yield f"::error {properties}::{text.translate(data)}"
