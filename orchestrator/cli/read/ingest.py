"""perfctl ingest"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.progress import reading
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.ingest.context import (
    Ended,
    Event,
    Failed,
    Found,
    Hear,
    Note,
    Started,
    Warned,
)
from perfctl.orchestrator.store.write import Written

_SINGLE = 8
"""Runs of one file that have a line each."""

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.ingest import Ingested


@dataclass(frozen=True, slots=True)
class IngestedRun:
    """One object a run that was read."""

    JSON_INLINED = ("written",)

    path: Path
    """The report."""
    written: Written


class IngestOutput(NamedTuple):
    """The runs that are in the store now."""

    store: Path
    runs: list[IngestedRun]
    """One object a run that was read."""
    failed: tuple[str, ...]
    """What could not be read, and why."""
    empty: tuple[Path, ...]
    """Files without anything to store."""


def ingest(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Report files, and folders and archives that hold some."),
    ] = None,
    files_from: Annotated[
        Path | None,
        typer.Option(
            help="A file with more such paths, one a line; - reads them from standard input."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Batch size, where the file does not say.")
    ] = None,
    batch_pattern: Annotated[
        str | None,
        typer.Option(
            help=(
                "Regular expression for batch sizes in file names: its group is the number, "
                r"'run(\d+)'."
            )
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Name of the workload, where the file does not say."),
    ] = None,
    device_name: Annotated[
        str | None, typer.Option(help="Name of the GPU or CPU, where the file does not say.")
    ] = None,
    mode: options.Mode = None,
    precision: options.Precision = None,
    guess_layers: Annotated[
        bool,
        typer.Option(
            "--guess-layers",
            help=(
                "Where a report has no ranges, guess which layer of --workload launched what, from "
                "order and shape."
            ),
        ),
    ] = False,
    capture: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Kineto trace of the capture of the graphs (CUDA, HIP) that a trace launches: "
                "their kernels get its modules. Or one of the same steps without graphs: modules "
                "are then guessed. Default: what execution_details.json beside a trace names."
            )
        ),
    ] = None,
    source: Annotated[
        bool,
        typer.Option(
            "--source",
            help=(
                "Store what each machine instruction did, too (.ncu-rep): 'perfctl show RUN "
                "--source'."
            ),
        ),
    ] = False,
    no_op_calls: Annotated[
        bool,
        typer.Option(
            "--no-op-calls",
            help="Leave out single operators of Kineto traces, which take 15% more time.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Processes that read at the same time. Default: one a core, for 16 MB or more.",
        ),
    ] = None,
    memory_limit: options.MemoryLimit = None,
    store: options.Store = None,
    again: Annotated[
        bool, typer.Option("--again", help="Take in again what the store has already.")
    ] = False,
    derive: Annotated[
        bool,
        typer.Option(
            "--derive", help="Derive counts and kernel families of the runs in the store anew."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Take in reports made elsewhere, of any profiler that perfctl knows, and run folders.

    nsys: .sqlite, .nsys-rep, .qdrep, .qdstrm, 'nsys stats' as CSV, TSV, JSON or text. ncu: CSV of
    any page, console text, .ncu-rep. DLProf: CSV, JSON, dlprof_dldb.sqlite. PyTorch: Kineto traces,
    plain or gzipped, memory snapshots.
    nvprof: traces and sums. nvidia-smi: queries, tables, dmon, pmon. DCGM: dmon. rocprofv3:
    results.db, CSV, JSON. Proton: .hatchet. A log of several outputs is several runs.

    Each run goes in whole or not at all; a file that cannot be read does not stop the others. Exit
    code 4: some could not be read, or gave no rows.
    """
    # Nothing here multiplies matrices: numpy's threads for that would only spin for a tenth of
    # a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfctl.orchestrator.actions.ingest import ingest as take_in
    from perfctl.orchestrator.ingest.context import UserHints
    from perfctl.orchestrator.ingest.derive import derive_store

    if derive:
        runs = derive_store(store or DEFAULT)
        console.note(f"derived the counts and kernel families of {runs:,} runs anew")
        if not paths and files_from is None:
            return
    paths = [*(paths or ()), *(_listed(files_from) if files_from is not None else ())]
    if not paths:
        raise UsageError(
            "there is nothing to read",
            "Name report files or folders, or a list of them with --files-from",
        )
    if capture is not None and not capture.is_file():
        raise UsageError(f"--capture {capture}: there is no such file", "Check the path")
    hints = UserHints(
        batch,
        workload,
        device_name,
        mode,
        precision,
        source,
        guess_layers,
        batch_pattern,
        not no_op_calls,
        None if capture is None else str(capture.absolute()),
    )
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    with listening_to_reports() as listener:
        done = take_in(
            paths,
            store or DEFAULT,
            hints=hints,
            again=again,
            listener=listener,
            command_line=console.command_line(),
            ask=_ask if can_ask else None,
            jobs=jobs,
            memory_limit=memory_limit,
        )
    _print(done, as_json)
    done.check()


def _listed(file: Path) -> list[Path]:
    """Paths in a file, one a line."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--files-from {file}: cannot be read ({error.strerror})", "Check the path"
        ) from error
    return [Path(os.fsdecode(line)) for line in content.splitlines() if line.strip()]


def _ask(path: Path, sizes: Sequence[int]) -> int:
    """Which of the numbers in the name of a report is its batch size."""
    names = ", ".join(map(str, sizes))
    while True:
        said = typer.prompt(
            f"{console.safe(str(path))}: batch size? ({names})", default=str(sizes[-1]), err=True
        )
        if said.strip().isdecimal() and int(said) > 0:
            return int(said)


@contextmanager
def listening_to_reports() -> Iterator[Hear]:
    """Show on stderr how the reading goes in the block; what hears it."""
    with reading() as progress:

        def show(event: Event) -> None:
            match event:
                case Found(total):
                    progress.total = total
                case Started(path, what):
                    progress.begin(path, what)
                case Ended():
                    progress.end()
                case Note(text):
                    console.note(text)
                case Warned(text):
                    console.warning(text)
                case Failed(text):
                    console.error(text)

        yield show


def _print(done: Ingested, as_json: bool) -> None:
    if as_json:
        runs = [IngestedRun(path, written) for path, written in done.taken]
        console.as_json(IngestOutput(done.store, runs, done.failed, done.empty), "ingest")
        return
    for path, group in groupby(done.taken, key=lambda taken: taken[0]):
        parts = [written for _, written in group]
        for line in (
            [_line(path, written) for written in parts]
            if len(parts) <= _SINGLE
            else [_sum(path, parts)]
        ):
            console.result(line)
    if any(written.new for _, written in done.taken):
        extra = "" if done.store == DEFAULT else f" --store {shlex.quote(str(done.store))}"
        console.result(f"Wrote {done.store}. Next: perfctl report{extra}")


def _counts(written: Written) -> dict[str, int | bool]:
    fields = (
        "run_id",
        "new",
        "kernels",
        "counters",
        "ranges",
        "copies",
        "operations",
        "samples",
        "op_calls",
    )
    return {field: getattr(written, field) for field in fields}


def _sum(path: Path, runs: list[Written]) -> str:
    """One line for a file that holds many runs."""
    totals = {
        name: sum(_counts(run)[name] for run in runs)
        for name in _counts(runs[0])
        if name not in ("run_id", "new")
    }
    held = ", ".join(f"{total:,} {name}" for name, total in totals.items() if total)
    known, wrong = sum(not run.new for run in runs), sum(run.reason is not None for run in runs)
    said = (
        f"{path}: {len(runs)} runs, {runs[0].run_id} to {runs[-1].run_id}: "
        f"{held or 'no kernels, ranges or counters'}"
    )
    said += f"; {known} were in the store already" if known else ""
    return f"{said}; {wrong} partial or failed (perfctl runs says why)" if wrong else said


def _line(path: Path, written: Written) -> str:
    if not written.new:
        return f"{path}: in the store already, as run {written.run_id} (--again takes it in again)"
    counts = _counts(written)
    del counts["run_id"], counts["new"]
    held = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    said = f"{path}: run {written.run_id}: {held or 'no kernels, ranges or counters'}"
    said += (
        ""
        if written.placed is None
        else f"; {floor(written.placed * 1000) / 10:.1f}% of the kernel time has a module"
    )
    return f"{said}; partial: {written.reason}" if written.reason else said
