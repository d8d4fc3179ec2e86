"""perfctl compare and perfctl history"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PerfctlError, Regressed, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.compare import Comparison


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B",
            help=(
                "Before and after: each a store, a sweep (name or sweep:3), a run (number), a "
                "report. With --rev: a sweep to run, after --."
            ),
        ),
    ] = None,
    rev: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Run a sweep on this git revision (A) and on the files here (B).",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Runs of each side, with --rev. Default: 5.")
    ] = None,
    gate: Annotated[str, typer.Option(help="Changes up to this do not count.")] = "5%",
    force: Annotated[
        bool, typer.Option("--force", help="Judge what is not comparable, and say so.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page.")] = None,
    markdown: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a summary for a pull request; - for stdout."),
    ] = None,
    form: options.Form = None,
    memory_limit: options.MemoryLimit = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Compare B with A: slower or faster by more than --gate and than the spread explains, new and
    gone kernels.

    Exit code 3 when something is worse, 1 when something was not comparable or failed in B.
    """
    from perfctl.orchestrator.actions import compare as actions

    share, form = gate_of(gate), console.form_of(form, as_json)
    if form and markdown == "-":
        raise UsageError(
            "--format and --markdown - both write to stdout", "Name a file with --markdown"
        )
    if as_json and markdown == "-":
        raise UsageError(
            "--json and --markdown - both write to stdout", "Name a file with --markdown"
        )
    words = sides or []
    if rev is not None:
        if store is not None:
            raise UsageError("--rev keeps its runs in a folder of its own", "Leave --store out")
        from perfctl.orchestrator.actions.revisions import REPEAT, compare_revisions

        found, kept = compare_revisions(
            rev, words, repeat=repeat or REPEAT, gate=share, force=force, messages=console
        )
        console.note(
            f"Both sides are kept: perfctl compare {shlex.quote(str(kept.a))} "
            f"{shlex.quote(str(kept.b))}"
        )
    else:
        if repeat is not None:
            raise UsageError(
                "--repeat belongs to --rev", "Give it to the sweep: perfctl torch --repeat 5"
            )
        a, b = _two(words)
        found = actions.compare(
            a,
            b,
            gate=share,
            force=force,
            store=store or DEFAULT,
            messages=console,
            memory_limit=memory_limit,
        )
    _show(found, out, markdown, form, as_json)
    _end(found)


def _two(words: list[str]) -> tuple[str, str]:
    if len(words) != 2:
        said = f"got {len(words)}: {' '.join(words)}" if words else "got none"
        raise UsageError(
            f"compare takes two sides, {said}",
            "perfctl compare before.db after.db; 'perfctl runs' lists runs",
        )
    return words[0], words[1]


def _show(
    found: Comparison, out: Path | None, markdown: str | None, form: str | None, as_json: bool
) -> None:
    """The page, the summary and the tables, each where it was asked for."""
    from perfctl.orchestrator.files import write_text
    from perfctl.orchestrator.report.compare import output

    if out is not None:
        from perfctl.orchestrator.report.page import page

        write_text(out, page.render_comparison(found))
        console.note(f"Wrote {out}")
    if markdown == "-":
        console.result(output.markdown(found).rstrip("\n"))
    elif markdown is not None:
        write_text(Path(markdown), output.markdown(found))
        console.note(f"Wrote {markdown}")
    if as_json:
        console.as_json(output.compare_output(found), "compare")
    elif form:
        console.document(form, output.document(found))
    elif markdown != "-":
        for part in output.terminal(found):
            console.show(part)


def gate_of(text: str) -> float:
    """ "5%" as 0.05. Raises UsageError for what is not a percentage."""
    said = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if said is None:
        raise UsageError(f"--gate: '{text}' is not a percentage", "Write for instance --gate 5%")
    return float(said[1]) / 100


def _end(found: Comparison) -> None:
    """Raises what gives the exit code; nothing when all is well."""
    from perfctl.orchestrator.report.compare.words import percent_change

    worse = found.regressions
    if worse:
        pair, row = worse[0]
        at = f" at batch {pair.batch}" if pair.batch else ""
        change = f", {percent_change(row.change)}" if row.change is not None else ""
        count = f"{len(worse)} regressions over {found.gate * 100:g} %; largest"
        heading = count if len(worse) > 1 else f"1 regression over {found.gate * 100:g} %"
        raise Regressed(f"{heading}: {row.name}{at}{change} ({row.result})")
    if found.not_comparable:
        pair = found.not_comparable[0]
        what = "; ".join(one.sentence for one in pair.blocked)
        raise PerfctlError(f"not comparable: {what}", "--force judges all the same, and says so")
    if found.failed:
        raise PerfctlError(f"failed in B: {found.failed[0]}")
    if not found.pairs:
        raise PerfctlError(
            "not comparable: A and B have no workload and batch size in common",
            f"A has {'; '.join(found.only_a) or 'nothing'}. B has "
            f"{'; '.join(found.only_b) or 'nothing'}",
        )
    if found.judged == 0:
        console.warning(
            "no time could be judged, and the reason stands above; --repeat 5 on both sweeps gives "
            "a spread"
        )
