"""Exercises for a class: write a student's sheet, and mark sheets that were filled in."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from perfctl.orchestrator.commands.declare import Command, Events, Force, Group, Option
from perfctl.orchestrator.counts.hardware.machines import DeviceError, find_device
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.estimate.exercise import (
    TOPICS,
    AnswerMark,
    Exercise,
    GpuPeaks,
    RecordedRow,
    create_random_for_student,
    format_exercise_sheet,
    generate_student_exercise,
    mark_answers,
    parse_filled_sheet,
)
from perfctl.orchestrator.files import raise_if_output_not_replaceable, write_text
from perfctl.orchestrator.report.tables import Table, build_table, text_columns
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.stored_runs import load_latest_runs_per_configuration
from perfctl.redact import neutralize_text

CHOICES = 4
"""Causes that a sheet offers."""
OTHER_CAUSES = ("tile padding", "recomputation", "split-K", "causal mask")
"""Wrong choices: none fits a ratio that Winograd or FFT explains."""
STORE = Annotated[
    Path | None,
    Option("Results database: also ask for the cause of a recorded executed count."),
]


@dataclass(frozen=True, slots=True)
class NewSheetOptions:
    """Write an exercise sheet about a layer whose sizes follow from the student's name.

    The questions go from the output shape to the bound on the GPU. The sheet has no solutions.

    Raises UsageError for another topic or GPU, and if the sheet exists; ToolMissing without torch.
    """

    name: Annotated[str, Option("Name of the student.", names=("--for",), metavar="NAME")]
    _: KW_ONLY
    topic: Annotated[str, Option(f"Topic: {', '.join(TOPICS)}.")] = "conv"
    gpu: Annotated[str, Option("GPU whose bound is asked for.")] = "V100"
    store: STORE = None
    out: Annotated[Path, Option("Sheet to write.", "Output")] = Path("sheet.md")
    force: Force = False


@dataclass(frozen=True, slots=True)
class CheckSheetsOptions:
    """Mark sheets, and name the probable mistake of each wrong answer.

    Raises UsageError without a sheet, PerfctlError if none can be read, ToolMissing without torch.
    """

    sheets: Annotated[Sequence[Path], Option("Sheets with answers.", is_argument=True)] = ()
    _: KW_ONLY
    store: STORE = None
    key: Annotated[bool, Option("Print the solutions instead of marks.")] = False
    out: Annotated[Path | None, Option("CSV file of marks to write.", "Output")] = None
    force: Force = False


@dataclass(frozen=True, slots=True)
class WrittenSheet:
    """A sheet that was written."""

    path: Path
    questions: int


@dataclass(frozen=True, slots=True)
class MarkedSheet:
    """A sheet with its marks."""

    JSON_KEYS: ClassVar = ("path", "name", "topic", "marks", "solutions")

    path: Path
    name: str
    topic: str
    marks: tuple[AnswerMark, ...]
    exercise: Exercise

    @property
    def solutions(self) -> tuple[str, ...]:
        """The solution of each question."""
        return tuple(question.solution for question in self.exercise.questions)


@dataclass(frozen=True, slots=True)
class MarkedClass:
    """All sheets, and what could not be read."""

    JSON_KEYS: ClassVar = ("sheets", "failed")

    sheets: tuple[MarkedSheet, ...]
    failed: tuple[str, ...]
    is_key: bool
    out: Path | None

    def check(self) -> None:
        """Raise PartlyDone if a sheet could not be marked."""
        if self.failed:
            total = len(self.failed) + len(self.sheets)
            raise PartlyDone(f"{len(self.failed)} of {total} sheets could not be marked")


def write_exercise_sheet(options: NewSheetOptions, events: Events) -> WrittenSheet:
    """Draw the exercise and write the sheet."""
    raise_if_output_not_replaceable(options.out, force=options.force)
    recorded = None
    if options.store is not None:
        rows = _find_rows_with_single_cause(options.store)
        key = create_random_for_student(options.name, "recorded").choice(sorted(rows))
        recorded = rows[key]
    exercise = generate_student_exercise(
        options.name, options.topic, _find_fp32_roof(options.gpu), recorded
    )
    write_text(options.out, format_exercise_sheet(exercise), force=options.force)
    return WrittenSheet(options.out, len(exercise.questions))


def mark_exercise_sheets(options: CheckSheetsOptions, events: Events) -> MarkedClass:
    """Mark every sheet, and write the table of marks."""
    if not options.sheets:
        raise UsageError("no sheet was named", "Name sheets that 'perfctl exercise new' wrote")
    if options.out is not None:
        raise_if_output_not_replaceable(options.out, force=options.force)
    rows = _find_rows_with_single_cause(options.store) if options.store is not None else {}
    marked, failed = [], []
    for path in options.sheets:
        try:
            filled = parse_filled_sheet(path.read_text(encoding="utf-8"))
            recorded = rows[filled.row] if filled.row else None
            roof = _find_fp32_roof(filled.gpu) if filled.gpu else None
            exercise = generate_student_exercise(filled.name, filled.topic, roof, recorded)
            marks = tuple(mark_answers(exercise, filled.answers))
            marked.append(MarkedSheet(path, filled.name, filled.topic, marks, exercise))
        except KeyError:
            failed.append(f"{path}: it asks about a recorded run. Name its database with `store`")
        except (OSError, ValueError, UsageError) as error:
            failed.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    for text in failed:
        events.error(text)
    if not marked:
        raise PerfctlError("no sheet could be marked")
    if options.out is not None:
        write_text(options.out, _format_marks_csv(marked), force=options.force)
    return MarkedClass(tuple(marked), tuple(failed), options.key, options.out)


def _find_fp32_roof(gpu: str) -> GpuPeaks:
    """Return the published fp32 peak and bandwidth. Raises UsageError for an unknown GPU."""
    try:
        machine = find_device(gpu).machine
    except DeviceError as error:
        raise UsageError(str(error).replace("`device`", "`gpu`"), error.remedy) from error
    return GpuPeaks(machine.name, machine.flops_per_second["fp32"], machine.bytes_per_second)


def _find_rows_with_single_cause(store: Path) -> dict[str, RecordedRow]:
    """Return the rows of a ledger of which one certain cause explains the ratio, by name. Raises
    PerfctlError if there are none."""
    from perfctl.orchestrator.commands.export import compute_ledger_rows

    rows = {}
    for row in compute_ledger_rows(load_latest_runs_per_configuration(store)):
        causes = [cause for cause in row["causes"] if cause["rule"] != "constant moves"]
        if not row.get("ratio") or abs(row["ratio"] - 1) < 0.02 or len(causes) != 1:
            continue
        if causes[0]["confidence"] not in ("observed", "predicted and matched"):
            continue
        rule, layer = causes[0]["rule"], row["layer"].replace("|", "/")
        key = f"{layer}, {row['direction']}, batch {row['batch']}"
        wrong_choices = [cause for cause in OTHER_CAUSES if cause != rule]
        text = (
            f"Recorded: {layer} {row['direction']} at batch {row['batch']} executed "
            f"{row['executed_flops']:,.0f} FLOP; the estimate is {row['estimated_flops']:,.0f}."
        )
        rows[key] = RecordedRow(key, text, (rule, *wrong_choices[: CHOICES - 1]))
    if not rows:
        raise PerfctlError(
            f"{store}: no row has an executed count with one certain cause", "Omit `store`"
        )
    return rows


def _format_marks_csv(sheets: Sequence[MarkedSheet]) -> str:
    """Return one line a sheet: the numbers of marks, and the mark of each question."""
    most = max(len(sheet.marks) for sheet in sheets)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"question {number}" for number in range(1, most + 1)]
    writer.writerow(["name", "topic", "sheet", "right", "questions", *numbers])
    for sheet in sheets:
        marks = [marked.mark for marked in sheet.marks]
        counts = [marks.count("right") + marks.count("other unit"), len(marks)]
        writer.writerow(
            [neutralize_text(sheet.name, "csv"), sheet.topic, sheet.path, *counts, *marks]
        )
    return text.getvalue()


def build_sheet_view(written: WrittenSheet) -> View:
    """Return what was written and what comes next."""
    return View(
        f"Wrote {written.path} ({written.questions} questions)",
        lines=(f"Next: fill in the answers, then perfctl exercise check {written.path}",),
    )


def build_marks_view(marked: MarkedClass) -> View:
    """Return the marks of a class and what was wrong, or the solutions."""
    if marked.is_key:
        return View(
            "", tables=tuple(_build_solution_or_mistake_tables(marked.sheets, shows_solutions=True))
        )
    rows = []
    for sheet in marked.sheets:
        marks = Counter(mark.mark for mark in sheet.marks)
        counts = [str(marks[name]) for name in ("right", "other unit", "wrong", "missing")]
        rows.append((sheet.name, sheet.topic, *counts))
    columns = text_columns("name", "topic", "right", "other unit", "wrong", "missing")
    of_class = build_table("", columns, rows, max_rows=len(rows), keep_empty_columns=True)
    tables = [of_class] if of_class else []
    return View(
        "Marks",
        tables=(*tables, *_build_solution_or_mistake_tables(marked.sheets, shows_solutions=False)),
        lines=(f"Wrote {marked.out}",) if marked.out else (),
    )


def _build_solution_or_mistake_tables(
    sheets: Sequence[MarkedSheet], *, shows_solutions: bool
) -> Iterator[Table]:
    """Yield a table for each sheet: the solutions, or the answers that are not right."""
    for sheet in sheets:
        rows: list[tuple[Any, ...]] = []
        for marked, question in zip(sheet.marks, sheet.exercise.questions, strict=True):
            if shows_solutions:
                rows.append((str(marked.question), question.solution, question.derivation))
            elif marked.mark not in ("right", "missing"):
                rows.append((str(marked.question), marked.answer, marked.comment))
        columns = text_columns(
            "", *(("solution", "derivation") if shows_solutions else ("answer", "mark"))
        )
        if of_sheet := build_table(
            f"{sheet.name}, {sheet.topic}", columns, rows, max_rows=len(rows)
        ):
            yield of_sheet


GROUP = Group(
    "Write exercise sheets for a class, and mark them.",
    {
        "new": Command(NewSheetOptions, write_exercise_sheet, build_sheet_view, has_document=False),
        "check": Command(CheckSheetsOptions, mark_exercise_sheets, build_marks_view),
    },
)
