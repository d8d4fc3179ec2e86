"""Facts about runs that decide whether two sides are comparable, and what differs between them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfctl.orchestrator.ledger.prepared import device_label
from perfctl.records.report import CPU_OTHERS, CPU_WAIT
from perfctl.records.run import Run

NOT_RECORDED = "not recorded"
CPU_BUSY_SHARE_MAX = 0.05
"""A larger share of waiting, or of cores that other programs use, makes a time on a CPU that of the
other programs too."""
_OTHER_WORK = "other work is timed"
_OTHER_SOFTWARE = "an upgrade, which may be the cause"
_INFORMATION = "said only"


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same on both sides."""

    fact: str
    a: str
    b: str
    blocks: bool
    """True: times are not comparable; False: for information."""
    why: str

    software: bool = False
    """A library or driver: a possible cause of the change, which does not block."""

    @property
    def sentence(self) -> str:
        """ "torch: 2.8.0 in A, 2.9.0 in B"."""
        return f"{self.fact}: {self.a} in A, {self.b} in B"


class Fact(NamedTuple):
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

    def is_same(self, a: Sequence[str], b: Sequence[str]) -> bool:
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


def _environment(key: str, *, is_for_cpu: bool = False) -> Callable[[Run], str | None]:
    """Return a reader of a recorded value; ``is_for_cpu``: it matters only if the CPU is what is
    timed."""

    def read(run: Run) -> str | None:
        if is_for_cpu and run.device_kind != "cpu":
            return None
        return run.report.environment.get(key)

    return read


def commit_of(run: Run) -> str | None:
    """Return "1a2b3c4d5e6f" or "1a2b3c4d5e6f + changes": the commit of the user's code, None if it
    was not recorded."""
    commit = run.report.environment.get("commit")
    changed = run.report.environment.get("uncommitted_changes") == "yes"
    return f"{commit[:12]}{' + changes' if changed else ''}" if commit else None


def _sampled_clock(run: Run) -> str | None:
    samples = [sample for sample in run.report.samples if sample.sm_clock_hz]
    busy = [sample for sample in samples if sample.gpu_utilisation]
    clocks = [sample.sm_clock_hz for sample in busy or samples if sample.sm_clock_hz]
    return f"{statistics.median(clocks) / 1e6:.0f} MHz" if clocks else None


def _largest_clock(run: Run) -> str | None:
    clocks = (device.clock_hz for device in run.devices if device.clock_hz)
    return next((f"{clock / 1e6:.0f} MHz" for clock in clocks), None)


def _driver(run: Run) -> str | None:
    return next((device.driver_version for device in run.devices if device.driver_version), None)


FACTS = (
    Fact("workload", True, _OTHER_WORK, lambda run: run.workload),
    Fact("variant", True, _OTHER_WORK, lambda run: run.variant or "defaults"),
    Fact("mode", True, _OTHER_WORK, lambda run: run.mode),
    Fact("precision", True, "other arithmetic is timed", lambda run: run.precision),
    Fact(
        "batch",
        True,
        _OTHER_WORK,
        lambda run: None if run.batch_size is None else str(run.batch_size),
    ),
    Fact("device", True, "the difference may come from the machine", device_label),
    Fact("largest clock", True, "the device is set to another clock", _largest_clock),
    Fact("SM clock while it ran", True, "the device ran at another clock", _sampled_clock, 0.05),
    *(
        Fact(name, True, "TF32 is other arithmetic", _environment(name))
        for name in ("tf32_conv", "tf32_matmul")
    ),
    *(
        Fact(name, False, _OTHER_SOFTWARE, _environment(name), software=True)
        for name in ("torch", "cuda", "cudnn")
    ),
    Fact("driver", False, _OTHER_SOFTWARE, _driver, software=True),
    Fact(
        "cudnn_benchmark",
        False,
        "cuDNN chooses its kernels in another way",
        _environment("cudnn_benchmark"),
        software=True,
    ),
    *(
        Fact(name, True, why, _environment(name, is_for_cpu=True))
        for name, why in (
            ("cpu_model", "processors of one name differ in speed"),
            ("cpu_capability", "torch uses other instructions"),
            ("threads", "on a CPU, threads change the time"),
        )
    ),
    Fact(
        "world_size", True, _OTHER_WORK, lambda run: run.report.environment.get("world_size", "1")
    ),
    Fact("what timed the steps", True, "steps were timed by another clock", _environment("clock")),
    Fact("commit", False, "other code of yours may have run", commit_of, software=True),
    Fact(
        "profiler version",
        False,
        "profilers differ in what they add to a step",
        lambda run: run.profiler_version,
    ),
    *(
        Fact(name, False, _INFORMATION, _environment(name))
        for name in ("perfctl", "python", "torchvision")
    ),
    Fact("host", False, _INFORMATION, lambda run: run.host),
    *(
        Fact(name, False, _INFORMATION, _environment(name))
        for name in ("kernel", "cpu", "cpu_count")
    ),
    Fact("threads of the host", False, _INFORMATION, _environment("threads")),
    Fact("origin", False, _INFORMATION, lambda run: run.origin),
    *(
        Fact(name, False, _INFORMATION, _environment(f"option:{name}"))
        for name in ("steps", "warmup", "data")
    ),
    Fact("seed", False, _INFORMATION, _environment("seed")),
)


def compare_facts(
    a: Sequence[Run], b: Sequence[Run]
) -> tuple[tuple[Difference, ...], tuple[tuple[str, str, str], ...]]:
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
        if fact.is_same(values_a, values_b):
            continue
        mixed = fact.software and max(len(values_a), len(values_b)) > 1
        blocks = (fact.blocks or mixed) and bool(values_a) and bool(values_b)
        why = "repeats of one side are not alike" if mixed else fact.why
        differences.append(Difference(fact.name, text_a, text_b, blocks, why, fact.software))
    return tuple(differences), tuple(facts)


def busy_with_others(runs: Iterable[Run]) -> str | None:
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
    waited, others = (statistics.median(values) if values else None for values in shares)
    if waited is None or waited <= CPU_BUSY_SHARE_MAX:
        return None
    text = (
        f"the CPU was busy: threads waited for a core in {100 * waited:.0f} % of the time that "
        "they wanted to run"
    )
    if others is None:
        return text
    if others <= CPU_BUSY_SHARE_MAX:
        return None
    return f"{text}, and other processes kept {100 * others:.0f} % of the cores busy"
