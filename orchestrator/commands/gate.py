"""Measure each entry of a committed baseline again, and judge what changed. Counts do not jitter,
so most of it needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from perfctl.orchestrator import memory
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    MemoryLimit,
    Option,
    make_api_function,
)
from perfctl.orchestrator.compare.baseline import (
    FILE,
    Baseline,
    BaselineEntry,
    format_baseline,
    read_baseline,
    validate_quantity_tolerance,
)
from perfctl.orchestrator.compare.gate import (
    GateOutcome,
    MeasuredQuantities,
    append_new_session_if_unchanged,
    judge_against_baseline,
)
from perfctl.orchestrator.compare.gate_quantities import (
    collect_model_quantities,
    collect_run_quantities,
)
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, Regressed, UsageError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.options import parse_batch_sizes
from perfctl.orchestrator.report.gate import (
    GateOutput,
    build_gate_outcomes_output,
    build_gate_outcomes_view,
    write_gate_headline,
    write_github_annotations,
    write_junit_xml,
    write_pull_request_comment,
)
from perfctl.orchestrator.report.view import RawLines, View
from perfctl.orchestrator.sides import load_comparison_side
from perfctl.orchestrator.stored_runs import run_work_without_failing_runs
from perfctl.parsers import ReportError
from perfctl.redact import neutralize_text


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Compare FLOPs, memory and time with a committed baseline: exact values exactly, time by its
    spread.

    Exit code 3 if a value is worse or changed, 4 if a value could not be tested. 1 multiply-add = 2
    FLOPs.

    Raises UsageError if there is no baseline, no entry of a name, or no such quantity; PerfctlError
    for a damaged baseline. A value that cannot be measured is a problem in the outcome; with
    ``update`` it is an error.
    """

    baseline: Annotated[Path, Option("Baseline file to compare with.", is_argument=True)] = FILE
    _: KW_ONLY
    update: Annotated[bool, Option("Write the current values into the baseline.")] = False
    models: Annotated[
        Sequence[str],
        Option(
            "Check the estimates of a model: torchvision:NAME, file.py:factory, as in estimate.",
            names=("--model",),
            metavar="MODEL",
        ),
    ] = ()
    runs: Annotated[
        Sequence[str],
        Option(
            "Check recorded runs: a database, a sweep, a report or a folder of reports.",
            names=("--runs",),
            metavar="RUNS",
        ),
    ] = ()
    name: Annotated[
        str | None, Option("Name of the baseline entry, for one --model or --runs.")
    ] = None
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes of --model: 16,32,64.",
            metavar="LIST",
            parse=parse_batch_sizes,
            typed_default="1",
        ),
    ] = (1,)
    mode: Annotated[str, Option("Mode of --model: train or infer.")] = "train"
    precision: Annotated[str, Option("Data type of --model, as in estimate.")] = "fp32"
    optimizer: Annotated[str | None, Option("Optimizer of --model, as in estimate.")] = None
    inputs: Annotated[
        Sequence[str],
        Option(
            "Shape of one sample of --model, once per input.", names=("--input",), metavar="SHAPE"
        ),
    ] = ()
    seq: Annotated[int | None, Option("Sequence length of --model.")] = None
    tolerances: Annotated[
        Sequence[str],
        Option(
            "Allow increases up to this percentage: time=10%, dram_bytes=2%.",
            names=("--tolerance",),
            metavar="QUANTITY=5%",
        ),
    ] = ()
    memory_limit: MemoryLimit = None
    junit: Annotated[Path | None, Option("Write a JUnit XML file.", "Output")] = None
    markdown: Annotated[
        str | None,
        Option(
            "Write a Markdown comment of at most 30 lines; - for standard output.",
            "Output",
            metavar="FILE",
        ),
    ] = None
    force: Force = False
    github: Annotated[bool, Option("Also print GitHub Actions annotations.", "Output")] = False


class GateSubject(NamedTuple):
    """What a gate holds: a model or recorded runs."""

    name: str
    given: Mapping[str, Any]
    """As the baseline keeps it."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate found."""

    options: GateOptions
    outcomes: tuple[GateOutcome, ...]
    """Empty where the baseline was written in their place."""


def judge_or_update_baseline(options: GateOptions, events: Events) -> GateResult:
    """Judge every entry that was asked for, or write it into the baseline."""

    outcomes = judge_baseline_entries(options, events)
    if options.update:
        return GateResult(options, ())
    if options.junit is not None:
        write_text(options.junit, write_junit_xml(outcomes), force=options.force)
    if options.markdown not in (None, "-"):
        write_text(
            Path(str(options.markdown)), write_pull_request_comment(outcomes), force=options.force
        )
    return GateResult(options, outcomes)


def judge_baseline_entries(options: GateOptions, events: Events) -> tuple[GateOutcome, ...]:
    """Return each entry of the baseline against what its subject is now; with subjects, only the
    entries of their names, against these. With ``update`` the baseline is written instead."""

    subjects, tolerances = _list_requested_models_and_runs(options), _parse_tolerances(options)
    if options.update:
        _update_baseline(options, subjects, tolerances, events)
        return ()
    baseline = read_baseline(options.baseline)
    entries = {entry.name: entry for entry in baseline.entries}
    for subject in subjects:
        if subject.name not in entries:
            names = ", ".join(entries) or "nothing"
            raise UsageError(
                f"{options.baseline} has no entry '{subject.name}'",
                f"It has {names}. Add an entry with `update`",
            )
    folder = Path() if subjects else options.baseline.parent
    outcomes = []
    for subject in subjects or [
        GateSubject(entry.name, entry.subject) for entry in baseline.entries
    ]:
        try:
            now = collect_model_or_run_quantities(
                subject.given, folder, events, options.memory_limit
            )
        except (PerfctlError, ReportError) as error:
            outcomes.append(GateOutcome(subject.name, (), problems=(str(error),)))
        else:
            before = entries[subject.name].measured
            outcomes.append(
                judge_against_baseline(
                    subject.name, before, now, {**baseline.tolerances, **tolerances}
                )
            )
    return tuple(outcomes)


def _update_baseline(
    options: GateOptions,
    subjects: Sequence[GateSubject],
    tolerances: Mapping[str, float],
    events: Events,
) -> None:
    """Measure, and write what is into the baseline: of the subjects, else of all its entries. Where
    a subject cannot be measured, PerfctlError is raised and the file left as it was.

    Times of an entry whose other quantities are as they were join the sessions that the baseline
    has, so that it learns how much a time varies; otherwise they begin anew.
    """

    folder = options.baseline.parent
    baseline = (
        read_baseline(options.baseline) if not subjects or options.baseline.exists() else Baseline()
    )
    baseline = replace(baseline, tolerances={**baseline.tolerances, **tolerances})
    beside = [
        GateSubject(subject.name, _make_path_relative_to_baseline(subject.given, folder))
        for subject in subjects
    ]
    for name, facts in beside or [
        GateSubject(entry.name, entry.subject) for entry in baseline.entries
    ]:
        measured = collect_model_or_run_quantities(facts, folder, events, options.memory_limit)
        if not measured.places:
            reasons = (f"{quantity}: {reason}" for quantity, reason in measured.unknown.items())
            problem = f"{name}: no quantity is known that the gate could check"
            raise PerfctlError(problem, next(reasons, None))
        older = next((entry.measured for entry in baseline.entries if entry.name == name), None)
        if older is not None:
            measured = append_new_session_if_unchanged(older, measured, baseline.tolerances)
        baseline = baseline.add_or_replace_entry(BaselineEntry(name, facts, measured))
    write_text(options.baseline, format_baseline(baseline))
    places = [values for entry in baseline.entries for values in entry.measured.places.values()]
    names = ", ".join(entry.name for entry in baseline.entries)
    events.note(f"Wrote {options.baseline}: {sum(map(len, places)):,} quantities of {names}")


def _list_requested_models_and_runs(options: GateOptions) -> list[GateSubject]:

    subjects: list[GateSubject] = []
    for model in options.models:
        request = Request(
            model,
            tuple(options.inputs),
            options.mode,
            options.optimizer,
            memory=True,
            seq=options.seq,
            precision=options.precision,
        )
        request.check()
        facts = {
            key: value for key, value in asdict(request).items() if value not in (None, (), "")
        }
        subjects.append(GateSubject(model, facts | {"batches": list(options.batches)}))
    subjects += [GateSubject(Path(runs).name, {"runs": runs}) for runs in options.runs]
    if options.name is None:
        return subjects
    if len(subjects) != 1:
        raise UsageError(
            "`name` needs exactly one `models` or `runs`", "Name each of them in a separate call"
        )
    return [GateSubject(options.name, subjects[0].given)]


def _parse_tolerances(options: GateOptions) -> dict[str, float]:
    tolerances: dict[str, float] = {}
    for text in options.tolerances:
        match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*", text)
        if match is None:
            raise UsageError(
                f"invalid value '{text}' for `tolerances`", "Use NAME=PERCENT, for example time=10%"
            )
        tolerances[match[1]] = validate_quantity_tolerance(match[1], float(match[2]) / 100)
    return tolerances


def build_gate_output(gated: GateResult) -> GateOutput | None:
    """Return all quantities that were judged, for programs; None if none was to be judged."""

    if gated.options.markdown == "-" or gated.options.github:
        raise UsageError(
            "--json must be the only output on standard output",
            "Set `markdown` to a file, and omit `github`",
        )
    return None if gated.options.update else build_gate_outcomes_output(gated.outcomes)


def build_gate_view(gated: GateResult) -> View | RawLines:
    """Return what fails first, below the sums of each entry; the comment and annotations of GitHub
    as they are."""

    options = gated.options
    if options.update:
        return View("")
    if options.markdown != "-" and not options.github:
        return build_gate_outcomes_view(gated.outcomes)
    lines = [write_pull_request_comment(gated.outcomes)]
    if options.github:
        lines = [neutralize_text(lines[0], "github")]
        lines += [
            f"{line}\n" for line in write_github_annotations(gated.outcomes, str(options.baseline))
        ]
    return RawLines(lines, "`github`" if options.github else "`markdown` -", has_names=True)


def raise_if_regressed_or_undecided(gated: GateResult, events: Events) -> None:
    """Raise what gives the exit code; nothing when all is as it was, or better."""

    if gated.options.update:
        return
    sentence = write_gate_headline(gated.outcomes)
    if any(outcome.failed for outcome in gated.outcomes):
        raise Regressed(sentence)
    if any(outcome.undecided for outcome in gated.outcomes):
        raise PartlyDone(
            sentence, "Run the command with `update` to accept the current values as the baseline"
        )
    events.note(sentence)


def _make_path_relative_to_baseline(facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a subject with its path as the baseline, in ``folder``, can keep it."""
    subject = dict(facts)
    for kind in ("runs", "model"):
        name, colon, factory = str(subject.get(kind, "")), "", ""
        if kind == "model":  # of a file and a factory in it
            name, colon, factory = name.rpartition(":")
        if name and Path(name).exists() and (kind == "runs" or name.endswith(".py")):
            path, home = Path(name).resolve(), folder.resolve()
            path = path.relative_to(home) if path.is_relative_to(home) else path
            subject[kind] = f"{path}{colon}{factory}"
    return subject


def collect_model_or_run_quantities(
    facts: Mapping[str, Any],
    folder: Path = Path(),
    events: Events = SILENT,
    memory_limit: str | int | None = None,
) -> MeasuredQuantities:
    """Return a subject as it is now; paths are relative to ``folder``. Raises PerfctlError and
    ReportError where it cannot be had."""

    if "model" in facts:
        return _estimate_model_quantities(facts, folder)
    name = str(facts["runs"])
    path = folder / name
    chosen = path if path.exists() else name
    limit = memory.parse_memory_limit(memory_limit)
    return run_work_without_failing_runs(
        load_comparison_side(chosen, folder / DEFAULT_STORE, events, limit).runs,
        collect_run_quantities,
    )


def _estimate_model_quantities(subject: Mapping[str, Any], folder: Path) -> MeasuredQuantities:

    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in subject.items()
    }
    batches = facts.pop("batches", (1,))
    file, colon, factory = str(facts.get("model", "")).rpartition(":")
    if file.endswith(".py") and (folder / file).exists():
        facts["model"] = f"{folder / file}{colon}{factory}"
    try:
        request = Request(**facts)
    except TypeError as error:
        raise PerfctlError(f"the baseline describes a model in an unknown way: {error}") from error
    model = estimate_model_for_batches(request, batches)
    return replace(collect_model_quantities(model.batches), problems=model.problems)


COMMAND = Command(
    GateOptions,
    judge_or_update_baseline,
    build_gate_view,
    build_gate_output,
    check=raise_if_regressed_or_undecided,
)
gate = make_api_function(GateOptions, judge_baseline_entries)
