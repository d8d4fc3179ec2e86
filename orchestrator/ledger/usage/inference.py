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

from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.usage.readings import UsageShare, find_smallest_busy_batch
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.statistics import (
    WideInterval,
    compute_wilson_interval,
    explain_wide_share_interval,
    group_by,
)
from perfctl.records.report import Kernel
from perfctl.records.run import Run
from perfctl.records.stats import (
    PERCENTILES,
    compute_percentile,
    count_values_needed_for_percentile,
)

PAYS = 0.1
"""A larger batch pays where it gives at least so many more images per second."""
LOAD, COPY, COMPUTE = "data", "copy", "inference"
LIGHTEST_FIRST = {"none": 0, "nsys": 1, "torch": 2, "dlprof": 3}
"""Which run of a batch size is shown: the one that its profiler slows least."""
WAYS = (
    (
        "kernels",
        "kernels",
        "time with a kernel running, from the start and duration of every kernel",
    ),
    ("nvml", "sampled", "the driver's own value, sampled (approximate)"),
    ("dlprof", "DLProf", "GPU Utilization in DLProf's summary"),
)
"""(field of UtilizationBySource, short name, meaning), the most exact first."""
ON_CPU = "the runs used a CPU"
UNNAMED_SHARE_MAX = 0.1
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
class InferenceLatency:
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
    is_complete: bool = True
    """Whether the run ended as asked; one that did not is not ranked."""

    @property
    def images_per_second(self) -> float:
        return self.batch * 1e9 / self.step

    @property
    def data_load_share(self) -> float:
        return self.load / self.step

    @property
    def scored_images(self) -> int:
        """Return the number of scored images; 0 if it is not known."""
        return int(self.figures.get("images") or 0)

    @property
    def top1(self) -> float | None:
        """Return the share of images whose first answer is right; None if none was scored."""
        return self.figures.get("top1") if self.scored_images else None

    @property
    def top1_interval(self) -> tuple[float, float]:
        """Return the 95% interval of top-1 over its images; only with a top-1."""
        return compute_wilson_interval(self.top1 or 0.0, self.scored_images)

    @property
    def top1_interval_too_wide(self) -> WideInterval | None:
        """Return why that interval says nothing: so few images."""
        return (
            None
            if self.top1 is None
            else explain_wide_share_interval(self.top1, self.scored_images)
        )


def sum_step_phase_times_ns(run: Run) -> Mapping[str, Counter[int]]:
    """Return the time (ns) of each phase of a step, by phase and number of the step."""
    phases: dict[str, Counter[int]] = defaultdict(Counter)
    for row in run.report.steps:
        if row.duration_ns is not None:
            phases[row.phase][row.number] += row.duration_ns
    return phases


def compute_image_inference_latency(run: Run) -> InferenceLatency | None:
    """Return the latency of a run; None where steps were not divided into loading, copying and
    computing, or their time means nothing (ncu)."""
    report = run.report
    if run.profiler == "ncu" or run.mode != "infer" or not run.batch_size:
        return None
    phases = sum_step_phase_times_ns(run)
    steps, parts = phases["step"], [phases[name] for name in (LOAD, COPY, COMPUTE)]
    if not steps.total() or any(part.keys() != steps.keys() for part in parts):
        return None
    answers = [phases[COPY][number] + phases[COMPUTE][number] for number in steps]
    load, copy, compute, step = (part.total() / len(steps) for part in (*parts, steps))
    reasons = {gap.quantity: gap.reason for gap in report.gaps}
    for percent in PERCENTILES:
        reasons[f"p{percent}"] = (
            f"too few batches: a p{percent} needs {count_values_needed_for_percentile(percent)}"
        )
    workers = report.environment.get("option:dataloader_workers", "")
    return InferenceLatency(
        model=report.environment.get("model") or run.workload or "",
        batch=run.batch_size,
        profiler=run.profiler,
        count=len(steps),
        percentiles={percent: compute_percentile(answers, percent) for percent in PERCENTILES},
        longest=max(answers),
        load=load,
        copy=copy,
        compute=compute,
        step=step,
        workers=int(workers) if workers.isdecimal() else None,
        synthetic=report.environment.get("option:data") == "synthetic",
        figures={item.name: item.value for item in report.summaries},
        why=reasons,
        steps=tuple(float(steps[number]) for number in sorted(steps)),
        is_complete=run.status == "ok",
    )


def list_image_inference_latencies(runs: Iterable[Run]) -> tuple[InferenceLatency, ...]:
    """Return the latency of the runs that are inference over images, by model (in order of
    appearance) and batch size."""
    items = [item for item in map(compute_image_inference_latency, runs) if item is not None]
    models = [item.model for item in items]
    items.sort(
        key=lambda item: (
            models.index(item.model),
            item.batch,
            LIGHTEST_FIRST.get(item.profiler, 9),
        )
    )
    return tuple(items)


def pick_least_slowed_latency_per_batch(
    items: Iterable[InferenceLatency],
) -> tuple[InferenceLatency, ...]:
    """Return the first complete one of each model and batch size: the one that a profiler slowed
    least."""
    first: dict[tuple[str, int], InferenceLatency] = {}
    for item in (item for item in items if item.is_complete):
        first.setdefault((item.model, item.batch), item)
    return tuple(first.values())


def find_throughput_saturation_batch(images_per_second_by_batch: Mapping[int, float]) -> int:
    """The smallest batch size that no larger one beats by ``PAYS``; images_per_second_by_batch:
    batch size -> images per second."""
    return min(
        batch
        for batch, rate in images_per_second_by_batch.items()
        if all(
            other < rate * (1 + PAYS)
            for larger, other in images_per_second_by_batch.items()
            if larger > batch
        )
    )


@dataclass(frozen=True, eq=False, slots=True)
class InferencePoint:
    """One model at one batch size."""

    model: str
    batch: int | None
    """None for a report that does not say it."""
    uses: tuple[RunUsage, ...]
    """Its runs, the one that a profiler slows least first."""
    latency: InferenceLatency | None
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
class ModelBusyBatch:
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


def list_inference_points(runs: Iterable[Run]) -> tuple[InferencePoint, ...]:
    """Return the runs by model (in order of appearance) and batch size, without training and
    benchmarks.

    Runs of one model that differ in weights, precision or device are models of their own, named so.
    """
    inference = [run for run in runs if run.mode != "train"]
    names = _label_models(inference)
    pairs = zip(inference, names, strict=True)
    groups = group_by(pairs, lambda pair: (pair[1], pair[0].batch_size))
    keys = sorted(groups, key=lambda key: (names.index(key[0]), key[1] is None, key[1] or 0))
    return tuple(_build_inference_point(*key, [run for run, _ in groups[key]]) for key in keys)


def _label_models(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run's model, with the details in which its runs differ."""
    labelled = [(get_model_name(run), _list_distinguishing_model_details(run)) for run in runs]
    labels = []
    for model, details in labelled:
        others_of_model = [other for name, other in labelled if name == model and other]
        columns = zip(details, *others_of_model, strict=True) if details else ()
        differing = [detail for detail, *other_details in columns if len(set(other_details)) > 1]
        labels.append(", ".join([model, *filter(None, differing)]))
    return labels


def _list_distinguishing_model_details(run: Run) -> tuple[str, ...]:
    """Return what keeps runs of one model apart; nothing if a report does not say what ran."""
    device = next((device.name or device.kind for device in run.devices), "")
    if run.workload is None or not device:
        return ()
    return _MODEL.sub("", run.variant or "").strip(), run.precision or "", device


def get_model_name(run: Run) -> str:
    """Return the model's name as the run states it, or the workload's, or what the report's name
    leaves without batch and tool."""
    facts = run.report.environment
    in_variant = _MODEL.search(run.variant or "")
    name = facts.get("model") or facts.get("option:model") or (in_variant and in_variant[1])
    if name or run.workload:
        return name or run.workload or ""
    path = PurePath(run.artifact or "")
    for part in (path.name, path.parent.name):
        stem = re.split(r"\.(?:csv|txt|log|json|sqlite|nsys-rep|qdrep|db)\b", part, maxsplit=1)[0]
        if name := re.sub(r"[-_. =]+", " ", _TOOLS.sub(" ", _BATCH.sub(" ", stem))).strip():
            return name
    return path.stem or f"run {run.id}"


def _build_inference_point(model: str, batch: int | None, runs: Sequence[Run]) -> InferencePoint:
    uses = [
        RunUsage(run) for run in sorted(runs, key=lambda run: LIGHTEST_FIRST.get(run.profiler, 9))
    ]
    way, gpu = _find_gpu_busy_source_and_share(uses)
    peak, peak_of = _find_peak_memory_and_source(uses)
    return InferencePoint(
        model=model,
        batch=batch,
        uses=tuple(uses),
        latency=next(
            (
                item
                for use in uses
                if (item := compute_image_inference_latency(use.run)) is not None
            ),
            None,
        ),
        gpu=gpu,
        gpu_way=way,
        tensor=_find_tensor_core_share(uses),
        memory=_find_peak_memory_share(uses),
        peak=peak,
        peak_of=peak_of,
        problems=tuple(
            f"{use.run.profiler}: {use.run.status}, {use.run.reason or 'no reason given'}"
            for use in uses
            if use.run.status != "ok"
        ),
    )


def _build_missing_share(uses: Sequence[RunUsage], reason: str) -> UsageShare:
    kinds = {device.kind for use in uses for device in use.run.devices}
    return UsageShare(None, ON_CPU if kinds == {"cpu"} else reason)


def _find_gpu_busy_source_and_share(uses: Sequence[RunUsage]) -> tuple[str, UsageShare]:
    """Return the short name of a source, and the share of time with the GPU busy by it."""
    for field, short, _ in WAYS:
        for use in uses:
            share: UsageShare = getattr(use.utilization_by_source, field)
            if share.value is not None:
                return short, share
    refused = [use.utilization_by_source.dlprof for use in uses if use.run.profiler == "dlprof"]
    reason = "the report has no kernels with start times, no GPU samples and no DLProf summary"
    return "", refused[-1] if refused else _build_missing_share(uses, reason)


def _find_tensor_core_share(uses: Sequence[RunUsage]) -> UsageShare:
    for use in uses:
        for share in (
            use.utilization_by_source.dlprof_tensor,
            use.utilization_by_source.tensor_pipe,
        ):
            if share.value is not None:
                return share
    kernels = next((use.run.report.kernels for use in uses if use.run.report.kernels), ())
    if kernels:
        return compute_tensor_core_time_share(tuple(kernels))
    reason = "no kernels, counters or DLProf summary; nvidia-smi samples do not contain it"
    refused = (
        use.utilization_by_source.dlprof_tensor for use in uses if use.run.profiler == "dlprof"
    )
    return next(refused, _build_missing_share(uses, reason))


def uses_tensor_cores(kernel_name: str) -> bool | None:
    """Return True or False by a kernel's name, or None where it does not say. What computes no
    products uses no tensor cores."""
    kernel = recognise_kernel(kernel_name)
    if kernel.tensor_core is not None:
        return kernel.tensor_core
    return None if kernel.family in (None, *_ARITHMETIC) and kernel.role == "main" else False


def compute_tensor_core_time_share(kernels: Sequence[Kernel]) -> UsageShare:
    """Return the share of kernel time in kernels whose names say that they use tensor cores; not
    known where many do not say, or none says yes or no."""
    times: dict[bool | None, float] = {True: 0.0, False: 0.0, None: 0.0}
    for kernel in kernels:
        times[uses_tensor_cores(kernel.name)] += kernel.duration_ns or 0
    total = sum(times.values())
    if not total:
        return UsageShare(None, "the kernels have no durations")
    unsure = times[None] / total
    if unsure > UNNAMED_SHARE_MAX:
        reason = (
            f"{unsure * 100:.0f}% of the kernel time is in kernels whose names do not contain it"
        )
        return UsageShare(None, reason)
    if all(recognise_kernel(kernel.name).tensor_core is None for kernel in kernels):
        return UsageShare(None, "no counter and no kernel name says whether tensor cores ran")
    reason = "share of kernel time in kernels with tensor cores in their names"
    if unsure:
        reason += f"; names of {unsure * 100:.1f}% do not contain it and count as none"
    return UsageShare(times[True] / total, reason)


def _find_peak_memory_share(uses: Sequence[RunUsage]) -> UsageShare:
    for memory in (use.memory_use for use in uses):
        for used, source in (
            (memory.device, "in use on the device, highest sample"),
            (memory.reserved, "reserved by torch"),
        ):
            if used is not None and memory.device_total:
                return UsageShare(used / memory.device_total, source)
    return _build_missing_share(uses, "no sample of the GPU memory together with its size")


def _find_peak_memory_and_source(uses: Sequence[RunUsage]) -> tuple[int | None, str]:
    """Return the highest memory of the lightest run that has it, and of what it is; (None, why)
    where nothing measured it."""
    for memory in (use.memory_use for use in uses):
        for used, source in (
            (memory.process, "the process on the GPU (NVML)"),
            (memory.device, "all processes on the GPU (nvidia-smi or NVML)"),
            (memory.reserved, "reserved by torch on the GPU"),
            (memory.host_all, "resident on the host, all processes"),
            (memory.host, "resident on the host, the computing process"),
        ):
            if used is not None:
                return used, source
    return None, "no run recorded memory"


def find_smallest_busy_batch_by_model(
    points: Sequence[InferencePoint],
) -> tuple[ModelBusyBatch, ...]:
    """Return each model's smallest batch size from which on the GPU is busy at all that were
    measured, by one way."""
    by_model = group_by(points, lambda point: point.model)
    return tuple(
        _find_model_smallest_busy_batch(model, of_model) for model, of_model in by_model.items()
    )


def _find_model_smallest_busy_batch(model: str, points: Sequence[InferencePoint]) -> ModelBusyBatch:
    for _, short, meaning in WAYS:
        shares = {
            point.batch: point.gpu.value
            for point in points
            if point.batch is not None and point.gpu_way == short and point.gpu.value is not None
        }
        if shares:
            items = tuple(shares.items())
            return ModelBusyBatch(model, find_smallest_busy_batch(shares), items, short, meaning)
    has_no_size = all(point.batch is None for point in points)
    reason = "no report states its batch size" if has_no_size else points[0].gpu.reason
    return ModelBusyBatch(model, None, (), "", reason)
