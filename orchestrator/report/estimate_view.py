"""An estimate as one text for the terminal and as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.check import Finding
from perfctl.orchestrator.analyse.check import explain as explain_check
from perfctl.orchestrator.analyse.memory import Fit
from perfctl.orchestrator.analyse.sheet import Sheet
from perfctl.orchestrator.report import model_table

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.estimate import Estimate


def part_of(found: Estimate, layer: str) -> Estimate | None:
    """Only ``layer`` and what is inside it; None when the model has no such module."""
    if layer not in {module.path for module in found.modules}:
        return None

    def inside(path: str) -> bool:
        return not layer or path == layer or path.startswith(layer + ".")

    return replace(
        found,
        calls=tuple(call for call in found.calls if inside(call.layer) and (layer or call.kind)),
        modules=tuple(module for module in found.modules if inside(module.path)),
    )


def as_text(found: Mapping[int, Estimate], every_row: bool) -> str:
    """Tables and totals of the first batch size, then one line for each when there are several."""
    first = next(iter(found.values()))
    parts = [model_table.model_table(first.modules, first.calls)]
    if first.backward.macs or first.recompute.macs:
        parts.append(model_table.directions_table(first.calls, bool(first.recompute.macs)))
    if every_row:
        parts.append(model_table.calls_table(first.calls))
    parts.append(model_table.totals_text(first))
    if first.memory is not None:
        parts.append(model_table.memory_text(first.memory))
    if len(found) > 1:
        rows = [
            (size, one.forward, one.backward, one.memory.peak.bytes if one.memory else None)
            for size, one in found.items()
        ]
        parts.append(model_table.batches_table(rows))
    return "\n\n".join(part for part in parts if part)


def as_json(model: str, mode: str, found: Mapping[int, Estimate], fit: Fit | None) -> dict[str, Any]:
    return {
        "model": model,
        "mode": mode,
        "batches": {size: _one(estimate) for size, estimate in found.items()},
        "largest_batch": asdict(fit) if fit is not None else None,
    }


def _one(found: Estimate) -> dict[str, Any]:
    return {
        "parameters": found.parameters,
        "trainable": found.trainable,
        "input_bytes": found.input_bytes,
        "forward": asdict(found.forward),
        "backward": asdict(found.backward),
        "recompute": asdict(found.recompute),
        "fused_attention": asdict(found.fused),
        "layers": [call._asdict() for call in found.calls],
        "modules": [asdict(module) for module in found.modules],
        "memory": asdict(found.memory) if found.memory is not None else None,
        "data_dependent": found.data_dependent,
        "problem": found.problem,
    }


def sheet_json(
    model: str, sheets: Mapping[int, Sheet], findings: Mapping[int, Finding], problems: Sequence[str]
) -> dict[str, Any]:
    """Sheets and what a hand value is, a batch size each."""
    return {
        "model": model,
        "batches": {
            size: {
                "layer": sheet.layer,
                "kind": sheet.kind,
                "sections": [asdict(section) for section in sheet.sections],
                "check": {**asdict(findings[size]), "said": explain_check(findings[size])}
                if size in findings
                else None,
            }
            for size, sheet in sheets.items()
        },
        "problems": list(problems),
    }
