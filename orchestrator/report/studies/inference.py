"""The study of inference at low batch: models and batch sizes as one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.ledger.usage.inference import (
    PAYS,
    BusyFrom,
    InferencePoint,
    Latency,
    busy_from,
    inference_points,
    pays_until,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.inference import (
    all_charts,
    images_of,
    interval_of,
    top1_of,
    wide_of,
)
from perfctl.orchestrator.report.numbers import per_second, percent, size, time
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.studies.inference_tables import (
    LABELS,
    dlprof_runs,
    labelled,
    tables_of,
    why,
)
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.statistics import FEWEST_STEPS, Ratio, Untested, compare_samples
from perfctl.records.run import Run

MOST = 20
"""Findings of a study."""
UNEVEN = 1.5
"""p95 over the median, from which answers are uneven."""
WAITING = 0.2
"""Larger shares of a step that wait for images are said."""
_TITLES = {
    "latency": "Latency",
    "throughput": "Images per second",
    "utilisation": "Utilisation",
    "memory": "Memory",
    "accuracy": "Accuracy",
    "kernels": "Kernel report",
    "iterations": "Iteration report",
    "summary": "Summary report",
    "names": "Utilisation by name, from DLProf's summary",
    "samples": "Readings of nvidia-smi",
    "all": "All figures",
}

_TEXT = {
    "latency": (
        (
            "The time of an answer: copies and computation of one full batch, with its images "
            "ready. p50 is the median; p95 and p99 are the times that 95% and 99% of the batches "
            "do not exceed (nearest rank)."
        ),
    ),
    "throughput": (
        "Images of full batches over the time of their whole steps, waiting for images included.",
    ),
    "utilisation": (
        (
            f"The GPU counts as busy where a kernel runs for {BUSY * 100:.0f}% of the time or "
            "more. Waiting for images is idle time."
        ),
    ),
    "accuracy": (
        (
            "The interval says how far top-1 may be off because only so many images were scored: "
            "95%, after Wilson. It does not cover whether these images are typical."
        ),
    ),
    "kernels": (
        (
            "As DLProf's kernel report: launches by kernel name, with the use of tensor cores read "
            "off the name. A run on a CPU has no kernels; its operators by self time stand in "
            "their place."
        ),
    ),
    "iterations": (
        "As DLProf's iteration report: each measured step, and the kernels that it launched.",
    ),
    "summary": (
        (
            "As DLProf's summary report: each profiled run as a whole. A profiler slows a run; "
            "times without one are above."
        ),
    ),
    "names": (
        (
            "DLProf's summary has no fixed order of lines: each figure is found by its label. Line "
            "15 is what a script prints that counts lines instead."
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What the page says of the study beside its runs."""

    command: str
    line15: Mapping[int, str]
    """Number of a run -> line 15 of its dlprof_summary.csv, where the file is still there."""
    failed: tuple[str, ...] = ()
    """Files that could not be read, one sentence each."""
    links: tuple[tuple[str, str], ...] = ()


def inference_page(runs: Sequence[Run], asked: InferenceRequest) -> StudyPage:
    """The page of these runs; what they do not hold is in ``missing``."""
    points = inference_points(runs)
    busy = busy_from(points)
    charts = all_charts(points)
    tables = dict(tables_of(points, busy, asked.line15))
    chapters = []
    for key, title in _TITLES.items():
        shown, folded = tables.get(key, ((), ()))
        drawn: tuple[Chart, ...] = charts.get(key, ())
        if shown or folded or drawn:
            chapters.append(Chapter(key, title, _TEXT.get(key, ()), drawn, shown, folded))
    there = {chapter.key for chapter in chapters}
    origins = {run.origin for run in runs} - {"measured"}
    return StudyPage(
        "inference",
        "Inference at low batch",
        tuple(facts_of(points)),
        tuple(
            replace(one, text=one.first)
            for one in findings_of(points, busy, asked.line15)
            if one.evidence in there
        ),
        tuple(chapters),
        tuple(_missing(points, busy, asked)),
        ", ".join(sorted(origins)) or None,
        asked.command,
        asked.links,
    )


def facts_of(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """(name, value) of what ran, where and on what."""
    runs = [run for point in points for run in point.runs]
    batches = sorted({point.batch for point in points if point.batch is not None})
    weights = {weights for run in runs if (weights := run.report.environment.get("weights"))}
    images = sorted({images_of(point) for point in points} - {0})
    named = dict.fromkeys(one.name for run in runs for one in run.devices[:1] if one.name)
    devices = named or dict.fromkeys(one.kind for run in runs for one in run.devices[:1])
    given = {
        "models" if any(point.batch for point in points) else "reports": ", ".join(
            names_of(points)
        ),
        "batch sizes": ", ".join(map(str, batches)),
        "device": ", ".join(map(str, devices)),
        "weights": "random" if weights == {"none"} else ", ".join(sorted(weights)),
        "images": f"{images[0]:,}"
        if len(images) == 1
        else f"{images[0]:,} to {images[-1]:,}"
        if images
        else "",
        "profilers": ", ".join(
            dict.fromkeys(run.profiler for run in runs if run.profiler not in ("none", "workload"))
        ),
    }
    yield from ((name, value) for name, value in given.items() if value)


def names_of(points: Sequence[InferencePoint]) -> list[str]:
    """The models, in order of appearance."""
    return list(dict.fromkeys(point.model for point in points))


def findings_of(
    points: Sequence[InferencePoint],
    busy: Sequence[BusyFrom],
    line15: Mapping[int, str] | None = None,
) -> Iterator[Finding]:
    """The headline, then what it does not say; ``evidence`` is the key of a chapter."""
    parts = (
        *_headline(points),
        *_on_batch(points),
        *_on_speed(points),
        *_on_busy(points, busy),
        *_on_waiting(points),
        *_on_accuracy(points),
        *_on_images(points),
        *_on_lines(points, line15 or {}),
        *_on_states(points),
    )
    yield from (Finding(text, evidence) for text, evidence in parts[:MOST])


def _by_model(points: Sequence[InferencePoint]) -> Iterator[tuple[str, list[InferencePoint]]]:
    for model in names_of(points):
        timed = [point for point in points if point.model == model and point.latency is not None]
        if timed:
            yield model, timed


def _few(lead: str, found: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The sentences of up to two models, else one list of all of them as far as it fits. found:
    (sentence, in short)."""
    if len(found) <= 2:
        yield from (sentence for sentence, _ in found)
        return
    shown = [in_short for _, in_short in found]
    for count in range(len(shown), 0, -1):
        rest = f" and {len(shown) - count} more" if count < len(shown) else ""
        text = f"{lead}: {'; '.join(shown[:count])}{rest}."
        if len(text) <= LONGEST or count == 1:
            yield text
            return


def _headline(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """Which model is the fastest at which batch size and by how much; with one model that is
    said below."""
    best = sorted(
        (best_of(timed) for _, timed in _by_model(points)), key=lambda one: -one.images_per_second
    )
    if len(best) < 2:
        return
    first, second = best[:2]
    mine, other = (
        f"{per_second(one.images_per_second)} images/s at batch {one.batch}"
        for one in (first, second)
    )
    fewest = min(first.count, second.count)
    judged = _compared(first, second)
    if isinstance(judged, Ratio) and judged.low <= 1 <= judged.high:
        yield (
            f"{first.model} and {second.model} cannot be told apart: at best {mine} and {other}.",
            "throughput",
        )
        return
    if isinstance(judged, Untested) and fewest < FEWEST_STEPS:
        text = (
            f"{first.model} was the fastest ({mine}; {second.model} {other}), but {fewest} timed "
            "batches are too few to be sure."
        )
    else:
        factor = times_as_many(first.images_per_second / second.images_per_second)
        text = (
            f"{first.model} is the fastest: {mine}, {factor} {second.model} at its best ({other})."
        )
    yield text, "throughput"


def _compared(first: Latency, second: Latency) -> Ratio | Untested:
    """The time of an image of both, by the steps."""
    return compare_samples(*([[step / one.batch for step in one.steps]] for one in (first, second)))


def best_of(timed: Sequence[InferencePoint]) -> Latency:
    """The batch size with the most images per second."""
    return max(
        (one.latency for one in timed if one.latency is not None),
        key=lambda one: one.images_per_second,
    )


def times_as_many(factor: float) -> str:
    """ "2.8 times as many as", "about as many as"."""
    return "about as many as" if factor < 1.05 else f"{factor:.1f} times as many as"


def _on_batch(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """From which batch size on a larger one hardly pays."""
    found, largest = [], []
    for model, timed in _by_model(points):
        rates = {
            one.batch: one.images_per_second
            for point in timed
            if (one := point.latency) is not None
        }
        if len(rates) < 2:
            continue
        since, last = pays_until(rates), max(rates)
        if since == last:
            text = (
                f"A larger batch gives {model} more images/s up to the largest that was measured, "
                f"{last}."
            )
            found.append((text, f"{model} none up to {last}"))
            largest.append(last)
        else:
            text = (
                f"From batch {since} on, a larger batch gives {model} under {PAYS * 100:.0f}% "
                "more images/s."
            )
            found.append((text, f"{model} {since}"))
    if len(largest) == len(found) > 2 and len(set(largest)) == 1:
        yield (
            (
                "A larger batch gives every model more images/s, up to the largest that was "
                f"measured, {largest[0]}."
            ),
            "throughput",
        )
        return
    lead = f"Batch from which a larger one gives under {PAYS * 100:.0f}% more images/s"
    yield from ((text, "throughput") for text in _few(lead, found))


def _on_waiting(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """Of real images: made ones say nothing about reading and decoding."""
    found = []
    for _, timed in _by_model(points):
        mine = [
            one.latency for one in timed if one.latency is not None and not one.latency.synthetic
        ]
        worst = max(mine, key=lambda one: one.load_share, default=None)
        if worst is None or worst.load_share < WAITING:
            continue
        short = f"{worst.model} {percent(worst.load_share)} at batch {worst.batch}"
        text = (
            f"{worst.model} waits for images in {percent(worst.load_share)} of a step at batch "
            f"{worst.batch}"
        )
        if worst.workers is not None:
            text += (
                f"; --dataloader-workers {max(2, worst.workers * 2)} loads more of them meanwhile"
            )
        found.append((f"{text}.", short))
    yield from ((text, "throughput") for text in _few("Waiting for images, share of a step", found))


def _on_speed(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    runs, answers, uneven = [], [], []
    for model, timed in _by_model(points):
        known = [one.latency for one in timed if one.latency is not None]
        rates = {one.batch: one.images_per_second for one in known}
        first, best = min(rates), max(rates, key=lambda batch: rates[batch])
        text = f"{model} runs {per_second(rates[best])} images/s at batch {best}"
        if best != first:
            text += f", {times_as_many(rates[best] / rates[first])} at batch {first}"
        runs.append((f"{text}.", f"{model} {per_second(rates[best])} at batch {best}"))
        middles = {one.batch: time(one.percentiles[50] or 0) for one in known}
        ends = dict.fromkeys((min(middles), max(middles)))
        said = ", ".join(f"{middles[batch]} at batch {batch}" for batch in ends)
        text = f"{model} answers in {said} (median, images ready)."
        answers.append((text, f"{model} {' to '.join(middles[batch] for batch in ends)}"))
        for one in known:
            middle, high = one.percentiles[50], one.percentiles[95]
            if middle and high and high / middle >= UNEVEN:
                uneven.append((high / middle, f"{model} at batch {one.batch}: p95 {time(high)}"))
    yield from ((text, "throughput") for text in _few("Most images/s", runs))
    yield from (
        (text, "latency")
        for text in _few("Median answer at the smallest and largest batch", answers)
    )
    if uneven:
        factor, where = max(uneven)
        others = (
            f"; {len(uneven) - 1} more are uneven"
            if len(uneven) > 2
            else "; 1 more is uneven"
            if uneven[1:]
            else ""
        )
        yield (
            f"Answers are uneven, most those of {where} is {factor:.1f} times the median{others}.",
            "latency",
        )


def _on_busy(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom]
) -> Iterator[tuple[str, str]]:
    found = list(_busy_of_each(points, busy))
    yield from (
        (text, "utilisation")
        for text in _few(f"Batch from which the GPU is busy ({BUSY * 100:.0f}% or more)", found)
    )


def _busy_of_each(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom]
) -> Iterator[tuple[str, str]]:
    """(sentence, in short) of each model whose share is known."""
    for one in busy:
        if not one.way:
            continue
        sampled = {"sampled": ", by sampling only", "DLProf": ", by DLProf's summary"}.get(
            one.way, ""
        )
        top, share = one.measured[-1]
        reason = next(
            point.gpu.reason for point in points if (point.model, point.batch) == (one.model, top)
        )
        sampled += (
            f", {reason[place:]}"
            if (place := reason.find("mean of ")) >= 0 and "GPUs" in reason
            else ""
        )
        if one.batch is None:
            yield (
                (
                    f"{one.model} does not keep the GPU busy up to batch {top}: {percent(share)} "
                    f"there{sampled}."
                ),
                f"{one.model} none up to {top}{sampled}",
            )
        elif len(one.measured) == 1:
            yield (
                (
                    f"{one.model} keeps the GPU busy for {percent(share)} at batch {top}, the only "
                    f"one measured{sampled}."
                ),
                f"{one.model} {percent(share)} at its only {top}{sampled}",
            )
        else:
            yield (
                (
                    f"{one.model} keeps the GPU busy from batch {one.batch} on ({BUSY * 100:.0f}% "
                    f"or more){sampled}."
                ),
                f"{one.model} {one.batch}{sampled}",
            )


def _on_accuracy(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    found, differs = [], []
    for model in names_of(points):
        scored = [point for point in points if point.model == model and top1_of(point) is not None]
        if scored:
            (low, high), first = interval_of(scored[0]), scored[0]
            top5 = first.latency.figures.get("top5") if first.latency is not None else None
            also = f", top-5 {percent(top5)}" if top5 is not None else ""
            ends = "interval unknown" if wide_of(first) else f"{percent(low)} to {percent(high)}"
            top1 = f"{percent(top1_of(first) or 0)} ({ends})"
            text = f"{model}: top-1 {top1} of {images_of(first):,} images{also}."
            found.append((text, f"{model} {percent(top1_of(first) or 0)}"))
            kinds = {(top1_of(point), images_of(point)) for point in scored}
            if len(kinds) > 1 and len({images for _, images in kinds}) == 1:
                differs.append(model)
    yield from ((text, "accuracy") for text in _few("Top-1", found))
    if differs:
        of = differs[0] if len(differs) == 1 else f"{len(differs)} models"
        yield (
            (
                f"Top-1 of {of} differs between batch sizes on the same images: other kernels "
                "round differently."
            ),
            "accuracy",
        )


def _on_images(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    skipped = {
        int(point.latency.figures.get("images_skipped") or 0)
        for point in points
        if point.latency is not None
    }
    if most := max(skipped, default=0):
        what = "1 image" if most == 1 else f"{most:,} images"
        yield (
            (
                f"{what} could not be read and {'was' if most == 1 else 'were'} not scored; the "
                "last table names them."
            ),
            "all",
        )


def _on_lines(
    points: Sequence[InferencePoint], line15: Mapping[int, str]
) -> Iterator[tuple[str, str]]:
    seen: dict[str, list[str]] = {}
    for _, run in dlprof_runs(points):
        label = line15.get(run.id, "").split(",")[0].removesuffix("%").strip()
        if label:
            version = (run.profiler_version or "unknown").split()[0]
            seen.setdefault(label, [])
            if version not in seen[label]:
                seen[label].append(version)
    if len(seen) > 1:
        said = ", ".join(
            f"{label} (DLProf {' and '.join(versions)})" for label, versions in seen.items()
        )
        yield f"Line 15 of dlprof_summary.csv is not one figure: {said}.", "names"


def _on_states(points: Sequence[InferencePoint]) -> Iterator[tuple[str, str]]:
    """What reports made elsewhere hold, where no run was timed."""
    if any(point.latency is not None for point in points):
        return
    of_models = [
        (model, [point for point in points if point.model == model]) for model in names_of(points)
    ]
    for heading in list(LABELS)[:2]:
        found = []
        for model, mine in of_models:
            stated = [(point, labelled(run, LABELS[heading])) for point, run in dlprof_runs(mine)]
            known = [(f"{cell.text}%", _at(point)) for point, cell in stated if cell.style != "no"]
            if known:
                text = f"{model}: DLProf states {heading} {_ends([''.join(one) for one in known])}."
                found.append((text, f"{model} {_ends([one for one, _ in known])}"))
        yield from (
            (text, "names")
            for text in _few(f"{heading} that DLProf states, first and last batch", found)
        )
    found = []
    for model, mine in of_models:
        used = [
            (
                point,
                max(
                    (one.memory_used or 0 for use in point.uses for one in use.readings), default=0
                ),
            )
            for point in mine
        ]
        if read := [(size(most), _at(point)) for point, most in used if most]:
            text = f"{model}: GPU memory in use up to {_ends([''.join(one) for one in read])}."
            found.append((text, f"{model} {_ends([one for one, _ in read])}"))
    yield from (
        (text, "samples") for text in _few("GPU memory in use, first and last batch", found)
    )


def _at(point: InferencePoint) -> str:
    return f" at batch {point.batch}" if point.batch is not None else ""


def _ends(known: Sequence[str]) -> str:
    """The first and the last."""
    return ", ".join(dict.fromkeys((known[0], known[-1])))


def _missing(
    points: Sequence[InferencePoint], busy: Sequence[BusyFrom], asked: InferenceRequest
) -> Iterator[tuple[str, str]]:
    runs = [run for point in points for run in point.runs]
    timed = [point for point in points if point.latency is not None]
    cpu = bool(points) and all(point.on_cpu for point in points)
    if not timed:
        yield (
            "latency, images/s and accuracy",
            (
                "these reports hold no steps that are divided into loading, copies and "
                "computation; perfctl infer records them"
            ),
        )
    elif not any(top1_of(point) is not None for point in points):
        yield (
            "top-1, top-5",
            f"{why(timed[0], 'top1')}. Use --weights default and --data imagenet --data-dir DIR",
        )
    if timed and all(
        point.latency is not None and point.latency.percentiles[95] is None for point in timed
    ):
        yield "p95", "too few batches: a p95 takes 20, and so 20 times the batch size in --images"
    if cpu:
        what = (
            "GPU utilisation, idle share, tensor cores, the GPU's memory, and the batch size from "
            "which the GPU is busy"
        )
        yield (
            what,
            (
                "the runs were on a CPU; on a machine with an NVIDIA GPU the same command measures "
                "them"
            ),
        )
    else:
        for what, none in (
            ("GPU utilisation", all(point.gpu.value is None for point in points)),
            ("the GPU's idle share", all(point.gpu_way != "kernels" for point in points)),
            ("tensor cores", all(point.tensor.value is None for point in points)),
            ("the GPU's memory in use", all(point.memory.value is None for point in points)),
        ):
            if none and points:
                field = {"GPU utilisation": "gpu", "tensor cores": "tensor"}.get(what, "memory")
                reasons = dict.fromkeys(getattr(point, field).reason for point in points)
                idle = (
                    "it needs kernels with start and length; sampling and DLProf's summary give "
                    "only an estimate of busy time"
                )
                yield what, idle if what == "the GPU's idle share" else "; ".join(reasons)
        unknown = dict.fromkeys(one.reason for one in busy if not one.way)
        if unknown and not all(point.gpu.value is None for point in points):
            yield "the batch size from which the GPU is busy", "; ".join(unknown)
    if not any(run.profiler == "dlprof" for run in runs):
        yield (
            "DLProf's own figures",
            (
                "no report of DLProf is among the runs; the three reports are made from the other "
                "profilers"
            ),
        )
    if any(one.readings for point in points for one in point.uses) or not cpu:
        yield (
            "load of the GPU's memory interface",
            "perfctl keeps no readings of utilization.memory; memory in use is shown",
        )
    if not any(
        True for run in runs for field in (run.report.kernels, run.report.operations) for _ in field
    ):
        yield (
            "kernel and iteration reports",
            "no run has kernels or operators; --profiler torch, or dlprof's --reports, gives them",
        )
    unsized = sum(point.batch is None for point in points)
    if unsized and len(points) > 1:
        yield (
            "batch sizes",
            (
                f"{unsized} of {len(points)} reports do not say theirs; names such as "
                "resnet18_b16.csv do"
            ),
        )
    for point in points:
        for problem in point.problems:
            yield f"{point.model}, batch {point.batch or 'unknown'}", problem
    for text in asked.failed:
        yield "a file that could not be read", text
