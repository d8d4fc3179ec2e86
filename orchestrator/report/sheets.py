"""Worked examples of a layer or of a network: their views and their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.estimate.sheets.network import NetworkLine, NetworkSheet
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, SheetSection
from perfctl.orchestrator.estimate.sheets.slips import CheckFinding, explain_check_finding
from perfctl.orchestrator.report.estimate import (
    SHEET_WIDTH,
    build_lower_bound_cell,
    format_output_shape,
    name_absence,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    count_cell,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View


@dataclass(frozen=True, slots=True)
class CheckedEstimate:
    """A manual estimate, checked."""

    JSON_INLINED = ("finding",)

    finding: CheckFinding
    sentence: str


@dataclass(frozen=True, slots=True)
class LayerSheet:
    """The calculation of one layer at one batch size."""

    layer: str
    kind: str
    sections: tuple[SheetSection, ...]
    check: CheckedEstimate | None
    """null: no --check."""


@dataclass(frozen=True, slots=True)
class LayerSheets:
    """--sheet with --layer, or --check."""

    model: str
    """As it was named."""
    batches: Mapping[int, LayerSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class NetworkSheets:
    """--sheet of a complete network."""

    model: str
    """As it was named."""
    batches: Mapping[int, NetworkSheet]
    """Batch size -> its figures."""
    problems: Sequence[str]


def build_layer_calculation_sheets(
    model: str,
    sheets: Mapping[int, Sheet],
    estimate_checks: Mapping[int, CheckFinding],
    problems: Sequence[str],
) -> LayerSheets:
    """Return for each batch size the sheet, and what explains the manual estimate."""
    checks = {
        size: CheckedEstimate(finding, explain_check_finding(finding, sheets[size].layer))
        for size, finding in estimate_checks.items()
    }
    batches = {
        size: LayerSheet(sheet.layer, sheet.kind, sheet.sections, checks.get(size))
        for size, sheet in sheets.items()
    }
    return LayerSheets(model, batches, problems)


def build_layer_calculation_view(output: LayerSheets, *, show_calculation: bool) -> View:
    """Return the worked layer (with ``show_calculation``), and what explains the manual
    estimate."""
    columns = text_columns("", "formula", "numbers", "result")
    tables, notes = [], []
    for size, sheet in output.batches.items():
        batch = f"batch {size:,}" if len(output.batches) > 1 else ""
        for section in sheet.sections:
            rows = [
                list(map(text_cell, (line.quantity, line.formula, line.numbers, line.result)))
                for line in section.lines
            ]
            title = f"{section.title}, {batch}" if batch else section.title
            tables.append(build_complete_table(title, columns, rows))
        if sheet.check is not None:
            notes.append(f"{batch}: {sheet.check.sentence}" if batch else sheet.check.sentence)
    if not show_calculation:
        return View(notes=tuple(notes))
    first = next(iter(output.batches.values()))
    name = f"{first.layer or 'the model'} ({first.kind})" if first.kind else first.layer
    return View(name, tables=tuple(tables), notes=tuple(notes), least_width=SHEET_WIDTH)


def build_network_calculation_view(output: NetworkSheets) -> View:
    """Return every line of the network with all digits, and the totals."""
    tables = tuple(
        _build_network_layers_table(
            f"{output.model}, batch {batch:,}", sheet, name_absence(sheet, output.problems)
        )
        for batch, sheet in output.batches.items()
    )
    sheets = output.batches.values()
    notes = dict.fromkeys(text for sheet in sheets for text in sheet.conventions)
    return View(tables=tables, notes=tuple(notes), least_width=SHEET_WIDTH)


def _build_network_layers_table(title: str, sheet: NetworkSheet, not_called: str) -> Table:
    numbers = {
        "parameters": "parameters",
        "macs": "MAC",
        "flops": "forward FLOP",
        **({"backward_flops": "backward FLOP"} if sheet.backward else {}),
        "elementwise_flops": "elementwise FLOP",
        "parameter_bytes": "parameter B",
        "written_bytes": "written B",
    }

    def build_sheet_cell(line: NetworkLine, name: str) -> Cell:
        value = getattr(line, name)
        if value is None:
            return text_cell("unknown" if line.called else "")
        is_partial = line is sheet.total and any(
            part.called and getattr(part, name) is None for part in sheet.lines
        )
        return build_lower_bound_cell(value) if is_partial else count_cell(value)

    has_types = bool(sheet.types)
    rows = [
        [
            line.layer,
            text_cell(line.kind),
            *([text_cell(line.type)] * has_types),
            text_cell(format_output_shape(line, not_called)),
            *(build_sheet_cell(line, name) for name in numbers),
        ]
        for line in (*sheet.lines, sheet.total)
    ]
    heads = ("layer", "kind", *(["type"] * has_types), "output")
    columns = [*text_columns(*heads), *map(Column, numbers.values())]
    return build_complete_table(title, columns, rows, list(_list_notes_on_network(sheet)))


def _list_notes_on_network(sheet: NetworkSheet) -> Iterator[str]:
    for row in sheet.types:
        yield (
            f"{row.type}: {'at least ' if row.missing else ''}{2 * row.forward_macs:,} FLOP "
            f"forward, {2 * row.backward_macs:,} backward, {row.elementwise_flops:,} elementwise "
            f"forward; {row.forward_bytes:,} B read and written forward, {row.backward_bytes:,} "
            "backward."
        )
    if sheet.missing:
        yield f"Unknown: {'; '.join(sheet.missing)}."
    if sheet.recompute_flops:
        yield (
            "Computed again in backward (activation checkpointing), not in the lines above: "
            f"{sheet.recompute_flops:,} FLOP."
        )
