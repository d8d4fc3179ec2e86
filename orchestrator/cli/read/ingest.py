"""perfctl ingest"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.progress import ReadProgress, reading

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.ingest.ingest import Ingested
    from perfctl.orchestrator.store.write import Written


def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Report files, or folders that hold some.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size, where the file does not say.")] = None,
    workload: Annotated[str | None, typer.Option(help="Name of the workload, where the file does not say.")] = None,
    device_name: Annotated[
        str | None, typer.Option(help="Name of the GPU or CPU, where the file does not say.")
    ] = None,
    mode: options.Mode = None,
    precision: options.Precision = None,
    guess_layers: Annotated[
        bool,
        typer.Option(
            "--guess-layers",
            help="Where a report has no ranges, guess which layer of --workload launched what, from order and shape.",
        ),
    ] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source", help="Store what each machine instruction did, too (.ncu-rep): 'perfctl show RUN --source'."
        ),
    ] = False,
    store: options.Store = None,
    again: Annotated[bool, typer.Option("--again", help="Take in again what the store has already.")] = False,
    as_json: options.Json = False,
) -> None:
    """Take in reports made elsewhere, of any profiler that perfctl knows, and run folders.

    nsys: .sqlite, .nsys-rep, .qdrep, .qdstrm, 'nsys stats' as CSV, TSV, JSON or text. ncu: CSV of any page, console
    text, .ncu-rep. DLProf: CSV, JSON, dlprof_dldb.sqlite. torch.profiler: Kineto traces, plain or gzipped. nvprof:
    GPU trace as text. nvidia-smi: queries, tables, dmon, pmon. DCGM: dmon.

    Each file goes in whole or not at all; one that cannot be read does not stop the others.
    """
    # Nothing here multiplies matrices: numpy's threads for that would only spin for a tenth of a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfctl.orchestrator.actions.ingest import ingest as actions

    hints = actions.UserHints(batch, workload, device_name, mode, precision, source, guess_layers)
    with reading() as progress:
        done = actions.ingest(
            paths, store or DEFAULT, hints=hints, again=again, listener=_Listener(progress),
            command_line=console.command_line(),
        )  # fmt: skip
    _print(done, as_json)
    done.check()


class _Listener:
    """What the reading says, on stderr."""

    def __init__(self, progress: ReadProgress) -> None:
        self.begin, self.end = progress.begin, progress.end
        self.note, self.warning, self.failed = console.note, console.warning, console.error
        self._progress = progress

    def found(self, total: int) -> None:
        self._progress.total = total


def _print(done: Ingested, as_json: bool) -> None:
    if as_json:
        rows = [{"path": str(path), **_counts(written)} for path, written in done.taken]
        console.as_json({"store": str(done.store), "runs": rows, "failed": list(done.failed)})
        return
    for path, written in done.taken:
        console.result(_line(path, written))
    if any(written.new for _, written in done.taken):
        extra = "" if done.store == DEFAULT else f" --store {shlex.quote(str(done.store))}"
        console.result(f"Wrote {done.store}. Next: perfctl report{extra}")


def _counts(written: Written) -> dict[str, int | bool]:
    fields = ("run_id", "new", "kernels", "counters", "ranges", "copies", "operations", "samples")
    return {field: getattr(written, field) for field in fields}


def _line(path: Path, written: Written) -> str:
    if not written.new:
        return f"{path}: in the store already, as run {written.run_id} (--again takes it in again)"
    counts = _counts(written)
    del counts["run_id"], counts["new"]
    held = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    said = f"{path}: run {written.run_id}: {held or 'no rows in the large tables'}"
    return f"{said}; partial: {written.reason}" if written.reason else said
