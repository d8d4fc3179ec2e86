"""The ledger as rows of full values with units in their names, for ``--json`` and the DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from perfctl.orchestrator.analyse.analysis import Analysis, analyse
from perfctl.orchestrator.analyse.ledger.ledger import LedgerRow, Unattributed
from perfctl.orchestrator.analyse.ledger.studies import studies
from perfctl.orchestrator.analyse.roofline import Roofline, RooflinePoint
from perfctl.orchestrator.report.cells import why
from perfctl.orchestrator.report.ledger.roofline import spoken
from perfctl.records.run import Run


def ledger_rows(analyses: Sequence[Analysis]) -> Iterator[dict[str, Any]]:
    """One row a layer, direction and batch size, then the rest that no layer explains. None is not known."""
    for found in analyses:
        for row in found.ledger.rows:
            yield _row(found, row)
        for rest in found.ledger.unattributed:
            yield _rest(found, rest)


def sweep_verdicts(analyses: Sequence[Analysis]) -> list[dict[str, Any]]:
    """Verdicts about sweeps as a whole, with the study they are about."""
    return [{**_study(found), **asdict(verdict)} for found in analyses for verdict in found.judgement.sweep]


def _study(found: Analysis) -> dict[str, Any]:
    study = found.study
    return {name: getattr(study, name) for name in ("workload", "variant", "mode", "precision", "device")}


def _row(found: Analysis, row: LedgerRow) -> dict[str, Any]:
    judged = found.judgement.at(row.batch, row.layer, row.direction)
    point = found.roofline.of(row.batch, row.layer, row.direction)
    time = row.time
    return {
        **_study(found), "batch": row.batch, "layer": row.place, "kind": row.kind, "direction": row.direction,
        "paper_flops": row.paper.value, "paper_state": row.paper.state, **_counted(row), "ratio": row.ratio,
        "verdicts": [asdict(verdict) for verdict in judged.verdicts], "unexplained": judged.unexplained,
        "time_ns": time.median if time else None, "time_low_ns": time.low if time else None,
        "time_high_ns": time.high if time else None, "time_why": row.time_reason, "clock": row.basis,
        "clock_trusted": row.trusted if time else None, "share": row.share, "share_of": row.whole,
        "paper_flops_per_s": row.achieved, **_roofs(point, found.roofline), "guessed": row.guessed,
        "kernels": [asdict(use) for use in row.kernels],
    }  # fmt: skip


def _counted(row: LedgerRow | Unattributed) -> dict[str, Any]:
    counted = row.counted
    return {
        "counted_flops": counted.value, "counted_state": counted.state, "counted_why": why(counted) or None,
        "counted_rule": counted.rule, "counted_is_lower_bound": counted.lower_bound,
    }  # fmt: skip


def _roofs(point: RooflinePoint | None, roofline: Roofline) -> dict[str, Any]:
    """A row below the roofs; None throughout where the roofline has no point for it."""
    if point is None:
        return dict.fromkeys(_ROOFS)
    values = (
        point.traffic.dram.value, point.intensity, point.path, point.peak, point.attainable, point.reached, point.mfu,
        point.mfu_refused, point.hfu, None if point.refused else point.bound, spoken(point, roofline),
    )  # fmt: skip
    return dict(zip(_ROOFS, values, strict=True))


_ROOFS = (
    "dram_bytes", "flops_per_byte", "roof", "peak_flops_per_s", "attainable_flops_per_s", "of_attainable", "mfu",
    "mfu_refused", "hfu", "bound", "bound_why",
)  # fmt: skip


def _rest(found: Analysis, rest: Unattributed) -> dict[str, Any]:
    """With the columns of the other rows, which exist where something is left over."""
    return {
        **dict.fromkeys(_row(found, found.ledger.rows[0]) if found.ledger.rows else ()), **_study(found),
        "batch": rest.batch, "layer": "not attributed", **_counted(rest), "time_ns": rest.time.median,
        "time_low_ns": rest.time.low, "time_high_ns": rest.time.high, "clock": rest.basis, "share": rest.share,
        "share_of": rest.whole, "verdicts": [], "kernels": [],
    }  # fmt: skip


MEANINGS = {
    "workload": "name of the workload or script",
    "variant": "the workload's own options that are not at their default",
    "mode": "train or infer",
    "precision": "fp32, tf32, bf16 or fp16",
    "device": "the device that did the work",
    "batch": "samples a step",
    "layer": "dotted module path; 'not attributed' is the rest that no layer explains",
    "kind": "class of the module, or name of the operation",
    "direction": "forward, grad_input, grad_weight, grad_bias, backward, optimizer",
    "paper_flops": "on paper for one step: 2 x multiply-adds",
    "paper_state": "known, or why not",
    "counted_flops": "counted by the hardware for one step",
    "counted_state": "counted, estimated, or why not",
    "counted_why": "how it was counted, or why it is not known",
    "counted_rule": "how it is made of counters",
    "counted_is_lower_bound": "some of it was not counted",
    "ratio": "counted / paper",
    "verdicts": "why counted and paper differ: rule, sentence, numbers, confidence",
    "unexplained": "the part of the gap that no verdict explains",
    "time_ns": "median over the measured steps",
    "time_low_ns": "lowest over the measured steps",
    "time_high_ns": "highest over the measured steps",
    "time_why": "why there is no time",
    "clock": "how the time was measured",
    "clock_trusted": "the clock waited for the device",
    "share": "share of the time of the whole",
    "share_of": "the whole that it is a share of",
    "paper_flops_per_s": "paper FLOPs over time",
    "dram_bytes": "bytes moved to and from DRAM in one step",
    "flops_per_byte": "FLOPs per byte of DRAM",
    "roof": "the roof it is compared with",
    "peak_flops_per_s": "that roof",
    "attainable_flops_per_s": "the limit of the roofline at this intensity",
    "of_attainable": "share of the attainable rate that was reached",
    "mfu": "paper FLOPs over time over peak",
    "mfu_refused": "why there is no MFU",
    "hfu": "counted FLOPs over time over peak",
    "bound": "its limit: memory, compute, latency",
    "bound_why": "why that is said",
    "guessed": "kernels were given to the layer by guess",
    "kernels": "the kernels of the row",
}
_UNITS = {
    "batch": "count", "ratio": "1", "unexplained": "1", "share": "0..1", "of_attainable": "0..1", "mfu": "0..1",
    "hfu": "0..1", "flops_per_byte": "FLOP/byte",
}  # fmt: skip
_ENDINGS = {"_ns": "ns", "_bytes": "byte", "_flops_per_s": "FLOP/s", "_flops": "FLOP"}


def unit(name: str) -> str:
    """The unit of a column, from its name; "-" where there is none."""
    return _UNITS.get(name) or next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "-")


BULK = ("kernels", "counters", "copies", "ranges", "operations", "samples")
SMALL = ("steps", "memory", "summaries", "gaps", "diagnostics")
FACTS = (
    "id", "sweep_id", "sweep_name", "sweep_command", "host", "profiler", "profiler_version", "workload", "batch_size",
    "mode", "precision", "status", "origin", "exit_code", "reason", "started_at", "duration_ns", "artifact",
    "artifact_sha256", "command",
)  # fmt: skip


def run_json(run: Run) -> dict[str, Any]:
    """Everything a run holds; NULL is null. FLOPs count 1 multiply-add as 2. Units are those of the store."""
    (study,) = studies([run])
    return {
        **{name: getattr(run, name) for name in FACTS},
        "form": run.report.form,
        "devices": [asdict(device) for device in run.report.devices],
        "environment": run.report.environment,
        "ledger": list(ledger_rows([analyse(study)])),
        "layer_calls": [call._asdict() for call in run.layer_calls],
        **{name: [row._asdict() for row in getattr(run.report, name)] for name in (*SMALL, *BULK)},
    }
