"""What a group of the ledger opens to: the worked formulas and the kernels behind its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.behind import KernelUse
from perfctl.orchestrator.analyse.ledger import LedgerRow
from perfctl.orchestrator.report.numbers import full, significant


def formulas(rows: Sequence[LedgerRow]) -> list[tuple[str, str]]:
    """(which, worked text): one batch size worked out where the rest follows by the rule of three, else every one."""
    shown = rows[:1] if len(rows) > 1 and _in_proportion(rows) else rows
    found = [
        (
            f"batch {row.batch}"
            + (f", {call.direction}" if call.direction != row.direction else "")
            + ("" if row.layer else f", {call.layer}"),
            call.formula,
        )
        for row in shown
        for call in row.calls[:8]
        if call.formula
    ]
    if found and len(shown) < len(rows):
        others = ", ".join(str(row.batch) for row in rows[1:])
        every = (
            "the same"
            if not rows[0].paper.value
            else f"in proportion, {full(rows[0].paper.value // rows[0].batch)} a sample"
        )
        found.append((f"batch {others}", every))
    return found


def _in_proportion(rows: Sequence[LedgerRow]) -> bool:
    """True when the paper count of every row is a whole number a sample, the same at every batch size."""
    values = [(row.paper.value, row.batch) for row in rows]
    return all(value is not None and batch and value % batch == 0 for value, batch in values) and (
        len({value // batch for value, batch in values if value is not None}) == 1
    )


def kernels(rows: Sequence[LedgerRow]) -> tuple[str, ...]:
    """The kernels behind a group, by batch where they differ."""
    lists = {row.batch: tuple(_use(use) for use in row.kernels[:12]) for row in rows if row.kernels}
    if len(set(lists.values())) <= 1:
        return next(iter(lists.values()), ())
    return tuple(f"batch {batch}: {'; '.join(names)}" for batch, names in lists.items())


def _use(use: KernelUse) -> str:
    often = f"{significant(use.per_step if use.per_step % 1 else int(use.per_step))} × "
    return f"{often}{use.name[:200]}" + (f" ({use.algorithm or use.family})" if use.algorithm or use.family else "")
