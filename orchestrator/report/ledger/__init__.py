"""The FLOPs ledger as tables, trails and sentences; and the keys of trails, which are part of the
report's address."""

from __future__ import annotations

from perfctl.records.run import Point


def build_row_evidence_trail_key(layer: str, direction: str, batch: Point) -> str:
    """Return the key of a ledger row's trail: "conv2/forward/64"."""
    return "/".join((layer, direction, "" if batch is None else str(batch)))


def build_sweep_evidence_trail_key(rule: str) -> str:
    """Return the key of the trail of a cause about the sweep: "sweep/wrong-window"."""
    return f"sweep/{rule.replace(' ', '-')}"
