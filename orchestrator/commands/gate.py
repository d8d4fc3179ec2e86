"""Measure each entry of a committed baseline again, and judge what changed. Counts do not jitter,
so most of it needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfctl.orchestrator.actions.baseline import (
    FILE,
    Baseline,
    Entry,
    check_tolerance,
    read,
    text_of,
)
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.commands.declare import (
    Command,
    Events,
    MemoryLimit,
    Option,
    api,
)
from perfctl.orchestrator.compare.gate import Measured, Outcome
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, Regressed, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.options import read_batches
from perfctl.orchestrator.report.gate import GateOutput
from perfctl.orchestrator.report.view import Lines, View

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.estimate_request import Request


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Hold counts, memory and time to a committed baseline: exact ones exactly, time by its spread.

    Exit code 3 when something is worse or changed, 4 when something could not be judged. 1
    multiply-add = 2 FLOPs.

    Raises UsageError if there is no baseline, no entry of a name, or no such quantity; PerfctlError
    for a damaged baseline. What cannot be measured is a problem of its outcome, and raises nothing,
    unless it is to be written.
    """

    baseline: Annotated[Path, Option("The committed baseline.", is_argument=True)] = FILE
    _: KW_ONLY
    update: Annotated[bool, Option("Write what is now into the baseline.")] = False
    models: Annotated[
        Sequence[str],
        Option(
            "Hold a model on paper: torchvision:NAME, file.py:factory, as estimate.",
            names=("--model",),
            metavar="MODEL",
        ),
    ] = ()
    runs: Annotated[
        Sequence[str],
        Option(
            "Hold recorded runs: a store, a sweep, a report, a folder of reports.",
            names=("--runs",),
            metavar="RUNS",
        ),
    ] = ()
    name: Annotated[str | None, Option("Name of the entry, where one is given.")] = None
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Of --model: 16,32,64.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
            typed_default="1",
        ),
    ] = (1,)
    mode: Annotated[str, Option("Of --model: train or infer.")] = "train"
    precision: Annotated[str, Option("Of --model, as estimate takes it.")] = "fp32"
    optimizer: Annotated[str | None, Option("Of --model, as estimate takes it.")] = None
    inputs: Annotated[
        Sequence[str],
        Option(
            "Of --model: shape of one sample, once an input.", names=("--input",), metavar="SHAPE"
        ),
    ] = ()
    seq: Annotated[int | None, Option("Of --model: sequence length.")] = None
    tolerances: Annotated[
        Sequence[str],
        Option(
            "Allow so much more: time=10%, dram_bytes=2%.",
            names=("--tolerance",),
            metavar="QUANTITY=5%",
        ),
    ] = ()
    memory_limit: MemoryLimit = None
    junit: Annotated[Path | None, Option("Write JUnit XML.", "Output")] = None
    markdown: Annotated[
        str | None,
        Option("Write a comment of at most 30 lines; - for stdout.", "Output", metavar="FILE"),
    ] = None
    github: Annotated[bool, Option("Print annotations of GitHub Actions too.", "Output")] = False


@dataclass(frozen=True, slots=True)
class Subject:
    """What a gate holds: a model or recorded runs."""

    name: str
    given: Mapping[str, Any]
    """As the baseline keeps it."""


def model_subject(request: Request, batches: Sequence[int], name: str | None = None) -> Subject:
    """A model at some batch sizes: FLOPs, bytes, operations and memory by formula and trace."""
    plain = {key: value for key, value in asdict(request).items() if value not in (None, (), "")}
    return Subject(
        name or request.model, {"model": plain.pop("model"), "batches": list(batches), **plain}
    )


def runs_subject(side: Path | str, name: str | None = None) -> Subject:
    """Recorded runs: a store, a report or a folder of reports, counted and timed."""
    return Subject(name or Path(str(side)).name, {"runs": str(side)})


@dataclass(frozen=True, slots=True)
class Gated:
    """What a gate found."""

    asked: GateOptions
    outcomes: tuple[Outcome, ...]
    """Empty where the baseline was written in their place."""


def run(asked: GateOptions, events: Events) -> Gated:
    """Judge every entry that was asked for, or write it into the baseline."""
    from perfctl.orchestrator.report import gate as texts

    outcomes = judge_as_asked(asked, events)
    if asked.update:
        return Gated(asked, ())
    if asked.junit is not None:
        write_text(asked.junit, texts.junit(outcomes))
    if asked.markdown not in (None, "-"):
        write_text(Path(str(asked.markdown)), texts.markdown(outcomes))
    return Gated(asked, outcomes)


def judge_as_asked(asked: GateOptions, events: Events) -> tuple[Outcome, ...]:
    """Judge every entry that was asked for. With ``update`` it is written instead, and nothing
    is judged."""
    if asked.update:
        _write_baseline(asked, events)
        return ()
    return judge_entries(
        asked.baseline,
        _subjects(asked),
        tolerances=_tolerances(asked),
        messages=events,
        memory_limit=asked.memory_limit,
    )


def _write_baseline(asked: GateOptions, events: Events) -> None:
    baseline = update(
        asked.baseline,
        _subjects(asked),
        tolerances=_tolerances(asked),
        messages=events,
        memory_limit=asked.memory_limit,
    )
    places = [values for entry in baseline.entries for values in entry.measured.places.values()]
    names = ", ".join(entry.name for entry in baseline.entries)
    events.note(f"Wrote {asked.baseline}: {sum(map(len, places)):,} quantities of {names}")


def _subjects(asked: GateOptions) -> list[Subject]:
    from perfctl.orchestrator.actions.estimate_request import Request

    subjects: list[Subject] = []
    for model in asked.models:
        request = Request(
            model,
            tuple(asked.inputs),
            asked.mode,
            asked.optimizer,
            memory=True,
            seq=asked.seq,
            precision=asked.precision,
        )
        request.check()
        subjects.append(model_subject(request, asked.batches))
    subjects += map(runs_subject, asked.runs)
    if asked.name is None:
        return subjects
    if len(subjects) != 1:
        raise UsageError("`name` is of one --model or --runs", "Name each in a call of its own")
    return [Subject(asked.name, subjects[0].given)]


def _tolerances(asked: GateOptions) -> dict[str, float]:
    tolerances: dict[str, float] = {}
    for text in asked.tolerances:
        match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*", text)
        if match is None:
            raise UsageError(
                f"`tolerances`: '{text}' is not understood", "Write for instance time=10%"
            )
        tolerances[match[1]] = float(match[2]) / 100
    return tolerances


def record(gated: Gated) -> GateOutput | None:
    """Return all quantities that were judged, for programs; None if none was to be judged."""
    from perfctl.orchestrator.report.gate import gate_output

    if gated.asked.markdown == "-" or gated.asked.github:
        raise UsageError(
            "--json goes alone to stdout", "Name a file with `markdown`, and leave `github` out"
        )
    return None if gated.asked.update else gate_output(gated.outcomes)


def view(gated: Gated) -> View | Lines:
    """Return what fails first, and the sums of each entry."""
    from perfctl.orchestrator.report import gate as texts

    asked = gated.asked
    if asked.update:
        return View("")

    def lines() -> Iterator[str]:
        is_comment = asked.markdown == "-"
        text = texts.markdown(gated.outcomes) if is_comment else texts.text(gated.outcomes)
        yield text.rstrip("\n") + "\n"
        for annotation in texts.github(gated.outcomes, str(asked.baseline)) if asked.github else ():
            yield annotation + "\n"

    return Lines(lines(), "the gate", has_names=True)


def check(gated: Gated, events: Events) -> None:
    """Raise what gives the exit code; nothing when all is as it was, or better."""
    from perfctl.orchestrator.report.gate import headline

    if gated.asked.update:
        return
    sentence = headline(gated.outcomes)
    if any(outcome.failed for outcome in gated.outcomes):
        raise Regressed(sentence)
    if any(outcome.undecided for outcome in gated.outcomes):
        raise PartlyDone(sentence, "`update` takes what is now as the baseline")
    events.note(sentence)


def judge_entries(
    baseline: Path | str,
    subjects: Sequence[Subject] = (),
    *,
    tolerances: Mapping[str, float] | None = None,
    messages: Messages = SILENT,
    memory_limit: str | int | None = None,
) -> tuple[Outcome, ...]:
    """Each entry of the baseline against what its subject is now.

    subjects: only the entries of these names, and these in the place of what the baseline says of
        them; none: all entries as they are. tolerances: quantity -> share (0.05 is 5%), before the
        baseline's and those of ``KINDS``.
    memory_limit: how much memory the reading of a report may take.

    Raises UsageError where there is no baseline, no entry of a name, or no such quantity;
    PerfctlError for a damaged baseline. What cannot be measured is a problem of its outcome, and
    raises nothing. Nothing is written.
    """
    from perfctl.orchestrator.compare.gate import judge
    from perfctl.parsers import ReportError

    path = Path(baseline)
    held = read(path)
    chosen = {
        **held.tolerances,
        **{name: check_tolerance(name, share) for name, share in (tolerances or {}).items()},
    }
    known = {entry.name: entry for entry in held.entries}
    for subject in subjects:
        if subject.name not in known:
            names = ", ".join(known) or "nothing"
            raise UsageError(
                f"{path} has no entry '{subject.name}'",
                f"It has {names}; `update` takes a new one in",
            )
    asked = [(known[subject.name], subject.given, Path()) for subject in subjects]
    asked = asked or [(entry, entry.subject, path.parent) for entry in held.entries]
    outcomes = []
    for entry, given, folder in asked:
        try:
            now = measure(given, folder, messages, memory_limit)
        except (PerfctlError, ReportError) as error:
            outcomes.append(Outcome(entry.name, (), problems=(str(error),)))
        else:
            outcomes.append(judge(entry.name, entry.measured, now, chosen))
    return tuple(outcomes)


def update(
    baseline: Path | str,
    subjects: Sequence[Subject] = (),
    *,
    tolerances: Mapping[str, float] | None = None,
    messages: Messages = SILENT,
    memory_limit: str | int | None = None,
) -> Baseline:
    """Measure, and write what is into the baseline: of ``subjects``, else of all its entries. Makes
    the file where there is none.

    Arguments as in :func:`judge_entries`; tolerances are kept in the file. Raises what that
    function raises, and PerfctlError where a subject cannot be measured: the file is then left as
    it was.

    Times of an entry whose other quantities are as they were join the sessions that the baseline
    has, so that it learns how much a time varies; otherwise they begin anew.
    """
    from perfctl.orchestrator.compare.gate import with_sessions

    path = Path(baseline)
    try:
        held = read(path)
    except UsageError:
        if not subjects:
            raise
        held = Baseline()
    chosen = {key: check_tolerance(key, one) for key, one in (tolerances or {}).items()}
    held = replace(held, tolerances={**held.tolerances, **chosen})
    kept = [Subject(one.name, _beside(one.given, path.parent)) for one in subjects]
    for subject in kept or [Subject(entry.name, entry.subject) for entry in held.entries]:
        measured = measure(subject.given, path.parent, messages, memory_limit)
        if not measured.places:
            reasons = (f"{what}: {why}" for what, why in measured.unknown.items())
            problem = f"{subject.name}: nothing is known of it that a gate could hold"
            raise PerfctlError(problem, next(reasons, None))
        older = next((entry.measured for entry in held.entries if entry.name == subject.name), None)
        if older is not None:
            measured = with_sessions(older, measured, held.tolerances)
        held = held.with_entry(Entry(subject.name, subject.given, measured))
    write_text(path, text_of(held))
    return held


def _beside(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a subject with its path as the baseline, in ``folder``, can keep it."""
    subject = dict(given)
    for kind in ("runs", "model"):
        name, colon, rest = str(subject.get(kind, "")), "", ""
        if kind == "model":  # of a file and a factory in it
            name, colon, rest = name.rpartition(":")
        if name and Path(name).exists() and (kind == "runs" or name.endswith(".py")):
            path, home = Path(name).resolve(), folder.resolve()
            path = path.relative_to(home) if path.is_relative_to(home) else path
            subject[kind] = f"{path}{colon}{rest}"
    return subject


def measure(
    given: Mapping[str, Any],
    folder: Path = Path(),
    messages: Messages = SILENT,
    memory_limit: str | int | None = None,
) -> Measured:
    """Return a subject as it is now; paths are relative to ``folder``. Raises PerfctlError and
    ReportError where it cannot be had."""
    from perfctl.orchestrator import memory
    from perfctl.orchestrator.actions.sides import side
    from perfctl.orchestrator.actions.stored_runs import analysed
    from perfctl.orchestrator.actions.tables import DEFAULT
    from perfctl.orchestrator.compare.gate_quantities import of_runs

    if "model" in given:
        return _measure_model(given, folder)
    name = str(given["runs"])
    path = folder / name
    chosen = path if path.exists() else name
    limit = memory.bytes_of(memory_limit)
    return analysed(side(chosen, folder / DEFAULT, messages, limit).runs, of_runs)


def _measure_model(given: Mapping[str, Any], folder: Path) -> Measured:
    from perfctl.orchestrator.actions.estimate import estimate_model
    from perfctl.orchestrator.actions.estimate_request import Request
    from perfctl.orchestrator.compare.gate_quantities import of_model

    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    batches = facts.pop("batches", (1,))
    file, colon, factory = str(facts.get("model", "")).rpartition(":")
    if file.endswith(".py") and (folder / file).exists():
        facts["model"] = f"{folder / file}{colon}{factory}"
    try:
        request = Request(**facts)
    except TypeError as error:
        raise PerfctlError(
            f"the baseline asks for a model in a way that is not known: {error}"
        ) from error
    model = estimate_model(request, batches)
    return replace(of_model(model.batches), problems=model.problems)


COMMAND = Command(GateOptions, run, view, record, has_document=False, check=check)
gate = api(GateOptions, judge_as_asked)
