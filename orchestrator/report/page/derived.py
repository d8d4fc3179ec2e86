"""Derived counts of a study: what each kernel's rule says, its arithmetic, and how far counters say otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from perfctl.orchestrator.analyse.analysis import short_names
from perfctl.orchestrator.analyse.counters.sums import instructions, ops_path
from perfctl.orchestrator.analyse.derived.records import Derived
from perfctl.orchestrator.analyse.derived.rules import error_of
from perfctl.orchestrator.analyse.ledger.prepared import PreparedBatch, PreparedStudy
from perfctl.orchestrator.report.cells import Cell, amount, name_cell, nothing, text_cell
from perfctl.orchestrator.report.tables import Column, Table, listing
from perfctl.records.report import Kernel

COLUMNS = (
    Column("batch"), Column("layer", style="code"), Column("direction", style="text"), Column("kernel", style="code"),
    Column("launches", note="of this kernel with this rule, in all steps that were recorded"),
    Column("instruction", style="text"), Column("derived", note="threads of one launch; tensor: FLOP, 1 multiply-add = 2"),
    Column("counted", note="the same instruction of the same launch, from its counter"),
    Column("deviation", style="text", note="derived against counted"), Column("rule", style="text"),
    Column("verified", style="text", note="error of this rule on launches whose counters are known"),
)  # fmt: skip


def derived_table(study: PreparedStudy, names: Mapping[str, str] | None = None) -> Table | None:
    """One row a batch size, layer, kernel and rule; None where no launch has a rule.

    ``names``: short kernel names of the page.
    """
    names = short_names(study.study.runs) if names is None else names
    rows = [row for batch in study.batches for row in _rows(batch, names)]
    return listing("Derived counts, by the rule of each kernel", COLUMNS, rows, drop_run=False)


def _rows(batch: PreparedBatch, names: Mapping[str, str]) -> Iterator[list[Cell | int | str | None]]:
    source = batch.derived or batch.counted
    found = batch.completed | (batch.derived.derived if batch.derived else {})
    groups: dict[tuple[str | None, str | None, str, Derived], list[Kernel]] = defaultdict(list)
    for kernel in source.run.report.kernels if source and found else ():
        if (derived := found.get(kernel.launch)) is not None and (derived.ffma or derived.tensor):
            groups[kernel.layer, kernel.direction, kernel.name, derived].append(kernel)
    for (layer, direction, name, derived), kernels in groups.items():
        name_of, value = ("tensor", derived.tensor) if derived.tensor else ("FFMA", derived.ffma)
        counted = _counted(batch, kernels[0].launch, name_of)
        yield [
            batch.batch, text_cell(layer) if layer else nothing("no range says so"), direction,
            name_cell(name, names.get(name)), len(kernels), name_of, amount(value, "FLOP" if derived.tensor else ""),
            amount(counted, ""), text_cell(f"{(value or 0) / counted - 1:+.1%}") if counted else nothing("not collected"),
            derived.rule, error_of([derived.family]),
        ]  # fmt: skip


def _counted(batch: PreparedBatch, launch: int, name: str) -> float | None:
    values = batch.counted.values.get(launch, {}) if batch.counted else {}
    return ops_path(values) if name == "tensor" else instructions(values).get("ffma")
