"""What the store keeps of derived counts: the instructions of a run's launches that no counter measured.

Few reports have them, so the analysis is loaded where a report does: it takes as long as all else that ingest loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfctl.records.report import DerivedCount

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.derived.records import Derived
    from perfctl.records.run import Run


def derived_rows(run: Run) -> Iterator[DerivedCount]:
    """Derived counts of a run that has kernels and shapes; of a run with counters, those that complete a launch."""
    from perfctl.orchestrator.analyse.counters.sums import instructions
    from perfctl.orchestrator.analyse.derived.rules import verified
    from perfctl.orchestrator.analyse.ledger.prepared import PreparedBatch, PreparedRun

    batch = PreparedBatch(run.batch_size, (PreparedRun(run, run.precision),), None)
    counted = batch.counted.values if batch.counted else {}
    found = batch.completed if counted else batch.derived.derived if batch.derived else {}
    names = {kernel.launch: kernel.name for kernel in run.report.kernels}
    counts: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    """Instruction, value, rule and its error, once for all launches that are alike: they share one ``Derived``."""
    for launch, derived in found.items():
        alike = names[launch], id(derived)
        if alike not in counts:
            error = verified().get(derived.family)
            facts = (derived.rule, error.within if error else None)
            counts[alike] = [(*one, *facts) for one in _executed(names[launch], derived)]
        known = instructions(counted[launch]) if launch in counted else ()
        for row in counts[alike]:
            if row[0].lower() not in known:
                yield DerivedCount(launch, *row)


def _executed(name: str, derived: Derived) -> Iterator[tuple[str, float]]:
    """(instruction, how many). FADD, FMUL and FFMA of threads; HMMA of warps, where the name says how large one is."""
    from perfctl.orchestrator.analyse.counters.sums import FLOPS_PER_INSTRUCTION
    from perfctl.orchestrator.analyse.derived.records import TENSOR_FLOP
    from perfctl.orchestrator.analyse.kernels.names import recognise

    for instruction in ("FADD", "FMUL", "FFMA"):
        value = getattr(derived, instruction.lower())
        if value is not None:
            yield instruction, value
    if derived.tensor is None:
        return
    algorithm = recognise(name)
    each = FLOPS_PER_INSTRUCTION.get((algorithm.math or "", algorithm.instruction or ""))
    yield ("HMMA", derived.tensor / each) if each else (TENSOR_FLOP, derived.tensor)
