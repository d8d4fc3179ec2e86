"""perfctl gate"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.gate.baseline import FILE
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PartlyDone, Regressed, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.gate.gate import Subject
    from perfctl.orchestrator.compare.gate import Outcome

_LIST = list[str] | None


def gate(
    baseline: Annotated[Path, typer.Argument(help="The committed baseline.")] = FILE,
    update: Annotated[
        bool, typer.Option("--update", help="Write what is now into the baseline.")
    ] = False,
    models: Annotated[
        _LIST,
        typer.Option(
            "--model", help="Hold a model on paper: torchvision:NAME, file.py:factory, as estimate."
        ),
    ] = None,
    runs: Annotated[
        _LIST,
        typer.Option(
            "--runs", help="Hold recorded runs: a store, a sweep, a report, a folder of reports."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the entry, where one is given.")] = None,
    batches: Annotated[str, typer.Option("--batches", "-b", help="Of --model: 16,32,64.")] = "1",
    mode: Annotated[str, typer.Option(help="Of --model: train or infer.")] = "train",
    precision: Annotated[str, typer.Option(help="Of --model, as estimate takes it.")] = "fp32",
    optimizer: Annotated[str | None, typer.Option(help="Of --model, as estimate takes it.")] = None,
    inputs: Annotated[
        _LIST, typer.Option("--input", help="Of --model: shape of one sample, once an input.")
    ] = None,
    seq: Annotated[int | None, typer.Option(help="Of --model: sequence length.")] = None,
    tolerances: Annotated[
        _LIST,
        typer.Option(
            "--tolerance",
            metavar="QUANTITY=5%",
            help="Allow so much more: time=10%, dram_bytes=2%.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a comment of at most 30 lines; - for stdout."),
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations of GitHub Actions too.")
    ] = False,
    memory_limit: options.MemoryLimit = None,
    as_json: options.Json = False,
) -> None:
    """Hold counts, memory and time to a committed baseline: exact ones exactly, time by its spread.

    Exit code 3 when something is worse or changed, 4 when something could not be judged. 1
    multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.actions.estimate_request import Request
    from perfctl.orchestrator.actions.gate import gate as actions

    if as_json and (markdown == "-" or github):
        raise UsageError(
            "--json goes alone to stdout", "Name a file with --markdown, and leave --github out"
        )
    subjects: list[Subject] = []
    for given in models or ():
        request = Request(
            given,
            tuple(inputs or ()),
            mode,
            optimizer,
            memory=True,
            seq=seq,
            precision=precision,
        )
        request.check()
        subjects.append(actions.model(request, options.batch_list(batches)))
    subjects += [actions.runs(given) for given in runs or ()]
    if name is not None:
        if len(subjects) != 1:
            raise UsageError("--name is of one --model or --runs", "Name each in a call of its own")
        subjects = [actions.Subject(name, subjects[0].given)]
    allowed = dict(map(_tolerance, tolerances or ()))
    if update:
        made = actions.update(
            baseline, subjects, tolerances=allowed, messages=console, memory_limit=memory_limit
        )
        held = sum(
            len(values) for entry in made.entries for values in entry.measured.places.values()
        )
        names = ", ".join(entry.name for entry in made.entries)
        console.note(f"Wrote {baseline}: {held:,} quantities of {names}")
        return
    found = actions.gate(
        baseline, subjects, tolerances=allowed, messages=console, memory_limit=memory_limit
    )
    _show(found, baseline, junit, markdown, github, as_json)
    _end(found)


def _tolerance(text: str) -> tuple[str, float]:
    said = re.fullmatch(r"\s*([a-z_]+)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if said is None:
        raise UsageError(
            f"--tolerance: '{text}' is not understood", "Write for instance --tolerance time=10%"
        )
    return said[1], float(said[2]) / 100


def _show(
    found: Sequence[Outcome],
    baseline: Path,
    junit: Path | None,
    markdown: str | None,
    github: bool,
    as_json: bool,
) -> None:
    from perfctl.orchestrator.files import write_text
    from perfctl.orchestrator.report import gate as texts

    if junit is not None:
        write_text(junit, texts.junit(found))
    if markdown not in (None, "-"):
        write_text(Path(str(markdown)), texts.markdown(found))
    if as_json:
        console.as_json(texts.gate_output(found), "gate")
        return
    console.result((texts.markdown(found) if markdown == "-" else texts.text(found)).rstrip("\n"))
    for annotation in texts.github(found, str(baseline)) if github else ():
        console.result(annotation)
    sys.stdout.flush()


def _end(found: Sequence[Outcome]) -> None:
    """Raises what gives the exit code; nothing when all is as it was, or better."""
    from perfctl.orchestrator.report.gate import headline

    said = headline(found)
    if any(one.failed for one in found):
        raise Regressed(said)
    if any(one.undecided for one in found):
        raise PartlyDone(said, "--update takes what is now as the baseline")
    console.note(said)
