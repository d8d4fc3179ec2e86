"""Which runs of A stand against which of B: by workload and options, batch size, and profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.grouping import Study, heading, studies
from perfctl.orchestrator.analyse.timing import preference
from perfctl.parsers.stored import Run


@dataclass(frozen=True, slots=True)
class Opposed:
    """Runs of one setup at one batch size; on each side one profiler's repeats, or several profilers'."""

    heading: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Everything paired, and what is left over."""

    opposed: tuple[Opposed, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]


def align(a: Sequence[Run], b: Sequence[Run]) -> Alignment:
    """Pair the studies of two sides: equal ones first, then those of one workload that differ least.

    Where each side has one batch size, and not the same, they are a pair that its batch size blocks.
    """
    pairs, left_a, left_b = _studies(list(studies(a)), list(studies(b)))
    opposed: list[Opposed] = []
    only_a = [heading(study) for study in left_a]
    only_b = [heading(study) for study in left_b]
    failed: list[str] = []
    for first, second in pairs:
        opposed += (Opposed(heading(first), _chosen(first, x), _chosen(second, y)) for x, y in _batches(first, second))
        sizes_a, sizes_b = _whole(first), _whole(second)
        crossed = len(sizes_a) == len(sizes_b) == 1
        for batch in [] if crossed else [size for size in sizes_a if size not in sizes_b]:
            tried = [run for run in second.at(batch) if run.status != "ok"] if batch is not None else []
            where = f"{heading(first)}, batch {batch}"
            if tried:
                failed.append(f"{where}: {tried[-1].status} in B: {tried[-1].reason or 'no reason was recorded'}")
            else:
                only_a.append(where)
        only_b += [f"{heading(second)}, batch {size}" for size in sizes_b if size not in sizes_a and not crossed]
    return Alignment(tuple(opposed), tuple(only_a), tuple(only_b), tuple(failed))


def repeats(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """profiler -> its whole runs, those of the newest sweep that has any: the runs of one sweep are repeats."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.status == "ok":
            found.setdefault(run.profiler, []).append(run)
    newest = {profiler: max(run.sweep_id for run in every) for profiler, every in found.items()}
    return {
        profiler: tuple(run for run in every if run.sweep_id == newest[profiler]) for profiler, every in found.items()
    }


def common(a: Iterable[Run], b: Iterable[Run]) -> tuple[str, ...]:
    """Profilers of both sides, the one to take times from first."""
    both = {run.profiler for run in a} & {run.profiler for run in b}
    return tuple(sorted(both, key=lambda profiler: (preference(profiler), profiler)))


def _studies(a: list[Study], b: list[Study]) -> tuple[list[tuple[Study, Study]], list[Study], list[Study]]:
    """(pairs in the order of A, what A has alone, what B has alone)."""
    found: list[tuple[int, Study, Study]] = []
    left_a, left_b = dict(enumerate(a)), dict(enumerate(b))
    every = [(_apart(one, other), place, at) for place, one in left_a.items() for at, other in left_b.items()]
    for _, place, at in sorted(item for item in every if item[0] is not None):
        if place in left_a and at in left_b:
            found.append((place, left_a.pop(place), left_b.pop(at)))
    ordered = sorted(found, key=lambda item: item[0])
    return [(one, other) for _, one, other in ordered], list(left_a.values()), list(left_b.values())


def _apart(one: Study, other: Study) -> float | None:
    """How many facts differ; None where they are no pair: another workload, or reports of other profilers."""
    if one.workload != other.workload:
        return None
    if one.foreign and not common(one.runs, other.runs):
        return None
    facts = ("variant", "mode", "precision", "device")
    differ = sum(getattr(one, fact) != getattr(other, fact) for fact in facts)
    return float(differ) if set(_whole(one)) & set(_whole(other)) else differ + 0.5


def _whole(study: Study) -> list[int | None]:
    """Batch sizes with a whole run, ascending; None stands for an unknown one."""
    found = {run.batch_size for run in study.runs if run.status == "ok"}
    return sorted(found, key=lambda batch: batch or 0)


def _batches(one: Study, other: Study) -> list[tuple[int | None, int | None]]:
    sizes_a, sizes_b = _whole(one), _whole(other)
    if len(sizes_a) == len(sizes_b) == 1:
        return [(sizes_a[0], sizes_b[0])]
    return [(batch, batch) for batch in sizes_a if batch in sizes_b]


def _chosen(study: Study, batch: int | None) -> tuple[Run, ...]:
    at = [run for run in study.runs if run.batch_size == batch]
    return tuple(run for several in repeats(at).values() for run in several)
