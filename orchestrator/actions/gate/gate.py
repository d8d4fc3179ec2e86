"""The gate: measure each entry of a committed baseline again, and judge what changed.

``perfctl.gate(baseline)`` is this module's :func:`gate`. Counts do not jitter, so most of it needs
no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.gate.baseline import (
    FILE,
    Baseline,
    Entry,
    check_tolerance,
    read,
    text_of,
)
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.compare.gate import Measured, Outcome
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import write_text

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.estimate_request import Request


@dataclass(frozen=True, slots=True)
class Subject:
    """What a gate holds: a model or recorded runs."""

    name: str
    given: Mapping[str, Any]
    """As the baseline keeps it."""


def model(request: Request, batches: Sequence[int], name: str | None = None) -> Subject:
    """A model at some batch sizes: FLOPs, bytes, operations and memory by formula and trace."""
    plain = {key: value for key, value in asdict(request).items() if value not in (None, (), "")}
    return Subject(
        name or request.model, {"model": plain.pop("model"), "batches": list(batches), **plain}
    )


def runs(side: Path | str, name: str | None = None) -> Subject:
    """Recorded runs: a store, a report or a folder of reports, counted and timed."""
    return Subject(name or Path(str(side)).name, {"runs": str(side)})


def gate(
    baseline: Path | str = FILE,
    subjects: Sequence[Subject] = (),
    *,
    tolerances: Mapping[str, float] | None = None,
    messages: Messages = SILENT,
    memory_limit: str | int | None = None,
) -> tuple[Outcome, ...]:
    """Each entry of the baseline against what its subject is now.

    subjects: only the entries of these names, and these in the place of what the baseline says of
        them; none: all entries as they are. tolerances: quantity -> share (0.05 is 5 %), before the
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
    baseline: Path | str = FILE,
    subjects: Sequence[Subject] = (),
    *,
    tolerances: Mapping[str, float] | None = None,
    messages: Messages = SILENT,
    memory_limit: str | int | None = None,
) -> Baseline:
    """Measure, and write what is into the baseline: of ``subjects``, else of all its entries. Makes
    the file where there is none.

    Arguments as in :func:`gate`; tolerances are kept in the file. Raises what :func:`gate` raises,
    and PerfctlError where a subject cannot be measured: the file is then left as it was.

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
