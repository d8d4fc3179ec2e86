"""Picks the one record that a test is about out of a report."""

from __future__ import annotations

from perfctl.records.report import Kernel, Operation, Report


def operation(found: Report, name: str, **where: str | None) -> Operation:
    (only,) = [op for op in found.operations if op.name == name and all(getattr(op, k) == v for k, v in where.items())]
    return only


def the_kernel(found: Report, name: str) -> Kernel:
    (only,) = [entry for entry in found.kernels if entry.name == name]
    return only
