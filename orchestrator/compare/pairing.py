"""Which runs of two sides are compared: by workload and options, batch size, and profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfctl.orchestrator.ledger.prepared import Study, heading, studies
from perfctl.orchestrator.ledger.timing import preference
from perfctl.records.run import Run


class Opposed(NamedTuple):
    """Runs of one setup at one batch size; on each side the repeats of one or several profilers."""

    heading: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]


class Alignment(NamedTuple):
    """The pairs, and the rest in words."""

    opposed: tuple[Opposed, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]


def align(a: Sequence[Run], b: Sequence[Run]) -> Alignment:
    """Return the pairs of studies of two sides: equal ones first, then those of one workload that
    differ least.

    If each side has one batch size, they form a pair; different sizes block it.
    """
    pairs, rest_a, rest_b = _pair_studies(list(studies(a)), list(studies(b)))
    opposed: list[Opposed] = []
    only_a, only_b = ([heading(study) for study in rest] for rest in (rest_a, rest_b))
    failed: list[str] = []
    for first, second in pairs:
        name = heading(first)
        sizes_a, sizes_b = _complete_batches(first), _complete_batches(second)
        if len(sizes_a) == len(sizes_b) == 1:
            opposed.append(Opposed(name, _runs_at(first, *sizes_a), _runs_at(second, *sizes_b)))
            continue
        for size in sizes_a:
            where = f"{name}, batch {size}"
            sized = [] if size is None else second.recorded(size)
            tries = [item.run for item in sized if item.run.status != "ok"]
            if size in sizes_b:
                opposed.append(Opposed(name, _runs_at(first, size), _runs_at(second, size)))
            elif tries:
                reason = tries[-1].reason or "no reason was recorded"
                failed.append(f"{where}: {tries[-1].status} in B: {reason}")
            else:
                only_a.append(where)
        only_b += [f"{heading(second)}, batch {size}" for size in sizes_b if size not in sizes_a]
    return Alignment(tuple(opposed), tuple(only_a), tuple(only_b), tuple(failed))


def newest_repeats(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
    """Return profiler -> its complete runs of its newest sweep: runs of one sweep are repeats."""
    complete = [run for run in runs if run.status == "ok"]
    newest: dict[str, int] = {}
    for run in complete:
        newest[run.profiler] = max(run.sweep_id, newest.get(run.profiler, run.sweep_id))
    return {
        profiler: tuple(
            run for run in complete if (run.profiler, run.sweep_id) == (profiler, sweep)
        )
        for profiler, sweep in newest.items()
    }


def shared_profilers(a: Iterable[Run], b: Iterable[Run]) -> tuple[str, ...]:
    """Return the profilers of both sides, the preferred source of times first."""
    both = {run.profiler for run in a} & {run.profiler for run in b}
    return tuple(sorted(both, key=lambda profiler: (preference(profiler), profiler)))


def _pair_studies(
    a: list[Study], b: list[Study]
) -> tuple[list[tuple[Study, Study]], list[Study], list[Study]]:
    """Return (pairs in the order of A, studies of A only, studies of B only)."""
    distances = sorted(
        (distance, index_a, index_b)
        for index_a, study_a in enumerate(a)
        for index_b, study_b in enumerate(b)
        if (distance := _distance(study_a, study_b)) is not None
    )
    partners: dict[int, int] = {}
    for _, index_a, index_b in distances:
        if index_a not in partners and index_b not in partners.values():
            partners[index_a] = index_b
    pairs = [(a[index_a], b[partners[index_a]]) for index_a in sorted(partners)]
    rest_a = [study for index, study in enumerate(a) if index not in partners]
    rest_b = [study for index, study in enumerate(b) if index not in partners.values()]
    return pairs, rest_a, rest_b


def _distance(a: Study, b: Study) -> float | None:
    """Return how many facts differ; None for different workloads, or ingested reports of different
    profilers."""
    if a.workload != b.workload or (a.foreign and not shared_profilers(a.runs, b.runs)):
        return None
    differ = [
        a.variant != b.variant,
        a.mode != b.mode,
        a.precision != b.precision,
        a.device != b.device,
    ]
    has_common_batch = bool(set(_complete_batches(a)) & set(_complete_batches(b)))
    return sum(differ) + (0.0 if has_common_batch else 0.5)


def _complete_batches(study: Study) -> list[int | None]:
    sizes = {run.batch_size for run in study.runs if run.status == "ok"}
    return sorted(sizes, key=lambda size: size or 0)


def _runs_at(study: Study, batch: int | None) -> tuple[Run, ...]:
    runs = [run for run in study.runs if run.batch_size == batch]
    return tuple(run for repeats in newest_repeats(runs).values() for run in repeats)
