"""What stands out in inference at low batch, one sentence each of at most LONGEST characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from perfctl.orchestrator.ledger.usage.inference import (
    PAYS,
    BusyFrom,
    InferencePoint,
    Latency,
    pays_until,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY
from perfctl.orchestrator.report.charts.inference import images_of, interval_of, top1_of, wide_of
from perfctl.orchestrator.report.numbers import per_second, percent, time
from perfctl.orchestrator.report.page.records import LONGEST
from perfctl.orchestrator.report.tables import Cell, nothing, text_cell
from perfctl.orchestrator.statistics import FEWEST_STEPS, Ratio, Untested, compare_samples
from perfctl.records.report import Summary
from perfctl.records.run import Run

UNEVEN_MIN = 1.5
"""p95 over the median, from which answers are uneven."""
WAITING_MIN = 0.2
"""Larger shares of a step that wait for images are said."""
LABELS = {
    "GPU utilisation": r"GPU Utili[sz]ation",
    "tensor core utilisation": r"Tensor Core (?:Kernel )?Utili[sz]ation",
    "memory": r"Memory Duration",
    "data loader": r"Dataloader Duration",
}
"""Heading of a column -> the label that DLProf's summary has for it, in any version."""
Short = list[tuple[str, str]]
"""(sentence about a model, the same in short)."""


def names_of(points: Sequence[InferencePoint]) -> list[str]:
    """Return the models, in order of appearance."""
    return list(dict.fromkeys(point.model for point in points))


def _latencies(points: Sequence[InferencePoint]) -> list[list[Latency]]:
    """Return the timed batch sizes of each model that has some."""
    found = [
        [
            point.latency
            for point in points
            if point.model == model and point.latency is not None and point.latency.is_complete
        ]
        for model in names_of(points)
    ]
    return [timed for timed in found if timed]


def _join(lead: str, found: Short) -> Iterator[str]:
    """Yield the sentences of up to two models, else one list of all of them as far as it fits."""
    if len(found) <= 2:
        yield from (sentence for sentence, _ in found)
        return
    for number in range(len(found), 0, -1):
        rest = f" and {len(found) - number} more" if number < len(found) else ""
        text = f"{lead}: {'; '.join(short for _, short in found[:number])}{rest}."
        if len(text) <= LONGEST or number == 1:
            yield text
            return


def judge_throughput(points: Sequence[InferencePoint]) -> Iterator[str]:
    """Which model is the fastest at which batch size and by how much; from which batch size on a
    larger one hardly pays; what waits for images."""
    models = _latencies(points)
    best = sorted(
        (max(timed, key=lambda one: one.images_per_second) for timed in models),
        key=lambda one: -one.images_per_second,
    )
    if len(best) > 1:
        yield _headline(best[0], best[1])
    pays: Short = []
    runs: Short = []
    waits: Short = []
    share = f"under {PAYS * 100:.0f}% more images/s"
    for timed in models:
        model = timed[0].model
        rates = {one.batch: one.images_per_second for one in timed}
        first, top = min(rates), max(rates, key=lambda batch: rates[batch])
        since, last = pays_until(rates), max(rates)
        if len(rates) > 1 and since == last:
            most = f"up to the largest that was measured, {last}"
            text = f"A larger batch gives {model} more images/s {most}."
            pays.append((text, f"{model} none up to {last}"))
        elif len(rates) > 1:
            text = f"From batch {since} on, a larger batch gives {model} {share}."
            pays.append((text, f"{model} {since}"))
        text = f"{model} runs {per_second(rates[top])} images/s at batch {top}"
        if top != first:
            text += f", {times_as_many(rates[top] / rates[first])} at batch {first}"
        runs.append((f"{text}.", f"{model} {per_second(rates[top])} at batch {top}"))
        real = [one for one in timed if not one.synthetic]
        worst = max(real, key=lambda one: one.load_share, default=None)
        if worst is not None and worst.load_share >= WAITING_MIN:
            at = f"{percent(worst.load_share)} of a step at batch {worst.batch}"
            text = f"{model} waits for images in {at}"
            if worst.workers is not None:
                more = max(2, worst.workers * 2)
                text += f"; --dataloader-workers {more} loads more of them meanwhile"
            waits.append((f"{text}.", f"{model} {at}"))
    yield from _join(f"Batch from which a larger one gives {share}", pays)
    yield from _join("Most images/s", runs)
    yield from _join("Waiting for images", waits)


def _headline(first: Latency, second: Latency) -> str:
    mine, other = (
        f"{per_second(one.images_per_second)} images/s at batch {one.batch}"
        for one in (first, second)
    )
    fewest = min(first.count, second.count)
    samples = ([[step / one.batch for step in one.steps]] for one in (first, second))
    judged = compare_samples(*samples)
    if isinstance(judged, Ratio) and judged.low <= 1 <= judged.high:
        return f"{first.model} and {second.model} cannot be told apart: at best {mine} and {other}."
    if isinstance(judged, Untested) and fewest < FEWEST_STEPS:
        return (
            f"{first.model} was the fastest ({mine}; {second.model} {other}), but {fewest} timed "
            "batches are too few to be sure."
        )
    factor = times_as_many(first.images_per_second / second.images_per_second)
    return f"{first.model} is the fastest: {mine}, {factor} {second.model} at its best ({other})."


def times_as_many(factor: float) -> str:
    """Return "2.8 times as many as", or "about as many as"."""
    return "about as many as" if factor < 1.05 else f"{factor:.1f} times as many as"


def judge_latency(points: Sequence[InferencePoint]) -> Iterator[str]:
    """How long an answer takes, and where answers are uneven."""
    found: Short = []
    uneven = []
    for timed in _latencies(points):
        model = timed[0].model
        middles = {one.batch: time(one.percentiles[50] or 0) for one in timed}
        ends = dict.fromkeys((min(middles), max(middles)))
        said = ", ".join(f"{middles[batch]} at batch {batch}" for batch in ends)
        short = f"{model} {' to '.join(middles[batch] for batch in ends)}"
        found.append((f"{model} answers in {said} (median, images ready).", short))
        for one in timed:
            middle, high = one.percentiles[50], one.percentiles[95]
            if middle and high and high / middle >= UNEVEN_MIN:
                uneven.append((high / middle, f"{model} at batch {one.batch}: p95 {time(high)}"))
    yield from _join("Median answer at the smallest and largest batch", found)
    if uneven:
        factor, where = max(uneven)
        others = f"; {len(uneven) - 1} more such" if uneven[1:] else ""
        yield (
            f"Answers are uneven, most those of {where} is {factor:.1f} times the median{others}."
        )


def judge_busy(points: Sequence[InferencePoint], busy: Sequence[BusyFrom]) -> Iterator[str]:
    """From which batch size on the GPU is busy."""
    found: Short = []
    for one in (one for one in busy if one.way):
        ways = {"sampled": ", by sampling only", "DLProf": ", by DLProf's summary"}
        top, share = one.measured[-1]
        how = ways.get(one.way, "")
        gpu = next(p.gpu for p in points if (p.model, p.batch) == (one.model, top))
        if gpu.gpus > 1:
            how += f", mean of {gpu.gpus} GPUs"
        if one.batch is None:
            text = f"does not keep the GPU busy up to batch {top}: {percent(share)} there"
            short = f"none up to {top}"
        elif len(one.measured) == 1:
            text = f"keeps the GPU busy for {percent(share)} at batch {top}, the only one measured"
            short = f"{percent(share)} at its only {top}"
        else:
            least = f"({BUSY * 100:.0f}% or more)"
            text = f"keeps the GPU busy from batch {one.batch} on {least}"
            short = str(one.batch)
        found.append((f"{one.model} {text}{how}.", f"{one.model} {short}{how}"))
    yield from _join(f"Batch from which the GPU is busy ({BUSY * 100:.0f}% or more)", found)


def judge_accuracy(points: Sequence[InferencePoint]) -> Iterator[str]:
    """Top-1 and top-5 of each model, and whether batch sizes differ on the same images."""
    found: Short = []
    differing = []
    for model in names_of(points):
        scored = [point for point in points if point.model == model and top1_of(point) is not None]
        if not scored:
            continue
        first, (low, high) = scored[0], interval_of(scored[0])
        top5 = first.latency.figures.get("top5") if first.latency is not None else None
        also = f", top-5 {percent(top5)}" if top5 is not None else ""
        ends = "interval unknown" if wide_of(first) else f"{percent(low)} to {percent(high)}"
        top1 = percent(top1_of(first) or 0)
        text = f"{model}: top-1 {top1} ({ends}) of {images_of(first):,} images{also}."
        found.append((text, f"{model} {top1}"))
        kinds = {(top1_of(point), images_of(point)) for point in scored}
        if len(kinds) > 1 and len({images for _, images in kinds}) == 1:
            differing.append(model)
    yield from _join("Top-1", found)
    if differing:
        of = differing[0] if len(differing) == 1 else f"{len(differing)} models"
        yield (
            f"Top-1 of {of} differs between batch sizes on the same images: other kernels round "
            "differently."
        )


def judge_images(points: Sequence[InferencePoint]) -> Iterator[str]:
    """How many images could not be read."""
    skipped = [
        int(point.latency.figures.get("images_skipped") or 0)
        for point in points
        if point.latency is not None
    ]
    if most := max(skipped, default=0):
        what = "1 image" if most == 1 else f"{most:,} images"
        yield f"{what} could not be read and did not count; the last table names the files."


def judge_names(
    points: Sequence[InferencePoint], summary_lines: Mapping[int, str]
) -> Iterator[str]:
    """What line 15 of DLProf's summary is, and what it states where no run was timed."""
    versions: dict[str, dict[str, None]] = {}
    for _, run in dlprof_runs(points):
        label = summary_lines.get(run.id, "").split(",")[0].removesuffix("%").strip()
        if label:
            version = (run.profiler_version or "unknown").split()[0]
            versions.setdefault(label, {})[version] = None
    if len(versions) > 1:
        listed = ", ".join(f"{label} (DLProf {' and '.join(of)})" for label, of in versions.items())
        yield f"Line 15 of dlprof_summary.csv is not one figure: {listed}."
    for heading in list(LABELS)[:2] if not _latencies(points) else ():
        found: Short = []
        for model in names_of(points):
            stated = [
                (f"{cell.text}%", point.batch)
                for point, run in dlprof_runs(points)
                if point.model == model and (cell := labelled(run, LABELS[heading])).style != "no"
            ]
            found += _ends(f"{model}: DLProf states {heading}", model, stated)
        yield from _join(f"{heading} that DLProf states, first and last batch", found)


def _ends(lead: str, model: str, values: Sequence[tuple[str, int | None]]) -> Short:
    """Return the first and the last value with their batch sizes."""
    if not values:
        return []
    texts = [value if batch is None else f"{value} at batch {batch}" for value, batch in values]
    whole = ", ".join(dict.fromkeys((texts[0], texts[-1])))
    short = ", ".join(dict.fromkeys((values[0][0], values[-1][0])))
    return [(f"{lead} {whole}.", f"{model} {short}")]


def dlprof_runs(points: Sequence[InferencePoint]) -> list[tuple[InferencePoint, Run]]:
    """Return the runs under DLProf."""
    return [(point, run) for point in points for run in point.runs if run.profiler == "dlprof"]


def labelled(run: Run, pattern: str) -> Cell:
    """Return the figure of DLProf's summary with this label."""
    label = re.compile(rf"(?:.*: )?{pattern}(?: ?%)?\Z", re.IGNORECASE)
    item = next((item for item in run.report.summaries if label.match(item.name)), None)
    if item is None:
        return nothing("this summary has no such line")
    cell = stated_cell(run, item)
    title = "; ".join(filter(None, (f"its line {item.name}", cell.title)))
    return Cell(cell.text, title, cell.style, cell.value)


def stated_cell(run: Run, item: Summary) -> Cell:
    """Return a figure of DLProf's summary as it stands there."""
    if item.value is None:
        return text_cell(item.text) if item.text else nothing("the report does not say")
    if not item.value and item.unit == "%" and run.report.form.startswith("DLProf CSV"):
        return Cell("< 0.05", "DLProf's CSV rounds: 0.0% is anything below 0.05%", value="< 0.05")
    return Cell(f"{item.value:,.10g}", value=item.value)
