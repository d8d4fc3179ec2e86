"""Which facts must agree before times are compared, and which are only said when they do not: one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from perfctl.orchestrator.analyse.compare_records import Difference
from perfctl.orchestrator.analyse.grouping import device_kind, device_label
from perfctl.parsers.stored import Run

NOT_RECORDED = "not recorded"
CLOCK_TOLERANCE = 0.05
"""Clocks sampled during the runs may differ by so much: power and temperature move them."""


class Fact(NamedTuple):
    """One thing that a run was made with."""

    name: str
    blocks: bool
    why: str
    read: Callable[[Run], str | None]
    """None where the run does not say."""
    tolerance: float = 0.0
    """Numbers that are closer than this share are the same."""


def _said(key: str) -> Callable[[Run], str | None]:
    return lambda run: run.report.environment.get(key)


def _driver(run: Run) -> str | None:
    return next((device.driver_version for device in run.devices if device.driver_version), None)


def _largest_clock(run: Run) -> str | None:
    found = next((device.clock_hz for device in run.devices if device.clock_hz), None)
    return _megahertz(found)


def _sampled_clock(run: Run) -> str | None:
    """Median while the device was in use; of all samples where none says so."""
    read = [sample for sample in run.report.samples if sample.sm_clock_hz]
    busy = [sample for sample in read if sample.gpu_utilisation]
    clocks = [sample.sm_clock_hz for sample in busy or read if sample.sm_clock_hz]
    return _megahertz(statistics.median(clocks)) if clocks else None


def _megahertz(hertz: float | None) -> str | None:
    return None if hertz is None else f"{hertz / 1e6:.0f} MHz"


def _on_cpu(read: Callable[[Run], str | None]) -> Callable[[Run], str | None]:
    return lambda run: read(run) if device_kind(run) == "cpu" else None


_OTHER_WORK = "other work is timed"
_OTHER_MACHINE = "the difference is the machine's"
_OTHER_SOFTWARE = "the difference may be the library's, and not the program's"
FACTS: tuple[Fact, ...] = (
    Fact("workload", True, _OTHER_WORK, lambda run: run.workload),
    Fact("variant", True, _OTHER_WORK, lambda run: run.variant or "defaults"),
    Fact("mode", True, _OTHER_WORK, lambda run: run.mode),
    Fact("precision", True, "other arithmetic is timed", lambda run: run.precision),
    Fact("batch", True, _OTHER_WORK, lambda run: None if run.batch_size is None else str(run.batch_size)),
    Fact("device", True, _OTHER_MACHINE, device_label),
    Fact("largest clock", True, "the device is set to another clock", _largest_clock),
    Fact("SM clock while it ran", True, "the device ran at another clock", _sampled_clock, CLOCK_TOLERANCE),
    Fact("tf32_conv", True, "TF32 is other arithmetic", _said("tf32_conv")),
    Fact("tf32_matmul", True, "TF32 is other arithmetic", _said("tf32_matmul")),
    Fact("torch", True, _OTHER_SOFTWARE, _said("torch")),
    Fact("cuda", True, _OTHER_SOFTWARE, _said("cuda")),
    Fact("cudnn", True, _OTHER_SOFTWARE, _said("cudnn")),
    Fact("driver", True, _OTHER_SOFTWARE, _driver),
    Fact("cudnn_benchmark", True, "cuDNN chooses its kernels in another way", _said("cudnn_benchmark")),
    Fact("threads", True, "the CPU's threads are the machine there", _on_cpu(_said("threads"))),
    Fact("world_size", True, _OTHER_WORK, lambda run: run.report.environment.get("world_size", "1")),
    Fact("what timed the steps", True, "steps were timed by another clock", _said("clock")),
    Fact("profiler version", False, "profilers differ in what they add to a step", lambda run: run.profiler_version),
    Fact("perfctl", False, "said only", _said("perfctl")),
    Fact("python", False, "said only", _said("python")),
    Fact("torchvision", False, "said only", _said("torchvision")),
    Fact("host", False, "said only", lambda run: run.host),
    Fact("kernel", False, "said only", _said("kernel")),
    Fact("cpu", False, "said only", _said("cpu")),
    Fact("cpu_count", False, "said only", _said("cpu_count")),
    Fact("threads of the host", False, "said only", _said("threads")),
    Fact("origin", False, "said only", lambda run: run.origin),
    Fact("steps", False, "said only", _said("option:steps")),
    Fact("warmup", False, "said only", _said("option:warmup")),
    Fact("data", False, "said only", _said("option:data")),
    Fact("seed", False, "said only", _said("seed")),
)
"""Every fact that is compared, in the order in which it is said."""


def compared(a: Sequence[Run], b: Sequence[Run]) -> tuple[tuple[Difference, ...], tuple[tuple[str, str, str], ...]]:
    """(what differs, every fact with what both sides say). Runs of the same profiler on both sides.

    A fact that one side did not record is said and does not block: nothing shows that it differs.
    """
    differences, facts = [], []
    for fact in FACTS:
        if fact.name == "threads of the host" and {device_kind(run) for run in (*a, *b)} == {"cpu"}:
            continue
        said_a, said_b = _values(fact, a), _values(fact, b)
        if not said_a and not said_b:
            continue
        words_a, words_b = (", ".join(said) or NOT_RECORDED for said in (said_a, said_b))
        facts.append((fact.name, words_a, words_b))
        if _same(fact, said_a, said_b):
            continue
        blocks = fact.blocks and bool(said_a) and bool(said_b)
        differences.append(Difference(fact.name, words_a, words_b, blocks, fact.why))
    return tuple(differences), tuple(facts)


def _values(fact: Fact, runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(sorted({said for run in runs if (said := fact.read(run)) is not None}))


def _same(fact: Fact, a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """The same one value on both sides. Repeats that differ among themselves are not the same either, if it matters."""
    if fact.tolerance and a and b:
        numbers = [float(text.split()[0]) for text in (*a, *b)]
        return max(numbers) <= min(numbers) * (1 + fact.tolerance)
    return a == b and (len(a) == 1 or not fact.blocks)
