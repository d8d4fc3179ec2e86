"""The ledger of a language model's phases: a row a part of the model, repeated blocks as one."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfctl.orchestrator.counts.kernels.layers import SHARED_OUT
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.usage.phase_layers import (
    Padding,
    PartUse,
    PhaseParts,
    phase_parts,
    weighty,
)
from perfctl.orchestrator.report.numbers import percent, significant, size, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    count,
    estimated,
    name_cell,
    nothing,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)

MUCH_PADDING, MUCH_TIME = 1.1, 0.01
"""Padding is a finding from this factor of executed / paper multiply-adds on, in parts with this
share of a phase's kernel time."""
NOT_TIMED = "one of its kernels has no time"
NOT_DIVIDED = "the trace does not state how the tokens divide between prefill and decode"
UNSAID = "the steps do not state their number of tokens"
OF_MIXED = ("of prompts", "of decodes")
"""Columns that only mixed steps have."""

_LAST_WORD = re.compile(r"^.*?(Attention|MLP|[A-Z][a-z]+Layer|[A-Z][a-z]+Block)$")


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One part of a language model in one phase. FLOPs count 1 multiply-add as 2."""

    JSON_INLINED = ("phase", "part")

    phase: PhaseParts
    part: PartUse


def phases_of(found: Analysis, *, each: bool = False) -> list[PhaseParts]:
    """The phases of a study's runs."""
    measured = [found.roofline.peaks] if found.roofline.peaks.kind == "measured" else []
    return [phase for run in found.study.runs for phase in phase_parts(run, measured, each=each)]


def has_repeats(found: Sequence[PhaseParts]) -> bool:
    """True where blocks repeat, so that a row stands for several."""
    return any((part.blocks or 0) > 1 for phase in found for part in phase.parts)


def phase_tables(found: Sequence[PhaseParts]) -> tuple[Table, ...]:
    """A table a phase. FLOPs: 1 multiply-add = 2."""
    return tuple(made for phase in found if (made := _table(phase)) is not None)


def _table(phase: PhaseParts) -> Table | None:
    columns = [
        Column("part", style="code", note="of the model; repeated blocks are one row"),
        Column("blocks", note="repeated blocks that have the part"),
        Column("launches", is_optional=True),
        Column("kernel time", base="ns", note="sum over its kernels, all steps of the phase"),
        Column("share", is_optional=True, note="of the phase's kernel time"),
        Column(
            "estimate",
            "FLOP",
            note="1 multiply-add = 2 FLOPs; GEMMs and attention (complete square, no mask)",
        ),
        Column(
            "bytes",
            base="B",
            note=(
                "estimated: weights and activations once each; for attention, the cache that it "
                "reads"
            ),
        ),
        Column("FLOP/B", is_optional=True, note="estimated FLOPs per byte"),
        Column("bound", style="text", note=_ridge(phase)),
        Column(
            "time per token",
            is_optional=True,
            base="ns",
            note="kernel time over the tokens of the phase",
        ),
        Column(
            "of prompts",
            is_optional=True,
            base="ns",
            note="kernel time of the prompts in mixed steps, divided by work (approximate)",
        ),
        Column(
            "of decodes",
            base="ns",
            note="kernel time of the decodes in mixed steps, divided by work (approximate)",
        ),
        Column(
            "padding",
            note=(
                "executed / estimated multiply-adds: complete tiles (from the kernel name) / "
                "outputs"
            ),
        ),
    ]
    short = short_parts([part.part for part in phase.parts])
    mixed = phase.phase == "mixed"
    if not mixed:
        columns = [column for column in columns if column.label not in OF_MIXED]
    rows = [_row(part, short[part.part], mixed=mixed) for part in phase.parts]
    if not rows:
        return None
    columns_of_parts = zip(*rows, strict=True)
    rows.append(
        [  # a column without values has the reasons of the parts
            parts[0] if cell.style == "no" and all(part.style == "no" for part in parts) else cell
            for cell, parts in zip(_all(phase, mixed=mixed), columns_of_parts, strict=True)
        ]
    )
    made = table(caption(phase), columns, rows, tools=False)
    if made is None:
        return None
    return replace(made, notes=(*made.notes, *said(phase)))


def caption(phase: PhaseParts) -> str:
    """ "Decode by part of the model: 1 step, 32 tokens"."""
    steps = "1 step" if phase.steps == 1 else f"{phase.steps:,} steps"
    steps = (
        f"part of {steps}" if any(step.partial for step in phase.run.report.served_steps) else steps
    )
    tokens = (
        "1 token"
        if phase.tokens == 1
        else f"{phase.tokens:,} tokens"
        if phase.tokens is not None
        else "number of tokens unknown"
    )
    return f"{phase.phase.capitalize()} by part of the model: {steps}, {tokens}"


def said(phase: PhaseParts) -> Iterator[str]:
    """What stands below the table: the cache, and where the steps come from."""
    if phase.cache_bytes is not None:
        yield (f"Key-value cache read by its steps: {size(phase.cache_bytes)} ({phase.cache_why}).")
    else:
        yield f"Bytes of the key-value cache: unknown; {phase.cache_why}."
    if any(part.split_by for part in phase.parts):
        yield (
            "Prompts and decodes: the same kernels compute both. perfctl divides attention by "
            "pairs of queries and keys, work that runs once per sequence by sequences, and "
            "everything else by tokens (~)."
        )
    if any(part.shared for part in phase.parts):
        yield f"~ before a part's time: {SHARED_OUT}."
    if phase.is_inferred:
        yield (
            "No annotation names a step, so perfctl infers phase and tokens from the operator "
            "shapes."
        )


def _ridge(phase: PhaseParts) -> str:
    ridges = {part.path: part.ridge for part in phase.parts if part.path and part.ridge}
    if not ridges:
        return f"unknown: {phase.peaks.reason or 'no peaks of the device'}"
    each = ", ".join(f"{ridge:.0f} FLOP/B ({path})" for path, ridge in ridges.items())
    return (
        f"memory-bound below the ridge point of the device, compute-bound above: {each}, "
        f"{phase.peaks.source}"
    )


def short_parts(names: Sequence[str]) -> dict[str, str]:
    """Name -> its last component, with as many before it as tell it from the others:
    "Attention.RowParallelLinear".

    The components before it are cut to the last words of a class's name; whole where two would then
    be one.
    """
    paths = {name: name.split(".") for name in names}
    found: dict[str, str] = {}
    for name, path in paths.items():
        for kept in range(1, len(path) + 1):
            same = [other for other in paths.values() if other[-kept:] == path[-kept:]]
            if len(same) == 1 or kept == len(path):
                above = [_LAST_WORD.sub(r"\1", part) for part in path[-kept:-1]]
                found[name] = ".".join((*above, path[-1]))
                break
    several = Tally(found.values())
    return {name: short if several[short] == 1 else name for name, short in found.items()}


def _row(part: PartUse, short: str, *, mixed: bool) -> list[Any]:
    bytes_ = size_cell(part.bytes, part.bytes_why or "not known")
    if part.estimated:
        bytes_ = estimated(bytes_, "if the cache has the type of the projections")
    intensity, took, share = (
        part.intensity,
        time_cell(part.kernel_ns, NOT_TIMED),
        share_cell(part.share, NOT_TIMED),
    )
    if part.shared:
        took, share = estimated(took, SHARED_OUT), estimated(share, SHARED_OUT)
    return [
        name_cell(part.part, short),
        count(part.blocks, "it is outside of the blocks"),
        count(part.launches),
        took,
        share,
        amount(part.flops, "FLOP", part.flops_why or "not known"),
        bytes_,
        nothing(part.flops_why or part.bytes_why or "not known")
        if intensity is None
        else Cell(significant(intensity), value=round(intensity, 4)),
        nothing(_unbound(part)) if part.bound is None else text_cell(part.bound),
        time_cell(part.token_ns, UNSAID),
        *(_split(part.kernel_ns, part.prompts_ns, part.split_by) if mixed else ()),
        _padded(part),
    ]


def _split(kernel_ns: float | None, prompts_ns: float | None, by: str | None) -> tuple[Cell, Cell]:
    """Kernel time of the prompts and of the decodes of mixed steps, both estimates."""
    if kernel_ns is None or prompts_ns is None:
        why = NOT_TIMED if kernel_ns is None else NOT_DIVIDED
        return nothing(why), nothing(why)
    return estimated(time_cell(prompts_ns), f"by {by}"), estimated(
        time_cell(kernel_ns - prompts_ns), f"by {by}"
    )


def _unbound(part: PartUse) -> str:
    if part.intensity is None:
        return part.flops_why or part.bytes_why or "not known"
    return "the peaks of the device are unknown"


def _padded(part: PartUse) -> Cell:
    if part.padded is None:
        why = (
            "it has no GEMM"
            if not part.names
            else "the tile of the kernel, or its pass, is unknown"
        )
        return nothing(why)
    return Cell(
        f"{part.padded:.2f}", "; ".join(map(covered, part.padding)), value=round(part.padded, 4)
    )


def covered(one: Padding) -> str:
    """ "32 x 151,936 in tiles of 48 x 256: 1.50"."""
    return (
        f"{one.rows:,} x {one.columns:,} in tiles of {one.tile[0]} x {one.tile[1]}: "
        f"{one.factor:.2f}"
    )


def _all(phase: PhaseParts, *, mixed: bool) -> list[Any]:
    known = [part.flops for part in phase.parts if part.flops is not None]
    tokens, total, prompts = (
        phase.tokens,
        phase.kernel_ns,
        [part.prompts_ns for part in phase.parts],
    )
    parts = [part for part in phase.parts if part.flops is not None]
    took = sum(part.kernel_ns or 0 for part in parts)
    where = (
        f"; the parts with FLOPs take {percent(took / total)} of the kernel time"
        if total and parts
        else ""
    )
    flops = amount(sum(known) if known else None, "FLOP", "no part has a value")
    if known and len(known) < len(phase.parts):
        flops = replace(flops, text=f"≥ {flops.text}", is_lower_bound=True)
    return [
        text_cell("all"),
        nothing("of the parts"),
        count(phase.launches),
        time_cell(total, NOT_TIMED),
        share_cell(1.0 if total else None, NOT_TIMED),
        replace(flops, title=f"{flops.title}{where}"),
        nothing("some parts have no value"),
        nothing("of the parts"),
        nothing("of the parts"),
        time_cell(total / tokens if total is not None and tokens else None, UNSAID),
        *(
            _split(total, None if None in prompts else sum(one or 0 for one in prompts), "work")
            if mixed
            else ()
        ),
        nothing("of the parts"),
    ]


def largest_parts(found: Sequence[PhaseParts]) -> Iterator[Finding]:
    """The part of the model that takes the most time in each phase, all its blocks together."""
    for phase in found:
        _, part = next(weighty([phase], 0.0), (None, None))
        if part is not None:
            blocks = f" ({part.blocks} blocks together)" if (part.blocks or 0) > 1 else ""
            bound = (
                "" if part.bound is None else f" Its FLOPs and bytes make it {part.bound}-bound."
            )
            most = f"takes the most time, {percent(part.share or 0)} of the kernel time{blocks}."
            yield Finding(f"In {_steps_of(phase)} {part.part} {most}{bound}", "phases")


def _steps_of(phase: PhaseParts) -> str:
    return "mixed steps" if phase.phase == "mixed" else phase.phase


def padding_findings(found: Sequence[PhaseParts]) -> Iterator[Finding]:
    """The part that executes most for its tiles, in sentences with its numbers."""
    worst = [
        (phase, part, one)
        for phase, part in weighty(found, MUCH_TIME)
        for one in part.padding
        if one.factor >= MUCH_PADDING and (part.padded or 0) >= MUCH_PADDING
    ]
    if not worst:
        return
    phase, part, one = max(worst, key=lambda item: item[2].factor)
    (high, wide), rows, columns = one.tile, one.rows, one.columns
    up = (-(-rows // high) * high, -(-columns // wide) * wide)
    others = len({(other.phase, other.part) for _, other, _ in worst}) - 1
    todo = (
        "" if up[0] == rows else " Larger batches (more sequences per step) would fill the tiles."
    )
    more = (
        f" {others} more {'part' if others == 1 else 'parts'} of {phase.phase} also "
        f"{'has' if others == 1 else 'have'} padding."
        if others
        else ""
    )
    yield Finding(
        f"Tile padding in {_steps_of(phase)}: {part.part} executes {one.factor:.2f} times the "
        f"estimated multiply-adds. Its GEMM has {rows:,} x {columns:,} outputs, and its tiles of "
        f"{high} x {wide} cover {up[0]:,} x {up[1]:,}. It takes {percent(part.share or 0)} of the "
        f"kernel time ({time(part.kernel_ns or 0)}).{more}{todo}",
        "phases",
    )


def phase_rows(found: Sequence[PhaseParts]) -> list[PhaseRow]:
    """Return the tables as rows of full values; None is not known."""
    return [PhaseRow(phase, part) for phase in found for part in phase.parts]
