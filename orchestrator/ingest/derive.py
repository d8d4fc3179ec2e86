"""Derive what follows from the rows of a stored run: executed instructions of launches that no
counter measured, and the algorithm families of kernels.

Few reports have derived counts, so the analysis is loaded where a report does: it takes as long as
all else that an ingest loads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.counts.kernels.names import recognise_family, recognise_kernel
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import replace_derived_counts
from perfctl.records.report import CODE, DerivedCount

if TYPE_CHECKING:
    from perfctl.orchestrator.counts.derived.records import DerivedInstructions
    from perfctl.records.run import Run

_MISSING = """
SELECT run_id FROM kernel_name WHERE run_id > (SELECT max(id) - 20 FROM run) GROUP BY run_id
HAVING count(family) = 0 AND run_id NOT IN (SELECT run_id FROM derived_rule)
"""
"""Query for runs without derived values. An ended ingest leaves at most one, and it is among the
newest; runs whose kernels no rule knows look the same."""
_NEEDS_EVERY_LAUNCH = """
SELECT EXISTS (SELECT 1 FROM metric WHERE run_id = :run)
    OR EXISTS (SELECT 1 FROM derived_rule WHERE run_id = :run AND rule LIKE :code)
    OR EXISTS (SELECT 1 FROM kernel_name WHERE run_id = :run AND name LIKE '%splitkreduce%')
"""


def store_derived_counts_and_families(connection: sqlite3.Connection, run_id: int) -> None:
    """Derive the families and counts of a run with kernels, in place of those that it has."""
    names = connection.execute("SELECT id, name FROM kernel_name WHERE run_id = ?", (run_id,))
    families = {number: recognise_family(name) for number, name in names}
    counts: Iterable[DerivedCount] = ()
    if _can_have_derived_counts(connection, run_id):
        counts = derive_instruction_counts(read.load_run(connection, run_id))
    replace_derived_counts(connection, run_id, counts, families)


def derive_counts_of_underived_runs(connection: sqlite3.Connection) -> None:
    """Derive what follows from the rows of runs whose ingest ended before it could."""
    for (run_id,) in connection.execute(_MISSING).fetchall():
        store_derived_counts_and_families(connection, run_id)


def derive_counts_of_all_runs(store: Path) -> int:
    """Derive counts and families of every run of a database anew; how many runs there are. Raises
    StoreError."""
    with database.open_store_for_writing(store) as connection:
        runs = read.list_run_ids(connection)
        for run_id in runs:
            store_derived_counts_and_families(connection, run_id)
    return len(runs)


def _can_have_derived_counts(connection: sqlite3.Connection, run_id: int) -> bool:
    """Return whether a run may have derived counts, which most runs have not: whether one of each
    kind of its launches has some, or what these do not show (counters, launches whose counts
    follow from the launch before them) is there."""
    shapes = connection.execute("SELECT 1 FROM op_shape WHERE run_id = ? LIMIT 1", (run_id,))
    if shapes.fetchone() is None:
        return False
    if connection.execute(_NEEDS_EVERY_LAUNCH, {"run": run_id, "code": f"{CODE}%"}).fetchone()[0]:
        return True
    return any(derive_instruction_counts(read.load_run_with_distinct_launches(connection, run_id)))


def derive_instruction_counts(run: Run) -> Iterator[DerivedCount]:
    """Yield the derived counts of a run; of a run with counters, those that complete a launch."""
    from perfctl.orchestrator.counts.counters.sums import read_thread_counts_by_instruction
    from perfctl.orchestrator.counts.derived.rules import read_rule_verifications
    from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun

    if run.report is None or not run.report.ops or not run.report.kernels:
        return
    batch = PreparedBatch(run.batch_size, (PreparedRun(run, run.precision),), None)
    counted = batch.counted_run.values if batch.counted_run else {}
    derived = (
        batch.rule_completed_counts_by_launch
        if counted
        else batch.derived_run.instructions_by_launch
        if batch.derived_run
        else {}
    )
    names = {kernel.launch: kernel.name for kernel in run.report.kernels}
    counts: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    """Instruction, value, rule and its error, once for all launches that are alike: they share one
    ``DerivedInstructions``."""
    for launch, derived_count in derived.items():
        alike = names[launch], id(derived_count)
        if alike not in counts:
            error = read_rule_verifications().get(derived_count.family)
            rule = (derived_count.rule, error.within if error else None)
            counts[alike] = [
                (*count, *rule)
                for count in _list_derived_instruction_counts(names[launch], derived_count)
            ]
        counted_instructions = (
            read_thread_counts_by_instruction(counted[launch]) if launch in counted else ()
        )
        for row in counts[alike]:
            if row[0].lower() not in counted_instructions:
                yield DerivedCount(launch, *row)


def _list_derived_instruction_counts(
    kernel_name: str, derived: DerivedInstructions
) -> Iterator[tuple[str, float]]:
    """Yield (instruction, how many): FADD, FMUL and FFMA of threads; HMMA of warps, where the name
    says how large one is."""
    from perfctl.orchestrator.counts.counters.sums import FLOPS_PER_INSTRUCTION
    from perfctl.orchestrator.counts.derived.records import TENSOR_FLOP

    for instruction, value in (
        ("FADD", derived.fadd),
        ("FMUL", derived.fmul),
        ("FFMA", derived.ffma),
    ):
        if value is not None:
            yield instruction, value
    if derived.tensor is None:
        return
    algorithm = recognise_kernel(kernel_name)
    each = FLOPS_PER_INSTRUCTION.get((algorithm.math or "", algorithm.instruction or ""))
    yield ("HMMA", derived.tensor / each) if each else (TENSOR_FLOP, derived.tensor)
