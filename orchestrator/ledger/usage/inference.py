"""Inference at low batch: what all runs of a model at a batch size say together, and from which
batch size the GPU is busy. Latency (copies and computation of one full batch), waits for images and
accuracy of each run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.orchestrator.ledger.usage.busy import BUSY, UsageShare
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Kernel
from perfctl.records.run import Run
from perfctl.records.stats import PERCENTILES, needed, percentile

PAYS = 0.1
"""A larger batch pays where it gives at least so many more images per second."""
LOAD, COPY, COMPUTE = "data", "copy", "inference"
LIGHTEST_FIRST = {"none": 0, "nsys": 1, "torch": 2, "dlprof": 3}
"""Which run of a batch size is shown: the one that its profiler slows least."""
WAYS = (
    ("kernels", "kernels", "time with a kernel running, from start and length of every kernel"),
    ("nvml", "sampled", "the driver's own figure, sampled: an estimate"),
    ("dlprof", "DLProf", "GPU Utilization in DLProf's summary"),
)
"""(field of Ways, short name, meaning), the most exact first."""
ON_CPU = "the runs were on a CPU"
_UNSURE = 0.1
"""Share of kernel time whose names do not say whether they use tensor cores, above which their
share is not known."""
_ARITHMETIC = ("conv", "winograd", "gemm", "attention", "rnn", "depthwise")
_MODEL = re.compile(r"(?:^| )model=(\S+)")
_BATCH = re.compile(
    r"(?:batch(?:[-_ ]?size)?|bs|b)[-_= ]?\d+(?![a-z0-9])|(?<![a-z0-9])"
    r"\d+[-_]?batch(?:es)?(?![a-z0-9])",
    re.IGNORECASE,
)
_TOOLS = re.compile(
    "(?<![a-z])(?:nvidia[-_]?smi|dlprof|dldb|nsys|profile|gpu|cpu|mem|memory|log|stats|summary|"
    "report|reports|usage|util|samples)(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Latency:
    """One run of inference, per full batch; times in nanoseconds."""

    model: str
    batch: int
    profiler: str
    count: int
    percentiles: Mapping[int, float | None]
    """50, 95, 99 -> time of an answer; None where there are too few batches to know."""
    longest: float
    load: float
    """Mean wait for images in a step; copies and computation likewise. Means add up to the
    mean step."""
    copy: float
    compute: float
    step: float
    workers: int | None
    synthetic: bool
    """Images were generated, not read: the wait for them says nothing about real ones."""
    figures: Mapping[str, float | None]
    """images, images_skipped, top1, top5 (0..1), loss, as the run's summary rows state them."""
    why: Mapping[str, str]
    """Name of a figure that is None -> the reason."""
    steps: tuple[float, ...] = ()
    """Each whole step, in order; ``step`` is their mean."""

    @property
    def images_per_second(self) -> float:
        return self.batch * 1e9 / self.step

    @property
    def load_share(self) -> float:
        return self.load / self.step


def latency(run: Run) -> Latency | None:
    """None where steps were not divided into loading, copying and computing, or their time means
    nothing (ncu)."""
    report = run.report
    if run.profiler == "ncu" or run.mode != "infer" or not run.batch_size:
        return None
    phases: dict[str, Counter[int]] = defaultdict(Counter)
    for row in report.steps:
        if row.duration_ns is not None:
            phases[row.phase][row.number] += row.duration_ns
    whole = phases["step"]
    if not whole.total() or any(
        phases[name].keys() != whole.keys() for name in (LOAD, COPY, COMPUTE)
    ):
        return None
    answers = [phases[COPY][number] + phases[COMPUTE][number] for number in whole]
    load, copy, compute, step = (
        phases[name].total() / len(whole) for name in (LOAD, COPY, COMPUTE, "step")
    )
    why = {gap.quantity: gap.reason for gap in report.gaps}
    why |= {
        f"p{percent}": f"too few batches: a p{percent} takes {needed(percent)}"
        for percent in PERCENTILES
    }
    workers = report.environment.get("option:dataloader_workers", "")
    return Latency(
        model=report.environment.get("model") or run.workload or "",
        batch=run.batch_size,
        profiler=run.profiler,
        count=len(whole),
        percentiles={percent: percentile(answers, percent) for percent in PERCENTILES},
        longest=max(answers),
        load=load,
        copy=copy,
        compute=compute,
        step=step,
        workers=int(workers) if workers.isdecimal() else None,
        synthetic=report.environment.get("option:data") == "synthetic",
        figures={item.name: item.value for item in report.summaries},
        why=why,
        steps=tuple(float(whole[number]) for number in sorted(whole)),
    )


def latencies(runs: Iterable[Run]) -> tuple[Latency, ...]:
    """Those of the runs that are inference over images, by model (in order of appearance) and
    batch size."""
    found = [item for item in map(latency, runs) if item is not None]
    order = {
        model: place for place, model in enumerate(dict.fromkeys(item.model for item in found))
    }
    return tuple(
        sorted(
            found,
            key=lambda item: (order[item.model], item.batch, LIGHTEST_FIRST.get(item.profiler, 9)),
        )
    )


def least_watched(found: Iterable[Latency]) -> tuple[Latency, ...]:
    """One of each model and batch size, the first: the one that a profiler slowed least."""
    kept: dict[tuple[str, int], Latency] = {}
    for item in found:
        kept.setdefault((item.model, item.batch), item)
    return tuple(kept.values())


def pays_until(rates: Mapping[int, float]) -> int:
    """The smallest batch size that no larger one beats by ``PAYS``; rates: batch size -> images
    per second."""
    return min(
        batch
        for batch, rate in rates.items()
        if all(other < rate * (1 + PAYS) for larger, other in rates.items() if larger > batch)
    )


@dataclass(frozen=True, eq=False, slots=True)
class InferencePoint:
    """One model at one batch size."""

    model: str
    batch: int | None
    """None for a report that does not say it."""
    uses: tuple[RunUsage, ...]
    """Its runs, the one that a profiler slows least first."""
    latency: Latency | None
    gpu: UsageShare
    """Share of time with the GPU busy, by the most exact way that is known; ``gpu_way`` is that
    way's short name, or ""."""
    gpu_way: str
    tensor: UsageShare
    """Tensor cores: DLProf's figure, else the counted share of cycles, else the share of kernel
    time by kernel names."""
    memory: UsageShare
    """Highest reading of the GPU's memory in use over all that it has."""
    peak: int | None
    """Highest memory in bytes; ``peak_of`` says of what."""
    peak_of: str
    problems: tuple[str, ...]
    """Why its runs are not whole."""

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(use.run for use in self.uses)

    @property
    def on_cpu(self) -> bool:
        """True where all that is known of its runs is a CPU."""
        kinds = {device.kind for run in self.runs for device in run.devices}
        return kinds == {"cpu"}


@dataclass(frozen=True, slots=True)
class BusyFrom:
    """From which batch size on one model keeps the GPU busy."""

    model: str
    batch: int | None
    """None where it is busy at none of the measured batch sizes, or nothing is known (``way``
    is empty)."""
    measured: tuple[tuple[int, float], ...]
    """(batch size, busy share), ascending, all by one way."""
    way: str
    reason: str
    """What the way means, or why nothing is known."""


def inference_points(runs: Iterable[Run]) -> tuple[InferencePoint, ...]:
    """The runs by model (in order of appearance) and batch size; training and benches are left out.

    Runs of one model that differ in weights, precision or device are models of their own, named so.
    """
    kept = [run for run in runs if run.mode != "train"]
    names = _labels(kept)
    groups: dict[tuple[str, int | None], list[Run]] = {}
    for run, name in zip(kept, names, strict=True):
        groups.setdefault((name, run.batch_size), []).append(run)
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    keys = sorted(groups, key=lambda key: (order[key[0]], key[1] is None, key[1] or 0))
    return tuple(_point(model, batch, groups[model, batch]) for model, batch in keys)


def _labels(runs: Sequence[Run]) -> list[str]:
    about = [(model_of(run), _details(run)) for run in runs]
    kinds: dict[str, list[tuple[str, ...]]] = {}
    for model, details in about:
        if details and details not in kinds.setdefault(model, []):
            kinds[model].append(details)
    found = []
    for model, details in about:
        others = kinds.get(model, [])
        differs = [
            part
            for place, part in enumerate(details)
            if len({other[place] for other in others}) > 1
        ]
        found.append(", ".join([model, *filter(None, differs)]))
    return found


def _details(run: Run) -> tuple[str, ...]:
    """What keeps runs of one model apart; nothing for a report that does not say what ran."""
    if run.workload is None:
        return ()
    device = next((one.name or one.kind for one in run.devices), "")
    rest = _MODEL.sub("", run.variant or "").strip()
    return (rest, run.precision or "", device) if device else ()


def model_of(run: Run) -> str:
    """The model's name as the run says it, else the workload's, else what the report's name leaves
    without batch and tool."""
    facts = run.report.environment
    named = (
        facts.get("model")
        or facts.get("option:model")
        or (_MODEL.search(run.variant or "") or ("", ""))[1]
    )
    if named or run.workload:
        return named or run.workload or ""
    place = PurePath(run.artifact or "")
    for part in (place.name, place.parent.name):
        rest = re.split(r"\.(?:csv|txt|log|json|sqlite|nsys-rep|qdrep|db)\b", part, maxsplit=1)[0]
        if name := re.sub(r"[-_. =]+", " ", _TOOLS.sub(" ", _BATCH.sub(" ", rest))).strip():
            return name
    return place.stem or f"run {run.id}"


def _point(model: str, batch: int | None, runs: Sequence[Run]) -> InferencePoint:
    uses = [
        RunUsage(run) for run in sorted(runs, key=lambda run: LIGHTEST_FIRST.get(run.profiler, 9))
    ]
    timed = next((found for use in uses if (found := latency(use.run)) is not None), None)
    way, gpu = _busy(uses)
    peak, peak_of = peak_memory(uses)
    bad = (use.run for use in uses if use.run.status != "ok")
    problems = tuple(
        f"{run.profiler}: {run.status}, {run.reason or 'no reason given'}" for run in bad
    )
    return InferencePoint(
        model,
        batch,
        tuple(uses),
        timed,
        gpu,
        way,
        _tensor(uses),
        _memory_share(uses),
        peak,
        peak_of,
        problems,
    )


def _why(uses: Sequence[RunUsage], otherwise: str) -> UsageShare:
    kinds = {device.kind for use in uses for device in use.run.devices}
    return UsageShare(None, ON_CPU if kinds == {"cpu"} else otherwise)


def _busy(uses: Sequence[RunUsage]) -> tuple[str, UsageShare]:
    refused = None
    for field, short, _ in WAYS:
        for use in uses:
            share: UsageShare = getattr(use.ways, field)
            if share.value is not None:
                return short, share
            if field == "dlprof" and use.run.profiler == "dlprof":
                refused = share
    return "", refused or _why(
        uses, "no kernels with start times, no samples of the GPU, no summary of DLProf"
    )


def _tensor(uses: Sequence[RunUsage]) -> UsageShare:
    stated = [
        share
        for use in uses
        for share in (use.ways.dlprof_tensor, use.ways.tensor_pipe)
        if share.value is not None
    ]
    if stated:
        return stated[0]
    for use in uses:
        if use.run.report.kernels:
            return tensor_share(tuple(use.run.report.kernels))
    said = [use.ways.dlprof_tensor for use in uses if use.run.profiler == "dlprof"]
    return (
        said[0]
        if said
        else _why(uses, "no kernels, counters or summary of DLProf: readings of nvidia-smi lack it")
    )


def uses_tensor_cores(name: str) -> bool | None:
    """By a kernel's name: True, False, or None where it does not say. What does no products
    uses none."""
    found = recognise(name)
    if found.tensor_core is not None:
        return found.tensor_core
    return None if found.family in (None, *_ARITHMETIC) and found.role == "main" else False


def tensor_share(kernels: Sequence[Kernel]) -> UsageShare:
    """Share of kernel time in kernels whose names say that they use tensor cores; not known where
    many do not say."""
    times: dict[bool | None, float] = {True: 0.0, False: 0.0, None: 0.0}
    for kernel in kernels:
        times[uses_tensor_cores(kernel.name)] += kernel.duration_ns or 0
    whole = sum(times.values())
    if not whole:
        return UsageShare(None, "the kernels have no durations")
    unsure = times[None] / whole
    if unsure > _UNSURE:
        return UsageShare(
            None,
            f"{unsure:.0%} of the kernel time is in kernels whose names do not say".replace(
                "%", " %"
            ),
        )
    more = (
        f"; names of {unsure:.1%} do not say and count as none".replace("%", " %") if unsure else ""
    )
    return UsageShare(
        times[True] / whole, f"share of kernel time in kernels whose names say tensor cores{more}"
    )


def _memory_share(uses: Sequence[RunUsage]) -> UsageShare:
    for use in uses:
        found = use.memory
        for used, what in (
            (found.device, "in use on the device, highest reading"),
            (found.reserved, "reserved by torch"),
        ):
            if used is not None and found.device_total:
                return UsageShare(used / found.device_total, what)
    return _why(uses, "no reading of the GPU's memory together with its size")


def peak_memory(uses: Sequence[RunUsage]) -> tuple[int | None, str]:
    """Highest memory of the lightest run that has it, and of what it is; (None, why) where nothing
    measured it."""
    for use in uses:
        found = use.memory
        known = (
            (found.process, "the process on the GPU (NVML)"),
            (found.device, "everybody on the GPU (nvidia-smi or NVML)"),
            (found.reserved, "reserved by torch on the GPU"),
            (found.host_all, "resident on the host, all processes"),
            (found.host, "resident on the host, the process that computes"),
        )
        for value, what in known:
            if value is not None:
                return value, what
    return None, "no run recorded memory"


def busy_from(points: Sequence[InferencePoint], threshold: float = BUSY) -> tuple[BusyFrom, ...]:
    """Each model's smallest batch size from which on the GPU is busy at all that were measured, by
    one way."""
    found = []
    for model in dict.fromkeys(point.model for point in points):
        mine = [point for point in points if point.model == model]
        found.append(
            _busy_from(model, [point for point in mine if point.batch is not None], mine, threshold)
        )
    return tuple(found)


def _busy_from(
    model: str, sized: Sequence[InferencePoint], every: Sequence[InferencePoint], threshold: float
) -> BusyFrom:
    for _, short, meaning in WAYS:
        shares = tuple(
            (point.batch or 0, point.gpu.value)
            for point in sized
            if point.gpu_way == short and point.gpu.value is not None
        )
        if shares:
            busy = [
                batch
                for batch, _ in shares
                if all(share >= threshold for at, share in shares if at >= batch)
            ]
            return BusyFrom(model, min(busy, default=None), shares, short, meaning)
    if every and not sized:
        return BusyFrom(model, None, (), "", "no report says its batch size")
    reasons = dict.fromkeys(point.gpu.reason for point in every)
    return BusyFrom(model, None, (), "", next(iter(reasons), "no run"))
