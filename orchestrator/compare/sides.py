"""Which runs of two sides are compared (by workload and options, batch size, and profiler), and the
facts about them: what differs, and whether that makes them incomparable."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from perfctl.orchestrator.ledger.prepared import (
    PreparedRun,
    Study,
    format_study_heading,
    get_device_label,
    group_into_studies,
)
from perfctl.orchestrator.ledger.timing import rank_profiler_clock
from perfctl.orchestrator.ledger.usage.served import find_constant_sequences_per_step
from perfctl.records.report import CPU_OTHERS, CPU_WAIT
from perfctl.records.run import Point, Run, format_sweep_point, get_batch_size_sort_key

NOT_RECORDED = "not recorded"
CPU_BUSY_SHARE_MAX = 0.05
"""A larger share of waiting, or of cores that other programs use, makes a time on a CPU that of the
other programs too."""
SAME_LENGTH_SHARE_MAX = 0.95
"""A report with more of the other's launches is of the same length."""
SAME_LAUNCHES_MIN = 10
"""Launches of the shorter report; fewer are alike by chance."""
SAME_LAUNCHES_SHARE_MIN = 0.95
"""Launches of the same kernel at the same place, before one report is the beginning of another."""
_OTHER_WORK = "the measured work differs"
_OTHER_SOFTWARE = "an upgrade, which may be the cause"
_INFORMATION = "said only"


@dataclass(frozen=True, slots=True)
class FactDifference:
    """A fact that is not the same on both sides."""

    fact: str
    a: str
    b: str
    blocks: bool
    """True: times are not comparable; False: for information."""
    reason: str
    software: bool = False
    """A library or driver: a possible cause of the change, which does not block."""

    @property
    def sentence(self) -> str:
        """ "torch: 2.8.0 in A, 2.9.0 in B"."""
        return f"{self.fact}: {self.a} in A, {self.b} in B"


class RunFact(NamedTuple):
    """One fact about a run."""

    name: str
    blocks: bool
    """True where another value is other work or another machine, so that times say nothing about
    a change."""
    why: str
    read: Callable[[Run], str | None]
    tolerance: float = 0.0
    """Relative difference of numbers that counts as equal: power and temperature change clocks."""
    software: bool = False
    """A library or driver: its upgrade is what may be compared, so it blocks only where repeats of
    one side differ in it."""

    def values(self, runs: Iterable[Run]) -> tuple[str, ...]:
        """Return the distinct values that these runs recorded, sorted."""
        return tuple(sorted({text for run in runs if (text := self.read(run)) is not None}))

    def is_same_on_both_sides(self, a: Sequence[str], b: Sequence[str]) -> bool:
        """Return whether both sides have this fact in common, numbers within the tolerance."""
        numbers = [
            [float(number) for text in side for number in re.findall(r"\d+(?:\.\d+)?", text)]
            for side in (a, b)
        ]
        if a == b and len(a) == 1:
            return True
        if self.tolerance and all(numbers):
            return max(map(max, numbers)) <= min(map(min, numbers)) * (1 + self.tolerance)
        return a == b and not (self.blocks or self.software)


def _make_environment_reader(key: str, *, only_on_cpu: bool = False) -> Callable[[Run], str | None]:
    """Return a reader of a recorded value; ``only_on_cpu``: it matters only if the CPU is what is
    timed."""

    def read_value(run: Run) -> str | None:
        if only_on_cpu and run.device_kind != "cpu":
            return None
        return run.report.environment.get(key)

    return read_value


def format_commit_and_changes(run: Run) -> str | None:
    """Return "1a2b3c4d5e6f" or "1a2b3c4d5e6f + changes": the commit of the user's code, None if it
    was not recorded."""
    commit = run.report.environment.get("commit")
    changed = run.report.environment.get("uncommitted_changes") == "yes"
    return f"{commit[:12]}{' + changes' if changed else ''}" if commit else None


def _format_median_sampled_sm_clock(run: Run) -> str | None:
    samples = [sample for sample in run.report.samples if sample.sm_clock_hz]
    busy = [sample for sample in samples if sample.gpu_utilisation]
    clocks = [sample.sm_clock_hz for sample in busy or samples if sample.sm_clock_hz]
    return f"{statistics.median(clocks) / 1e6:.0f} MHz" if clocks else None


def _make_nonblocking_fact(name: str, key: str = "") -> RunFact:
    """Return a fact that is stated only; ``key``: of the recorded value, if not the name."""
    return RunFact(name, False, _INFORMATION, _make_environment_reader(key or name))


FACTS = (
    RunFact("workload", True, _OTHER_WORK, lambda run: run.workload),
    RunFact("variant", True, _OTHER_WORK, lambda run: run.variant or "defaults"),
    RunFact("mode", True, _OTHER_WORK, lambda run: run.mode),
    RunFact("precision", True, "the arithmetic differs", lambda run: run.precision),
    RunFact(
        "batch",
        True,
        _OTHER_WORK,
        lambda run: None if run.batch_size is None else str(run.batch_size),
    ),
    RunFact("parameters", True, _OTHER_WORK, lambda run: run.other_parameters_text or None),
    RunFact(
        "sequences",
        True,
        _OTHER_WORK,
        lambda run: (
            None if (number := find_constant_sequences_per_step(run)) is None else str(number)
        ),
    ),
    RunFact("device", True, "the difference may come from the machine", get_device_label),
    RunFact(
        "largest clock",
        True,
        "the devices have different maximum clocks",
        lambda run: next((f"{d.clock_hz / 1e6:.0f} MHz" for d in run.devices if d.clock_hz), None),
    ),
    RunFact(
        "SM clock while it ran",
        True,
        "the devices ran at different clocks",
        _format_median_sampled_sm_clock,
        0.05,
    ),
    *(
        RunFact(name, True, "TF32 changes the arithmetic", _make_environment_reader(name))
        for name in ("tf32_conv", "tf32_matmul")
    ),
    *(
        RunFact(name, False, _OTHER_SOFTWARE, _make_environment_reader(name), software=True)
        for name in ("torch", "cuda", "cudnn")
    ),
    RunFact(
        "driver",
        False,
        _OTHER_SOFTWARE,
        lambda run: next((d.driver_version for d in run.devices if d.driver_version), None),
        software=True,
    ),
    RunFact(
        "cudnn_benchmark",
        False,
        "cuDNN chooses its kernels in another way",
        _make_environment_reader("cudnn_benchmark"),
        software=True,
    ),
    *(
        RunFact(name, True, reason, _make_environment_reader(name, only_on_cpu=True))
        for name, reason in (
            ("cpu_model", "processors with the same name differ in speed"),
            ("cpu_capability", "torch uses other instructions"),
            ("threads", "on a CPU, the number of threads changes the time"),
        )
    ),
    RunFact(
        "world_size", True, _OTHER_WORK, lambda run: run.report.environment.get("world_size", "1")
    ),
    RunFact(
        "what timed the steps",
        True,
        "another clock timed the steps",
        _make_environment_reader("clock"),
    ),
    RunFact("commit", False, "your code may differ", format_commit_and_changes, software=True),
    RunFact(
        "profiler version",
        False,
        "profilers add different overhead to a step",
        lambda run: run.profiler_version,
    ),
    *map(_make_nonblocking_fact, ("perfctl", "python", "torchvision")),
    RunFact("host", False, _INFORMATION, lambda run: run.host),
    *map(_make_nonblocking_fact, ("kernel", "cpu", "cpu_count")),
    _make_nonblocking_fact("threads of the host", "threads"),
    RunFact("origin", False, _INFORMATION, lambda run: run.origin),
    *(_make_nonblocking_fact(name, f"option:{name}") for name in ("steps", "warmup", "data")),
    _make_nonblocking_fact("seed"),
)


def compare_run_facts(
    a: Sequence[Run], b: Sequence[Run]
) -> tuple[tuple[FactDifference, ...], tuple[tuple[str, str, str], ...]]:
    """Return (differences, all facts as (name, A, B)) of runs of the same profilers.

    A fact that one side did not record does not block. Software blocks only if repeats of one side
    differ in it.
    """
    differences, facts = [], []
    on_cpu = {run.device_kind for run in (*a, *b)} == {"cpu"}
    for fact in FACTS:
        values_a, values_b = fact.values(a), fact.values(b)
        if (fact.name == "threads of the host" and on_cpu) or not (values_a or values_b):
            continue
        text_a, text_b = (", ".join(values) or NOT_RECORDED for values in (values_a, values_b))
        facts.append((fact.name, text_a, text_b))
        if fact.is_same_on_both_sides(values_a, values_b):
            continue
        mixed = fact.software and max(len(values_a), len(values_b)) > 1
        blocks = (fact.blocks or mixed) and bool(values_a) and bool(values_b)
        reason = "the repeats of one side differ" if mixed else fact.why
        differences.append(FactDifference(fact.name, text_a, text_b, blocks, reason, fact.software))
    return tuple(differences), tuple(facts)


def explain_cpu_contention(runs: Iterable[Run]) -> str | None:
    """Return why times on this CPU are those of other programs too; None if they are not, or if
    nothing was recorded.

    A step takes 1/(1 - waited) of its time. If other programs hardly ran, a program's threads wait
    for each other: that is its own time.
    """
    summaries = [
        summary
        for run in runs
        if run.device is not None and run.device.kind == "cpu"
        for summary in run.report.summaries
        if summary.value is not None
    ]
    shares = (
        [summary.value or 0.0 for summary in summaries if summary.name == name]
        for name in (CPU_WAIT, CPU_OTHERS)
    )
    waited, busy_share = (statistics.median(values) if values else None for values in shares)
    if waited is None or waited <= CPU_BUSY_SHARE_MAX:
        return None
    text = (
        f"the CPU was busy: threads waited for a core in {100 * waited:.0f}% of the time that "
        "they wanted to run"
    )
    if busy_share is None:
        return text
    if busy_share <= CPU_BUSY_SHARE_MAX:
        return None
    return f"{text}, and other processes kept {100 * busy_share:.0f}% of the cores busy"


def find_truncated_side(a: Sequence[Run], b: Sequence[Run]) -> FactDifference | None:
    """Return the difference of two reports whose number of steps is unknown, if one records only
    the beginning of what the other records; None for other sides.

    The launches of the shorter are the first of the longer, by the names of their kernels in order
    of start, for at least SAME_LAUNCHES_SHARE_MIN of them."""
    if (
        len(a) != 1
        or len(b) != 1
        or not all(PreparedRun(run).step_count is None for run in (*a, *b))
    ):
        return None
    names_a, names_b = (
        [
            kernel.name
            for kernel in sorted(run.report.kernels, key=lambda kernel: kernel.start_ns or 0)
        ]
        for (run,) in (a, b)
    )
    shorter, longer = sorted((len(names_a), len(names_b)))
    if shorter < SAME_LAUNCHES_MIN or shorter > SAME_LENGTH_SHARE_MAX * longer:
        return None
    same = sum(first == second for first, second in zip(names_a, names_b, strict=False))
    if same < SAME_LAUNCHES_SHARE_MIN * shorter:
        return None
    side = "A" if len(names_a) == shorter else "B"
    reason = (
        f"{side} ends earlier: its launches are the first {shorter:,} of the other's {longer:,}"
    )
    count_a, count_b = (f"{len(names):,} launches" for names in (names_a, names_b))
    return FactDifference("end of the recording", count_a, count_b, True, reason)


class OpposedRuns(NamedTuple):
    """Runs of one setup at one batch size; on each side the repeats of one or several profilers."""

    heading: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]


class StudyAlignment(NamedTuple):
    """The pairs, and the rest in words."""

    opposed: tuple[OpposedRuns, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]


def align_runs_of_sides(a: Sequence[Run], b: Sequence[Run]) -> StudyAlignment:
    """Return the pairs of studies of two sides: equal ones first, then those of one workload that
    differ least.

    If each side has one batch size, they form a pair; different sizes block it.
    """
    pairs, rest_a, rest_b = _pair_most_similar_studies(
        list(group_into_studies(a)), list(group_into_studies(b))
    )
    opposed: list[OpposedRuns] = []
    only_a, only_b = (
        [format_study_heading(study) for study in unmatched] for unmatched in (rest_a, rest_b)
    )
    failed: list[str] = []
    for first, second in pairs:
        name = format_study_heading(first)
        runs_a, runs_b = (
            _group_newest_repeats_by_batch(first),
            _group_newest_repeats_by_batch(second),
        )
        if len(runs_a) == len(runs_b) == 1:
            opposed.append(OpposedRuns(name, *runs_a.values(), *runs_b.values()))
            continue
        for size, runs in runs_a.items():
            run_name = f"{name}, {format_sweep_point(size, 'batch None')}"
            sized = [] if size is None else second.list_runs_at(size)
            tries = [item.run for item in sized if item.run.status != "ok"]
            if size in runs_b:
                opposed.append(OpposedRuns(name, runs, runs_b[size]))
            elif tries:
                reason = tries[-1].reason or "no reason was recorded"
                failed.append(f"{run_name}: {tries[-1].status} in B: {reason}")
            else:
                only_a.append(run_name)
        only_b += [
            f"{format_study_heading(second)}, {format_sweep_point(size, 'batch None')}"
            for size in runs_b
            if size not in runs_a
        ]
    return StudyAlignment(tuple(opposed), tuple(only_a), tuple(only_b), tuple(failed))


def select_newest_repeats_by_profiler(runs: Iterable[Run]) -> dict[str, tuple[Run, ...]]:
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


def list_shared_profilers(a: Iterable[Run], b: Iterable[Run]) -> tuple[str, ...]:
    """Return the profilers of both sides, the preferred source of times first."""
    both = {run.profiler for run in a} & {run.profiler for run in b}
    return tuple(sorted(both, key=lambda profiler: (rank_profiler_clock(profiler), profiler)))


def _pair_most_similar_studies(
    a: list[Study], b: list[Study]
) -> tuple[list[tuple[Study, Study]], list[Study], list[Study]]:
    """Return (pairs in the order of A, studies of A only, studies of B only)."""
    distances = sorted(
        (distance, index_a, index_b)
        for index_a, study_a in enumerate(a)
        for index_b, study_b in enumerate(b)
        if (distance := _count_study_differences(study_a, study_b)) is not None
    )
    partners: dict[int, int] = {}
    for _, index_a, index_b in distances:
        if index_a not in partners and index_b not in partners.values():
            partners[index_a] = index_b
    pairs = [(a[index_a], b[partners[index_a]]) for index_a in sorted(partners)]
    rest_a = [study for index, study in enumerate(a) if index not in partners]
    rest_b = [study for index, study in enumerate(b) if index not in partners.values()]
    return pairs, rest_a, rest_b


def _count_study_differences(a: Study, b: Study) -> float | None:
    """Return how many facts differ; None for different workloads, or ingested reports of different
    profilers."""
    if a.workload != b.workload or (a.is_foreign and not list_shared_profilers(a.runs, b.runs)):
        return None
    differ = [
        a.variant != b.variant,
        a.mode != b.mode,
        a.precision != b.precision,
        a.device != b.device,
    ]
    common_batches = (
        _group_newest_repeats_by_batch(a).keys() & _group_newest_repeats_by_batch(b).keys()
    )
    return sum(differ) + (0.0 if common_batches else 0.5)


def _group_newest_repeats_by_batch(study: Study) -> dict[Point, tuple[Run, ...]]:
    """Return batch size, or value of other parameters, -> the newest repeats of each profiler, in
    order."""
    points = dict.fromkeys(run.point for run in study.runs if run.status == "ok")
    repeats = {
        point: select_newest_repeats_by_profiler(run for run in study.runs if run.point == point)
        for point in sorted(points, key=get_batch_size_sort_key)
    }
    return {size: tuple(chain(*runs.values())) for size, runs in repeats.items()}
