"""Findings of inference at low batch: sentences about each quantity that compare the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from perfctl.orchestrator.compare.sides import explain_busy_cpu
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import (
    PAYS,
    InferenceLatency,
    InferencePoint,
    ModelBusyBatch,
    find_last_paying_batch,
    list_latencies,
    measure_latency,
    pick_least_profiled,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY
from perfctl.orchestrator.report.numbers import format_percent, format_rate, format_time
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.studies.inference_fields import format_rate_range
from perfctl.orchestrator.statistics import (
    FEWEST_STEPS,
    RatioInterval,
    UntestedRatio,
    compare_samples,
    group_by,
)
from perfctl.records.run import Run

UNEVEN_MIN = 1.5
"""Smallest p95 / median that is reported as an uneven latency."""
WAITING_MIN = 0.2
"""Smallest share of a step that is reported as waiting for images."""
BUSY_WAYS = {"kernels": "its kernels", "sampled": "sampling", "DLProf": "DLProf's summary"}
Timed = Mapping[str, Sequence[InferenceLatency]]
"""Model -> its timed batch sizes, ascending."""


def is_timed_inference(study: Study) -> bool:
    """Return whether the study is inference over images, with times of its batches."""
    return not study.is_foreign and any(measure_latency(run) is not None for run in study.runs)


def list_inference_findings(runs: Iterable[Run]) -> list[Finding]:
    """Return the findings of all quantities that the steps of the runs give; empty if no run is
    inference over images."""
    runs = list(runs)
    timed = group_by(pick_least_profiled(list_latencies(runs)), lambda item: item.model)
    texts = (
        *judge_if_cpu_was_idle(judge_throughput, timed, runs),
        *judge_if_cpu_was_idle(judge_latency, timed, runs),
        *judge_accuracy(timed),
        *judge_unreadable_images(timed),
    )
    return [Finding(text, "inference") for text in dict.fromkeys(texts)]


def judge_if_cpu_was_idle(
    judge: Callable[[Timed], Iterator[str]], timed: Timed, runs: Iterable[Run]
) -> Iterator[str]:
    """Yield what ``judge`` says of the times, unless other programs kept the CPU busy."""
    busy = explain_busy_cpu(runs)
    if busy is None:
        yield from judge(timed)
    elif timed:
        yield f"Times of the models cannot be compared: {busy}."


def join_facts_of_models(lead: str, facts: Sequence[str]) -> Iterator[str]:
    """Yield one sentence with as many models as fit; nothing without facts."""
    for number in range(len(facts), 0, -1):
        ending = " and others" if number < len(facts) else ""
        text = f"{lead} {'; '.join(facts[:number])}{ending}."
        if len(text) <= LONGEST or number == 1:
            yield text
            return


def judge_throughput(timed: Timed) -> Iterator[str]:
    """Yield the fastest model, the most images per second of each, the batch size from which a
    larger one hardly pays, and what waits for images."""
    best = {
        model: max(items, key=lambda item: item.images_per_second) for model, items in timed.items()
    }
    fastest = sorted(best.items(), key=lambda pair: -pair[1].images_per_second)
    if len(fastest) > 1:
        yield _compare_two_fastest_models(*fastest[:2])
    most, pays, waits, workers = [], [], [], 0
    for model, items in timed.items():
        rates = {item.batch: item.images_per_second for item in items}
        top, last = best[model].batch, max(rates)
        details = []
        if steps := format_rate_range(best[model]):
            details.append(f"{steps} in {best[model].count} batches")
        if top != min(rates):
            details.append(f"{rates[top] / rates[min(rates)]:.1f}x batch {min(rates)}")
        ending = f" ({', '.join(details)})" if details else ""
        most.append(f"{model} {format_rate(rates[top])} at batch {top}{ending}")
        if len(rates) > 1:
            since = find_last_paying_batch(rates)
            pays.append(f"{model} none up to {last}" if since == last else f"{model} {since}")
        real = [item for item in items if not item.synthetic]
        worst = max(real, key=lambda item: item.load_share, default=None)
        if worst is not None and worst.load_share >= WAITING_MIN:
            waits.append(f"{model} {format_percent(worst.load_share)} at batch {worst.batch}")
            workers = max(workers, 2, (worst.workers or 0) * 2)
    yield from join_facts_of_models("The most images/s are:", most)
    share = f"under {PAYS * 100:.0f}%"
    yield from join_facts_of_models(
        f"A larger batch gives {share} more images/s from these batch sizes on:", pays
    )
    lead = f"Steps wait for images (--dataloader-workers {workers} loads more at once):"
    yield from join_facts_of_models(lead, waits)


def _compare_two_fastest_models(
    first: tuple[str, InferenceLatency], second: tuple[str, InferenceLatency]
) -> str:
    (model, best), (other_model, other) = first, second
    rate, other_rate = (
        f"{format_rate(item.images_per_second)} images/s at batch {item.batch}"
        for item in (best, other)
    )
    fewest = min(best.count, other.count)
    result = compare_samples(
        *([[step / item.batch for step in item.steps]] for item in (best, other))
    )
    if isinstance(result, RatioInterval) and result.low <= 1 <= result.high:
        return f"{model} and {other_model} cannot be told apart: at best {rate} and {other_rate}."
    if isinstance(result, UntestedRatio) and fewest < FEWEST_STEPS:
        return (
            f"{model} was the fastest ({rate}; {other_model} {other_rate}), but {fewest} timed "
            "batches are too few to be sure."
        )
    factor = format_times_as_many(best.images_per_second / other.images_per_second)
    return f"{model} is the fastest: {rate}, {factor} {other_model} at its best ({other_rate})."


def format_times_as_many(factor: float) -> str:
    """Return "2.8 times as many as", or "about as many as"."""
    return "about as many as" if factor < 1.05 else f"{factor:.1f} times as many as"


def judge_latency(timed: Timed) -> Iterator[str]:
    """Yield the median latency of each model, and the most uneven one."""
    medians, uneven = [], []
    for model, items in timed.items():
        ends = (items[0], *items[1:][-1:])
        medians.append(f"{model} {', '.join(map(_describe_median_latency, ends))}")
        for item in items:
            middle, high = item.percentiles[50], item.percentiles[95]
            if middle and high and high / middle >= UNEVEN_MIN:
                uneven.append(
                    (high / middle, f"{model} at batch {item.batch}: p95 is {format_time(high)}")
                )
    yield from join_facts_of_models("The median latency is:", medians)
    if uneven:
        factor, subject = max(uneven)
        ending = "; others vary too" if uneven[1:] else ""
        yield f"The latency varies most for {subject}, {factor:.1f} times the median{ending}."


def _describe_median_latency(item: InferenceLatency) -> str:
    """Return "51.0 ms at batch 5 (p95 56.0 ms, 40 batches)"; without a p95 the longest."""
    high = item.percentiles[95]
    end = f"longest {format_time(item.longest)}" if high is None else f"p95 {format_time(high)}"
    median = format_time(item.percentiles[50] or 0)
    return f"{median} at batch {item.batch} ({end}, {item.count} batches)"


def judge_gpu_busy(
    points: Sequence[InferencePoint], busy: Sequence[ModelBusyBatch]
) -> Iterator[str]:
    """Yield the batch size from which on the GPU is busy, by each way that shows it."""
    for way, how in BUSY_WAYS.items():
        facts, gpus = [], 1
        for item in (item for item in busy if item.way == way):
            batch, share = item.measured[-1]
            only = ", the only one" if len(item.measured) == 1 else ""
            none = f"none ({format_percent(share)} at {batch}{only})"
            facts.append(f"{item.model} {none if only or not item.batch else item.batch}")
            gpus = max(gpus, *(p.gpu.gpus for p in points if p.model == item.model))
        mean = f" (mean of {gpus})" if gpus > 1 else ""
        lead = f"By {how}, the GPU{mean} is busy ({BUSY * 100:.0f}% or more) from batch:"
        yield from join_facts_of_models(lead, facts)


def judge_accuracy(timed: Timed) -> Iterator[str]:
    """Yield top-1 and top-5 of each model, and whether batch sizes differ on the same images."""
    facts, differing = [], []
    for model, items in timed.items():
        scored = [item for item in items if item.top1 is not None]
        if not scored:
            continue
        first, top5 = scored[0], scored[0].figures.get("top5")
        low, high = first.top1_interval
        ends = (
            "interval unknown"
            if first.too_wide
            else f"{format_percent(low)} to {format_percent(high)}"
        )
        also = f", top-5 {format_percent(top5)}" if top5 is not None else ""
        facts.append(
            f"{model} {format_percent(first.top1 or 0)} ({ends}) of {first.images:,} images{also}"
        )
        kinds = {(item.top1, item.images) for item in scored}
        if len(kinds) > 1 and len({images for _, images in kinds}) == 1:
            differing.append(model)
    yield from join_facts_of_models("The top-1 accuracy is:", facts)
    lead = (
        "Top-1 differs between batch sizes on the same images, because kernels round differently:"
    )
    yield from join_facts_of_models(lead, differing)


def judge_unreadable_images(timed: Timed) -> Iterator[str]:
    """Yield how many images could not be read."""
    skipped = [
        int(item.figures.get("images_skipped") or 0) for items in timed.values() for item in items
    ]
    if most := max(skipped, default=0):
        images = "1 image" if most == 1 else f"{most:,} images"
        yield f"{images} could not be read and did not count; the last table names the files."
